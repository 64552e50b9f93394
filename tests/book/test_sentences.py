"""Sentences that compare are bound to the numbers of the build: a turned number or an edited sentence is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import named_numbers
import nbformat
import page_text
import pandas as pd
import pytest
import sentences
from comparing import compares
from executed import executed, figure

from companion.figures.show import BookFigure
from coupling_lib import paths
from coupling_lib.errors import ParameterError

BOOK = paths.ROOT / "book"


def notebook(results: Path, model: str, numbers: dict[str, float], *figures: BookFigure) -> None:
    executed(results / model / "depth.ipynb", numbers, figures)


def checked(tmp_path: Path, said: str, table: str, **shown: tuple[str, ...]) -> list[str]:
    (tmp_path / "depth.toml").write_text(table, encoding="utf-8")
    found = page_text.sentences_of(said)
    page = sentences.Page("depth", {one: shown.get("models", ()) for one in found})
    return sentences.check([page], tmp_path, tmp_path)[0]


BOUND = """
model = "a"
[[sentence]]
says = "Blocks are coupled twice as much as chance."
if = "[depth-coupled] > 2 * [depth-null]"
"""


def test_a_turned_number_fails_with_page_sentence_condition_and_values(tmp_path):
    said = "Blocks are coupled *twice* as much\nas [chance](nulls.md)."
    notebook(tmp_path, "a", {"depth-coupled": 0.3, "depth-null": 0.1})
    assert checked(tmp_path, said, BOUND) == []
    notebook(tmp_path, "a", {"depth-coupled": 0.15, "depth-null": 0.1})
    (wrong,) = checked(tmp_path, said, BOUND)
    assert wrong.splitlines() == [
        "depth: 'Blocks are coupled twice as much as chance.'",
        "  is not true in this build: [depth-coupled] > 2 * [depth-null]",
        "    depth-coupled = 0.15",
        "    depth-null = 0.1",
    ]


def test_a_number_that_is_missing_fails(tmp_path):
    notebook(tmp_path, "a", {"depth-coupled": 0.3})
    (wrong,) = checked(tmp_path, "Blocks are coupled twice as much as chance.", BOUND)
    assert "cannot be checked: there is no depth-null in" in wrong


def test_an_edited_sentence_fails_and_the_nearest_is_named(tmp_path):
    notebook(tmp_path, "a", {"depth-coupled": 0.3, "depth-null": 0.1})
    new, lost = checked(tmp_path, "Blocks are coupled three times as much as chance.", BOUND)
    assert new.startswith("depth: a sentence compares and has no condition: 'Blocks are coupled three times")
    assert "does not stand on the page: 'Blocks are coupled twice as much as chance.'" in lost
    assert lost.endswith("the nearest there is 'Blocks are coupled three times as much as chance.'")


def test_a_sentence_that_compares_is_bound_or_free(tmp_path):
    said = "Nothing is larger."
    assert len(checked(tmp_path, said, "")) == 1
    assert checked(tmp_path, said, '[free]\nquestion = ["Nothing is larger."]\n') == []


def test_a_notebooks_sentence_has_to_hold_for_every_model(tmp_path):
    notebook(tmp_path, "a", {"depth-coupled": 0.3, "depth-null": 0.1})
    notebook(tmp_path, "b", {"depth-coupled": 0.1, "depth-null": 0.1})
    table = tmp_path / "notebooks-depth.toml"
    table.write_text(BOUND.replace('model = "a"', ""), encoding="utf-8")
    page = sentences.Page("notebooks-depth", {"Blocks are coupled twice as much as chance.": ("a", "b")})
    (wrong,) = sentences.check([page], tmp_path, tmp_path)[0]
    assert wrong.startswith("notebooks-depth for b: ")


def test_the_table_under_a_figure_is_a_condition_too(tmp_path):
    rows = {"network": ["trained", "trained", "untrained"], "block": [1, 2, 1], "coupling": [0.1, 0.3, 0.2]}
    notebook(tmp_path, "a", {}, figure("depth-map", pd.DataFrame(rows)))
    table = """
[[sentence]]
says = "Coupling rises."
if = "rises(column('a/depth-map', 'coupling', network='trained'))"
"""
    assert checked(tmp_path, "Coupling rises.", table) == []
    (wrong,) = checked(tmp_path, "Coupling rises.", table.replace("rises(", "falls("))
    assert "column('a/depth-map', 'coupling', network='trained') = 0.1, 0.3" in wrong
    (wrong,) = checked(tmp_path, "Coupling rises.", table.replace("'trained'", "'new'"))
    assert "cannot be checked: there is no rows of a/depth-map" in wrong


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (BOUND + '[free]\nmachine = ["Blocks are coupled twice as much as chance."]', "names a sentence twice"),
        ('[free]\nwhim = ["It grows."]', r"gives the reasons \['whim'\]"),
        ("model =", "is no TOML"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, table, said):
    with pytest.raises(ParameterError, match=said):
        checked(tmp_path, "It grows.", table)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 < [a] < 0.5", True),
        ("0.1 < [b] < [a] < 0.3", False),
        ("[a] > [b] and not [a] > 1", True),
        ("[a] > 1 or [b] > 1", False),
        ("sum(([a] > 0.3, [b] > 0.3)) == 1", True),
        ("all((1, 2, 3) == (1, 2, 3))", True),
        ("max([a], [b]) - min((0.1, 0.3))", 0.3),
        ("[c] == 'trained'", True),
    ],
)
def test_conditions_compare_numbers(expression, value):
    assert named_numbers.evaluated(expression, {"a": 0.4, "b": 0.2, "c": "trained"}) == pytest.approx(value)


@pytest.mark.parametrize("expression", ["__import__('os')", "[a].real", "[x for x in (1,)]", "a ="])
def test_conditions_are_nothing_else(expression):
    with pytest.raises((ParameterError, KeyError)):
        named_numbers.evaluated(expression, {"a": 0.4})


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        ("# A *b* `c`", ["A b c"]),
        ("It is {glue:text}`../results/m/n.ipynb::x:.2f`\n({term}`coupling <couple>`). Next.",
         ["It is {} (coupling).", "Next."]),
        ("As {cite:t}`a` and {py:func}`~coupling_lib.lens` say, e.g. here.",
         ["As and coupling_lib.lens say, e.g. here."]),
        (":::{admonition} More `x`\n:class: finding\n\nLess. $K=1$ is.\n:::", ["More x", "Less.", "$K=1$ is."]),
        ("| a | b |\n| --- | --- |\n| one more | two |", ["a", "b", "one more", "two"]),
        ("```{glossary}\nterm\n    A word. Another.\n```", ["term", "A word.", "Another."]),
        ("```{raw} html\n<p>Far <b>more</b>.</p><script>less</script>\n```", ["Far more."]),
        ('"Step." raises it.', ['"Step." raises it.']),
        ("{numref}`fig-more-turns` shows it.", ["Figure {} shows it."]),
    ],
)  # fmt: skip
def test_a_page_is_read_as_its_reader_sees_it(markdown, said):
    assert page_text.sentences_of(markdown) == said


def test_numbers_that_a_program_writes_are_left_out_and_its_tables_are_records():
    made = "At most 1.5 of 24 models of K = 10, gpt2 too.\n\n| more |\n| --- |\n| less |\n"
    assert page_text.sentences_made(made) == ["At most {} of {} models of K = {} gpt2 too."]


def test_every_sentence_of_the_pages_that_compares_is_bound_or_free():
    pages = [page for page in sentences.pages_of(Path("nowhere")) if not page.name.startswith(("made-", "notebooks-"))]
    assert len(pages) > 20
    wrong = [one for page in pages for one in sentences.unlisted(page, sentences.read_table(table_of(page.name)))]
    assert wrong == []


def test_every_sentence_of_the_committed_notebooks_that_compares_is_bound_or_free():
    for file in sorted((paths.ROOT / "notebooks").glob("*.ipynb")):
        page = sentences.Page(f"notebooks-{file.stem}", dict.fromkeys(page_text.sentences_in(file), ()))
        wrong = sentences.unlisted(page, sentences.read_table(table_of(page.name)))
        # Which sentences a notebook shows depends on the model; here it ran for one of them.
        assert [one for one in wrong if "has no condition" in one] == []


def test_every_table_belongs_to_a_page():
    names = {file.stem for file in BOOK.glob("*.md")} | {
        f"notebooks-{file.stem}" for file in (paths.ROOT / "notebooks").glob("*.py")
    }
    kept = {file.stem for file in sentences.TABLES.glob("*.toml") if not file.stem.startswith("made-")}
    assert kept - names == set()


def table_of(page: str) -> Path:
    return sentences.TABLES / f"{page}.toml"


@pytest.mark.parametrize(
    "said",
    ["Both are less than a tenth of the coupling.", "It rises, peaks and falls.", "All but two blocks.", "No lead.",
     "Nothing of it.", "Twice the width.", "Two of the three models.", "Above chance."],
)  # fmt: skip
def test_words_that_compare_are_known(said):
    assert compares(said)
    assert not compares("This is the block whose vectors are used.")


@pytest.mark.browser
@pytest.mark.thorough  # `make book` runs the program, and ends where a sentence is false
def test_the_built_book_has_no_false_sentence_and_says_how_many_are_bound():
    # Tests measure into a folder of their own; the book lies in the project's.
    place = {"COUPLING_RESULTS": str(paths.ROOT / "results"), "PYTHONPATH": str(paths.ROOT)}
    done = subprocess.run(
        [sys.executable, "book/sentences.py"],
        cwd=paths.ROOT, env=os.environ | place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert int(re.fullmatch(r" +(\d+) sentences bound, \d+ free\n", done.stdout)[1]) > 150


@pytest.mark.browser
def test_one_turned_number_of_the_built_book_stops_its_build(tmp_path):
    for model in ("smollm2-135m", "nano-neox"):
        (tmp_path / model).mkdir()
        for name in ("precision", "prompts"):
            shutil.copy(paths.ROOT / "results" / model / f"{name}.ipynb", tmp_path / model)
    (tmp_path / "nano-llama").mkdir()
    shutil.copy(paths.ROOT / "results" / "nano-llama" / "prompts.ipynb", tmp_path / "nano-llama")
    page = next(page for page in sentences.pages_of(tmp_path) if page.name == "precision")
    assert sentences.check([page], tmp_path)[0] == []
    file = tmp_path / "nano-neox" / "precision.ipynb"
    whole = nbformat.read(file, as_version=4)
    for output in (output for cell in whole.cells for output in cell.get("outputs", [])):
        if output.get("metadata", {}).get("scrapbook", {}).get("name") == "precision-change-nf4":
            output["data"] = dict.fromkeys(output["data"], "-0.02")
    nbformat.write(whole, file)
    wrong = sentences.check([page], tmp_path)[0]
    assert any("precision: 'Almost: four bits move coupling by less than a tenth of it'" in one for one in wrong)
    assert all("nano-neox/precision-change-nf4 = -0.02" in one for one in wrong)
