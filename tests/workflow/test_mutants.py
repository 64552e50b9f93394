"""Mutants: what is changed, which tests are run, and what a comparison of two runs finds."""

import pytest

from coupling_lib.errors import ParameterError
from workflow import mutants
from workflow.mutants import CAUGHT, SURVIVED, Mutant

CASES = {
    "comparison": ("a = b < 3", {("<", "<="), ("3", "4")}),
    "over two lines": ("a = (b\n     - c)", {("-", "+")}),
    "after a bracket": ("a = (b * c) / d", {("*", "/"), ("/", "*")}),
    "and": ("a = b and c", {("and", "or")}),
    "not": ("a = not b", {("not ", "")}),
    "call": ("a = min(b)", {("min", "max")}),
    "fraction": ("a = 0.5", {("0.5", "1.5")}),
    "truth and text": ('"""1 < 2"""\na = True', set()),
    "behind a wide letter": ("é = b == c", {("==", "!=")}),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_mutants_change_each_operator_and_number(text, expected):
    found = list(mutants.mutants_of("a.py", text.encode()))
    assert {(one.before, one.after) for one in found} == expected
    for one in found:
        assert text.encode()[one.start :].startswith(one.before.encode())


def test_a_seed_draws_the_same():
    first = mutants.drawn(["coupling_lib/svd/*.py"], 20, seed=1)
    assert first == mutants.drawn(["coupling_lib/svd/*.py"], 20, seed=1)
    assert len(set(first)) == 20 and first != mutants.drawn(["coupling_lib/svd/*.py"], 20, seed=2)


def test_tests_of_a_file_are_its_mirrored_folder():
    found = mutants.tests_of("coupling_lib/svd/krylov.py", mutants.ROOT)
    assert set(found) >= {"coupling_lib/svd/krylov.py", "tests/coupling_lib/svd/test_triplets.py"}
    assert mutants.tests_of("book/verdicts.py", mutants.ROOT)[1:] == ["tests/book/test_verdicts.py"]


TEXT = b"""import os

def f(a=1):
    if (a
            > 2):
        return [
            a + 1,
        ]
"""


@pytest.mark.parametrize(
    ("line", "expected"), [(1, {1}), (3, {3, 4, 5, 6, 7, 8}), (5, {4, 5}), (7, {6, 7, 8})],
    ids=["statement", "function", "condition", "several lines"],
)  # fmt: skip
def test_statement_spans_what_executes_a_line(line, expected):
    assert set(mutants.statement(TEXT, line)) == expected


SECONDS = {"t.py::slow": 9.0, "t.py::quick": 1.0, "u.py::other": 2.0, "u.py::unrelated": 0.5}
LINES = {"a.py": {"4": ["t.py::slow", "t.py::quick"], "6": ["t.py::quick", "u.py"]}}


@pytest.mark.parametrize(
    ("line", "most", "expected"),
    [
        (5, 60, ["t.py::quick", "t.py::slow"]),
        (5, 5, ["t.py::quick"]),
        (5, 0.1, ["t.py::quick"]),
        (7, 60, ["u.py::unrelated", "t.py::quick", "u.py::other"]),
        (1, 60, ["u.py::unrelated", "t.py::quick", "u.py::other", "t.py::slow"]),
    ],
    ids=["quick ones first", "within the time", "at least one", "a whole file for its fixture", "all for an import"],
)
def test_executed_lines_choose_the_tests(line, most, expected):
    executed = mutants.Executed(LINES, SECONDS)
    assert executed.tests(Mutant("a.py", line, 0, "1", "2"), TEXT, most) == expected
    assert executed.tests(Mutant("b.py", line, 0, "1", "2"), TEXT, most) == []


def _project(root):
    """Write one function, a fixture for two tests that call it, and a test that does not."""
    source, test = root / "room" / "part.py", root / "tests" / "room" / "test_part.py"
    for path in (source, test):
        path.parent.mkdir(parents=True)
    source.write_text("def value(a):\n    if a:\n        return 2 * 3\n    return 4 + 5\n")
    test.write_text(
        "import pytest\nfrom room.part import value\n\n"
        "@pytest.fixture(scope='module')\ndef nine():\n    return value(0)\n\n"
        "def test_six():\n    assert value(1) == 6\n\n"
        "def test_nine(nine):\n    assert nine\n\ndef test_nothing():\n    pass\n"
    )
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n  browser\n  thorough\n")
    (root / "workflow").symlink_to(mutants.ROOT / "workflow")
    return source


def test_mutants_are_tried_by_tests_that_execute_them(tmp_path):
    source = _project(tmp_path)
    text = source.read_text()
    executed = mutants.Executed.record(["room/part.py"], tmp_path, jobs=1)
    test = "tests/room/test_part.py"
    assert executed.lines["room/part.py"]["3"] == [f"{test}::test_six"]
    assert executed.lines["room/part.py"]["4"] == [test]
    assert executed.seconds.keys() == {f"{test}::{name}" for name in ("test_six", "test_nine", "test_nothing")}
    star, plus = (text.index(symbol) for symbol in "*+")
    assert mutants.judge(Mutant("room/part.py", 3, star, "*", "/"), tmp_path, executed) == CAUGHT
    assert mutants.judge(Mutant("room/part.py", 4, plus, "+", "-"), tmp_path, executed) == SURVIVED
    assert source.read_text() == text


def _table(path, ends):
    rows = [f"a.py,{line},0,<,<=,{end}" for line, end in enumerate(ends, start=1)]
    path.write_text("\n".join(["file,line,start,before,after,end", *rows]) + "\n")
    return path


def test_compare_names_mutants_no_longer_caught(tmp_path, capsys):
    before = _table(tmp_path / "before.csv", [CAUGHT, CAUGHT, SURVIVED])
    after = _table(tmp_path / "after.csv", [CAUGHT, SURVIVED, SURVIVED])
    assert mutants.main(["compare", str(before), str(after)]) == 1
    assert "no longer caught: a.py:2: '<' -> '<='" in capsys.readouterr().out
    assert mutants.main(["compare", str(before), str(before)]) == 0
    with pytest.raises(ParameterError, match="no mutant in common"):
        mutants.compare(_table(tmp_path / "before.csv", [CAUGHT]), tmp_path / "missing.csv")
