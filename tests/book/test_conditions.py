"""Headings that compare are bound to the numbers of the build: a turned number or an edited heading is found."""

import conditions
import named_numbers
import page_text
import pytest
from executed import executed

from coupling_lib.errors import ParameterError

SENTENCE = "Blocks are coupled twice as much as chance"
BOUND = conditions.Condition("depth", "a", SENTENCE, "[depth-coupled] > 2 * [depth-null]")


def written(tmp_path, heading: str, **numbers: float):
    (tmp_path / "depth.md").write_text(f"# {heading}\n", encoding="utf-8")
    executed(tmp_path / "a" / "depth.ipynb", {f"depth-{name}": value for name, value in numbers.items()})
    return conditions.wrong(BOUND, tmp_path, tmp_path)


def test_failed_conditions_and_edited_headings_are_reported(tmp_path):
    heading = "Blocks are coupled *twice* as much as [chance](nulls.md)"
    assert written(tmp_path, heading, coupled=0.3, null=0.1) is None
    assert written(tmp_path, heading, coupled=0.15, null=0.1) == (
        f"depth: {SENTENCE!r}\n  is not true in this build: [depth-coupled] > 2 * [depth-null]\n"
        "    depth-coupled = 0.15\n    depth-null = 0.1"
    )
    assert "cannot be checked: there is no depth-null in" in written(tmp_path, SENTENCE, coupled=0.3)
    message = written(tmp_path, "Blocks are coupled", coupled=0.3, null=0.1)
    assert message == f"depth: a sentence of conditions.toml does not stand on the page: {SENTENCE!r}"


def test_a_wrong_table_is_refused_in_one_line(tmp_path):
    many = "[[sentence]]\npage=''\nmodel=''\nsays=''\nif=''\n" * 61
    tables = {"[[sentence]]\npage = 'depth'": "'model'; each", "sentence =": "each", many: "61 conditions; at most 60"}
    for table, message in tables.items():
        (tmp_path / "conditions.toml").write_text(table, encoding="utf-8")
        with pytest.raises(ParameterError, match=message):
            conditions.read(tmp_path / "conditions.toml")


def test_committed_conditions_quote_sentences_of_their_page():
    found = conditions.read(conditions.BOOK / "conditions.toml")
    assert 40 < len(found) <= conditions.MOST
    for each in found:
        sentences = page_text.sentences_of((conditions.BOOK / f"{each.page}.md").read_text(encoding="utf-8"))
        assert each.sentence in sentences
        assert len(each.expression.split()) < 110


def test_conditions_compare_numbers_and_nothing_else():
    wanted = {
        "0.1 < [a] < 0.5": True,
        "0.1 < [b] < [a] < 0.3": False,
        "[a] > [b] and not [a] > 1": True,
        "[a] > 1 or [b] > 1": False,
        "sum(([a] > 0.3, [b] > 0.3)) == 1": True,
        "all((1, 2, 3) == (1, 2, 3))": True,
        "max([a], [b]) - min((0.1, 0.3))": 0.3,
        "[c] == 'trained'": True,
    }
    numbers = {"a": 0.4, "b": 0.2, "c": "trained"}
    assert {text: named_numbers.evaluated(text, numbers) for text in wanted} == pytest.approx(wanted)
    for expression in ("__import__('os')", "[a].real", "[x for x in (1,)]", "a ="):
        with pytest.raises((ParameterError, KeyError)):
            named_numbers.evaluated(expression, {"a": 0.4})


def test_numbers_are_computed_and_nothing_else():
    wanted = {0.5: 0.5, "[a]": 0.4, "(1 + [b]) / 2": 0.6, "max([a], 0.5) - abs(0 - [b])": 0.3, "[missing]": None}
    assert {number: named_numbers.computed(number, {"a": 0.4, "b": 0.2}) for number in wanted} == pytest.approx(wanted)
    for number in ("__import__('os').getcwd()", "[a].real", "print([a])", "(lambda: 1)()", "[a] > 0"):
        with pytest.raises(ParameterError, match="a number is"):
            named_numbers.computed(number, {"a": 1.0})


def test_page_sentences_are_read_as_rendered():
    sentences = {
        "# A *b* `c`": ["A b c"],
        "It is {glue:text}`../results/m/n.ipynb::x:.2f`\n({term}`c <couple>`). Next.": ["It is {} (c).", "Next."],
        "As {cite:t}`a` and {py:func}`~coupling_lib.lens` say, e.g. here.": [
            "As and coupling_lib.lens say, e.g. here."
        ],
        ":::{admonition} More `x`\n:class: finding\n\nLess. $K=1$ is.\n:::": ["More x", "Less.", "$K=1$ is."],
        "| a | b |\n| --- | --- |\n| one more | two |": ["a", "b", "one more", "two"],
        "```{glossary}\nterm\n    A word. Another.\n```": ["term", "A word.", "Another."],
        "```{raw} html\n<p>Far <b>more</b>.</p><script>less</script>\n```": ["Far more."],
        '"Step." raises it.': ['"Step." raises it.'],
        "{numref}`fig-more-turns` shows it.": ["Figure {} shows it."],
    }
    assert {markdown: page_text.sentences_of(markdown) for markdown in sentences} == sentences
