"""The map of the paper's figures and tables: all are there, and what it names exists."""

import ast
import re
import shlex
from functools import cache
from importlib import import_module

import complete
import paper_map
import pytest
from chapters import parameters_of

from companion.notebook.parameters import RULES
from companion.training.__main__ import _parser
from coupling_lib.models.registry import entries
from coupling_lib.paths import ROOT

# What figures draw that show the paper's own values: digitised points, benchmarks of its models, a drawing.
PAPERS_OWN = ("points", "board", "shaped", "take_construction")
ROWS = paper_map.read_map()
KNOWN_MODELS = {entry.alias for entry in entries()}

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["item"])


@cache
def twin_of(notebook: str) -> str:
    return (ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")


@cache
def declared(notebook: str) -> dict[str, object]:
    """The parameters of a notebook with their defaults, from its twin."""
    body = ast.parse(twin_of(notebook)).body
    return {node.target.id: ast.literal_eval(node.value) for node in body if isinstance(node, ast.AnnAssign)}


@cache
def shown_in(notebook: str) -> dict[str, list[str]]:
    """By its name each figure that the twin shows: the function that draws it, and what it draws."""
    nodes = ast.walk(ast.parse(twin_of(notebook)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "show"]
    named = {ast.literal_eval(word.value): call for call in calls for word in call.keywords if word.arg == "name"}
    return {name: [ast.unparse(argument) for argument in call.args] for name, call in named.items()}


def test_every_item_of_the_paper_appears_once():
    figures = [*(f"1{part}" for part in "abcde"), "2", "3", "4", "5a", "5b", "6a", "6b", *map(str, range(7, 37))]
    items = [item for row in ROWS for item in paper_map.items_of(row)]
    assert items == [*figures, *(f"T{number}" for number in range(1, 5))]
    assert paper_map.items_of({"item": "1c-e"}) == ["1c", "1d", "1e"]
    assert paper_map.items_of({"item": "36"}) == ["36"]
    assert [paper_map.named(item) for item in ("T1", "3", "1c-e")] == ["table 1", "figure 3", "figures 1c-e"]


@each_row
def test_what_a_row_names_exists_and_draws_it(row):
    names, functions = (paper_map.listed(row, column) for column in ("figures", "functions"))
    assert row["shows"] and row["state"] in paper_map.STATES
    assert (row["page"] in complete.listed()) == (row["state"] != "not drawn")
    for module, _, function in (paper_map.in_full(name).rpartition(".") for name in functions):
        assert callable(getattr(import_module(module), function))
    if not row["notebook"]:
        assert not functions and not names and not row["parameters"]
    else:
        assert row["page"].endswith(f"/{row['notebook']}")
        if row["item"].startswith("T"):
            assert not names and all(name.partition(".")[2] in twin_of(row["notebook"]) for name in functions)
        else:
            drawn_by = [shown_in(row["notebook"])[name][0].rpartition(".")[2] for name in names]
            assert [name.split(".")[1] for name in functions] == drawn_by


@each_row
def test_its_commands_exist_and_would_be_accepted(row):
    given = parameters_of(row["parameters"])
    assert {given.get("model", ""), *given.get("others", "").split(",")} <= {"", *KNOWN_MODELS}
    for name, value in given.items():
        default = declared(row["notebook"])[name]
        # papermill reads what looks like a number as one.
        read = int(value) if re.fullmatch(r"-?\d+", value) else value
        assert RULES[name].accepts(read), (name, value)
        assert read != default, f"{name} is {value} anyway"
    if not row["before"]:
        assert "table" not in parameters_of(row["parameters"])
        return
    program, *given = shlex.split(row["before"])
    if program != "-m":
        assert (ROOT / program).is_file()
        assert set(given) <= KNOWN_MODELS
        return
    module, *given = given
    options = _parser().parse_args(given)
    assert module == "companion.training" and str(options.table) == parameters_of(row["parameters"])["table"]


@each_row
def test_one_rule_gives_every_item_its_state(row):
    assert row["caption"] in ("", "lost", "partly lost")
    # Nothing can be faithful to what is not known, and where it is not known, the caption is lost.
    unknown = row["shows"].startswith("unknown; taken for ")
    assert (row["state"] == "lost") == unknown and (not unknown or row["caption"] == "lost")
    if row["state"] in ("partly", "not drawn") or row["caption"] == "partly lost":
        assert row["note"], "what is missing, or was chosen, is noted"
    if row["state"] == "faithful" and not row["item"].startswith("T"):
        data = [shown_in(row["notebook"])[name][1] for name in paper_map.listed(row, "figures")]
        own = [word for word in PAPERS_OWN if any(word in taken for taken in data)]
        assert paper_map.by_command(row) or own, "it has a command, or shows values of the paper's own models"
    if re.search(r"(further|three|all|two .*) models", row["shows"]) and row["notebook"] != "generalization":
        several = "others" in parameters_of(row["parameters"]) or "how many, our source does not say" in row["note"]
        assert several, "several models side by side are named in the command"


def test_page_lists_items_commands_and_lost_captions_once():
    page = paper_map.map_page()
    # Each item is in the index, where the book's search finds "figure 3" and "table 1".
    items = re.findall(r"\{index\}`(\d+\w?|T\d) <!(figure|table) (\d+\w?)>`", page)
    assert [item for item, *_ in items] == [item for row in ROWS for item in paper_map.items_of(row)]
    assert all(item == ("T" if kind == "table" else "") + number for item, kind, number in items)
    assert len(re.findall(r"^\| \{index\}", page, re.MULTILINE)) == len(ROWS)
    commands = re.findall(r"^\.venv/bin/papermill .+$", page, re.MULTILINE)
    assert len(commands) >= 20
    blocks = re.findall(r"^# (?:figure|table).+\n((?:\.venv.+\n)+)", page, re.MULTILINE)
    assert len(blocks) == len(set(blocks)) and sum(block.count("papermill") for block in blocks) == len(commands)
    before = ".venv/bin/python -m companion.training vit grid cifar10 --data path/to/cifar-10-batches-py"
    assert f"{before} --table cifar10.csv\n.venv/bin/papermill notebooks/vision.ipynb out.ipynb -p table" in page
    assert ".venv/bin/papermill notebooks/depth.ipynb out.ipynb -p model llama3-8b -p precision nf4" in page
    assert "{py:func}`depth.draw_matrices <companion.figures.depth.draw_matrices>`" in page
    assert "[depth-matrices](../results/smollm2-135m/depth.ipynb), of SmolLM2-135M-Instruct (Q4_1) |" in page
    right = [row for row in ROWS if row["state"] == "faithful"]
    by_command = [row for row in right if paper_map.by_command(row)]
    drawn, faithful, run = (sum(len(paper_map.items_of(row)) for row in some) for some in (ROWS, right, by_command))
    own = faithful - run
    assert page.startswith(f"Of {drawn} figures and tables, {own} stand in this book with the paper's own values. For ")
    assert f"For {run} more there is a command" in page and own == 8
    assert page.count(", by a command not run here") == len(by_command)
    instead = re.search(r"for other models: (.+?)\. ", page)[1]
    assert sum(map(int, re.findall(r"(?:^|, )(\d+) for ", instead))) == run
    assert re.findall(r"^- \*(.+)\*: \w", page, re.MULTILINE) == list(paper_map.STATES)
    lost = re.findall(r"captions or bodies of (.+) are lost", page)
    assert lost == ["figures 11, 13, 14, 16, 24 and of tables 1, 2, 3, 4"]
