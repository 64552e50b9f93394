"""The golden record: every number of a made-up book, and what differs between two of them."""

from __future__ import annotations

import nbformat
import pandas as pd
import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook, new_output

from companion.figures.show import show
from coupling_lib import paths
from workflow import golden

PAGE = """Of 2 claims: 1 reproduced, 1 inconclusive.

<li data-place="here" data-verdict="reproduced"><b>1</b></li>

(claim-order)=
### Order

<li data-place="here" data-verdict="inconclusive"><svg viewBox="0 0 16 16"></svg> of 4 models</li>
<li data-place="paper" data-verdict="depends on the definition"></li>

| claim | the paper reports | measured here |
| --- | --- | ---: |
| <span class="a">order</span> | figure 3 | 0.037 [0.034, -1.5e-3] |
"""


def record(data, name, kind=""):
    return new_output("display_data", data=data, metadata={"scrapbook": {"name": name, "mime_prefix": kind}})


def figure(table: pd.DataFrame, name: str, caption: str) -> str:
    origin = "model tiny · torch 2.13.0 · seed 5"
    return show(lambda data: Figure(figsize=(1, 1)), table, name=name, caption=caption, provenance=origin).data


@pytest.fixture
def results(tmp_path):
    table = pd.DataFrame(
        {
            "network": ["a", "a", "b"],
            "rate": [0.1, 0.3, 0.1],
            "coupling": [1 / 3, 0.25, -2e-7],
            "versions": ["torch 9"] * 3,
        }
    )
    prefix = "application/papermill.record/"
    outputs = [
        record({f"{prefix}text/plain": "0.04680156572836136"}, "depth-null", prefix),
        record({f"{prefix}text/plain": "two words"}, "depth-text", prefix),
        record(
            {"text/html": figure(table, "depth-rates", "95 % intervals; K = 10."), "text/plain": "<figure>"},
            "depth-rates",
        ),
    ]
    folder = tmp_path / "results"
    (folder / "tiny").mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell("x", outputs=outputs)]), folder / "tiny" / "depth.ipynb")
    (folder / "tiny" / ".depth.partial.ipynb").write_text("not yet")
    (folder / "book").mkdir()
    (folder / "book" / "claims.md").write_text(PAGE)
    (folder / "book" / "versions.md").write_text("| torch | 2.13.0 |\n")
    graph = figure(pd.DataFrame({"block": [1, 2], "coupling": [0.5, 0.5]}), "landing", "Blocks 1 to 2.")
    (folder / "book" / "landing.md").write_text(f"# Found\n\n```{{raw}} html\n{graph}\n```\n\nOf 12 blocks.\n")
    return folder


EXPECTED = {
    "tiny/depth/glue/depth-null": "0.04680156572836136",
    "tiny/depth/glue/depth-text": "two words",
    "tiny/depth/figure depth-rates/network a, rate 0.1/coupling": "0.33333",
    "tiny/depth/figure depth-rates/network a, rate 0.3/coupling": "0.25",
    "tiny/depth/figure depth-rates/network b, rate 0.1/coupling": "-2e-07",
    "book/landing.md/figure landing/block 1/coupling": "0.5",
    "book/landing.md/figure landing/block 2/coupling": "0.5",
    "book/claims.md/all claims/here": "reproduced",
    "book/claims.md/claim-order/here": "inconclusive",
    "book/claims.md/claim-order/paper": "depends on the definition",
    "book/claims.md/claim": "the paper reports | measured here",
    "book/claims.md/order": "figure 3 | 0.037 [0.034, -1.5e-3]",
}


def test_every_number_is_recorded_with_all_digits(results):
    assert golden.collect(results) == EXPECTED


def test_record_is_sorted_and_read_back(results, tmp_path, capsys):
    file = tmp_path / "records" / "before.txt"
    assert golden.main(["write", str(file), "--results", str(results)]) == 0
    assert capsys.readouterr().out == f"{len(EXPECTED)} numbers written to {file}\n"
    lines = file.read_text().splitlines()
    assert lines == sorted(lines) == [f"{name}\t{value}" for name, value in sorted(EXPECTED.items())]
    assert golden.read(file) == EXPECTED
    assert golden.main(["compare", str(file), str(file)]) == 0
    assert capsys.readouterr().out == "0 changed, 0 added, 0 removed; 12 numbers before, 12 after\n"


def test_what_was_added_removed_and_changed_is_listed(tmp_path, capsys):
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("a\t1.0\nb\t100\nc\ttext\nd\t5\n")
    new.write_text("a\t1.00\nb\t101\nc\tother\ne\t6\n")
    assert golden.main(["compare", str(old), str(new)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "changed  a: 1.0 -> 1.00 (relative difference 0.0e+00)",
        "changed  b: 100 -> 101 (relative difference 9.9e-03)",
        "changed  c: text -> other",
        "removed  d: 5",
        "added    e: 6",
        "3 changed, 1 added, 1 removed; 4 numbers before, 4 after",
    ]
    assert golden.differences({"a": "1.0", "b": "100"}, {"a": "1.00", "b": "101"}, tolerance=0.02) == []
    assert len(golden.differences({"a": "1.0", "b": "-100"}, {"a": "1.00", "b": "100"}, tolerance=0.02)) == 1
    assert len(golden.differences({"c": "text", "n": "nan"}, {"c": "other", "n": "1"}, tolerance=0.02)) == 2


def test_equal_names_are_numbered(tmp_path):
    table = "name,value\nx,0.5\nx,0.25\n"
    assert list(golden._table(table, "t")) == [("t/name x/value", "0.5"), ("t/name x/value", "0.25")]
    (tmp_path / "m").mkdir()
    kept = [record({"text/plain": value}, "n") for value in ("1", "2")]
    nbformat.write(new_notebook(cells=[new_code_cell("x", outputs=kept)]), tmp_path / "m" / "n.ipynb")
    assert golden.collect(tmp_path) == {"m/n/glue/n": "1", "m/n/glue/n (2)": "2"}


def test_unusable_records_are_refused_in_one_line(results, tmp_path, capsys):
    (tmp_path / "wrong.txt").write_text("no record\n")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (
            ["write", str(tmp_path / "x"), "--results", str(tmp_path / "empty")],
            "holds no executed notebook; run `make book`",
        ),
        (["write", str(paths.ROOT / "golden.txt"), "--results", str(results)], "lies in the repository"),
        (["compare", str(tmp_path / "wrong.txt"), str(tmp_path / "wrong.txt")], "is no record"),
        (["compare", str(tmp_path / "absent"), str(tmp_path / "absent")], "No such file"),
    ):
        assert golden.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (paths.ROOT / "golden.txt").exists()
