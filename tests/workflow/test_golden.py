"""The golden record: every number of a made-up book, and what differs between two of them."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
from executed import figure
from nbformat.v4 import new_code_cell, new_notebook, new_output

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
ORIGIN = "model tiny · torch 2.13.0 · seed 5"
RECORD = "application/papermill.record/"
RATES = pd.DataFrame({"network": [*"aab"], "rate": [0.1, 0.3, 0.1], "coupling": [1 / 3, 0.25, -2e-7]})


def save(file: Path, *kept: tuple[dict, str, str]) -> None:
    """Write a notebook that keeps data under names."""
    outputs = [
        new_output("display_data", data, metadata={"scrapbook": {"name": name, "mime_prefix": prefix}})
        for data, name, prefix in kept
    ]
    file.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell("x", outputs=outputs)]), file)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    rates = figure("depth-rates", RATES.assign(versions="torch 9"), ORIGIN, "95 % intervals; K = 10.").data
    save(
        folder / "tiny" / "depth.ipynb",
        ({f"{RECORD}text/plain": "0.04680156572836136"}, "depth-null", RECORD),
        ({f"{RECORD}text/plain": "two words"}, "depth-text", RECORD),
        ({"text/html": rates, "text/plain": "<figure>"}, "depth-rates", ""),
    )
    (folder / "tiny" / ".depth.partial.ipynb").write_text("not yet")
    graph = figure("landing", pd.DataFrame({"block": [1, 2], "coupling": [0.5, 0.5]}), ORIGIN, "Blocks 1 to 2.").data
    (folder / "book").mkdir()
    (folder / "book" / "claims.md").write_text(PAGE)
    (folder / "book" / "versions.md").write_text("| torch | 2.13.0 |\n")
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


def test_every_number_is_sorted_and_read_back(results, tmp_path, capsys):
    file = tmp_path / "records" / "before.txt"
    assert golden.main(["write", str(file), "--results", str(results)]) == 0
    assert capsys.readouterr().out == f"{len(EXPECTED)} numbers written to {file}\n"
    assert file.read_text().splitlines() == [f"{name}\t{value}" for name, value in sorted(EXPECTED.items())]
    assert golden.read(file) == golden.collect(results) == EXPECTED
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


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [("1.0", "1.00", 0), ("100", "101", 0), ("-100", "100", 1), ("a", "b", 1), ("nan", "1", 1)],
)
def test_numbers_within_the_tolerance_do_not_differ(old, new, number):
    assert len(golden.differences({"a": old}, {"a": new}, tolerance=0.02)) == number


def test_equal_names_are_numbered(tmp_path):
    table = "name,value\nx,0.5\nx,0.25\n"
    assert list(golden._table(table, "t")) == [("t/name x/value", "0.5"), ("t/name x/value", "0.25")]
    save(tmp_path / "m" / "n.ipynb", *(({"text/plain": value}, "n", "") for value in ("1", "2")))
    assert golden.collect(tmp_path) == {"m/n/glue/n": "1", "m/n/glue/n (2)": "2"}


UNUSABLE = {
    "no notebook": (("write", "{}/x", "--results", "{}/empty"), "holds no executed notebook; run `make book`"),
    "in the repository": (("write", f"{paths.ROOT}/golden.txt", "--results", "{}/results"), "lies in the repository"),
    "no record": (("compare", "{}/wrong.txt", "{}/wrong.txt"), "is no record"),
    "no file": (("compare", "{}/absent", "{}/absent"), "No such file"),
}


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(("arguments", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_records_are_refused_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "wrong.txt").write_text("no record\n")
    (tmp_path / "empty").mkdir()
    assert golden.main([argument.format(tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (paths.ROOT / "golden.txt").exists()
