"""The page of every model type: what the table says stands on it, whatever an error's text holds."""

import csv
import re

import any_model
import pytest

from coupling_lib import paths

SCRIPT = paths.ROOT / "book" / "_static" / "any-model.js"


def test_page_lists_types_counts_and_accuracy_or_reason():
    empty = dict.fromkeys("mapping type class outcome route exact_to states_to why transformers".split(), "")
    page = any_model.any_model_page()
    with (paths.DATA / "families.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = re.findall(r"^\| `([\w.-]+)` \| ([\w ]+) \| \*\*([\w ]+)\*\* ", page, re.MULTILINE)
    assert shown == [(row["type"], row["mapping"], row["outcome"]) for row in rows]
    counts = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert [name for name, *_ in counts] == ["causal", "masked", "image classification", "image and text"]
    for name, types, *outcomes in counts:
        assert int(types) == sum(map(int, outcomes)) == sum(row["mapping"] == name for row in rows)
    assert f"The version of transformers is {rows[0]['transformers']}." in page
    row = empty | {"class": "LlamaForCausalLM", "route": "attention", "exact_to": "5e-07", "states_to": "4e-07"}
    assert any_model.outcome_text(row) == "`LlamaForCausalLM` by attention: Jacobians to 5e-07, states to 4e-07"
    text = any_model.outcome_text(empty | {"why": "a <b>|`x`* *y*"})
    assert text == "a &#60;b&#62;&#124;&#96;x&#96;&#42; &#42;y&#42;"


@pytest.mark.browser
def test_search_field_filters_rows_by_every_word(tab):
    everything = ["llama exact", "bart refused", "mbart exact"]
    rows = "".join(f"<tr><td>{text}</td></tr>" for text in everything)
    tab.set_content(f'<section id="the-types"><h2>The types</h2><table><tbody>{rows}</tbody></table></section>')
    tab.add_script_tag(content=SCRIPT.read_text(encoding="utf-8"))
    status, field = tab.get_by_role("status"), tab.get_by_role("searchbox", name="Find a type")
    assert status.inner_text() == "3 of 3 types"
    for typed, shown in (("BART", everything[1:]), ("bart  exact", everything[2:]), ("x y", []), ("", everything)):
        field.fill(typed)
        assert [row.inner_text() for row in tab.get_by_role("row").all()] == shown
        assert status.inner_text() == f"{len(shown)} of 3 types"
    assert not tab.wrong
