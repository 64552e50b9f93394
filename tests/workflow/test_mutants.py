"""Mutants: what is changed, which tests are asked, and what a comparison of two runs finds."""

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


def test_tests_of_a_file_begin_with_its_mirror():
    found = mutants.tests_of("coupling_lib/svd/krylov.py", mutants.ROOT)
    assert found[:2] == ["coupling_lib/svd/krylov.py", "tests/coupling_lib/svd/test_krylov.py"]
    assert "tests/coupling_lib/svd/test_triplets.py" in found
    assert "tests/book/test_verdicts.py" in mutants.tests_of("book/verdicts.py", mutants.ROOT)


@pytest.mark.parametrize(("expected", "end"), [("6", CAUGHT), ("", SURVIVED)], ids=["asserted", "not asserted"])
def test_judge_runs_the_tests_and_restores_the_file(tmp_path, expected, end):
    source, test = tmp_path / "room" / "part.py", tmp_path / "tests" / "room" / "test_part.py"
    for path in (source, test):
        path.parent.mkdir(parents=True)
    source.write_text("VALUE = 2 * 3\n")
    test.write_text(
        f"from room import part\n\ndef test_value():\n    assert str(part.VALUE).startswith({expected!r})\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  browser\n  thorough\n")
    assert mutants.judge(Mutant("room/part.py", 1, 10, "*", "/"), tmp_path) == end
    assert source.read_text() == "VALUE = 2 * 3\n"


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
