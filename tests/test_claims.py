"""The page of claims: rules decide, numbers come from executed notebooks, and what is missing is said to be."""

from __future__ import annotations

import re

import claims
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from coupling_lib import paths
from coupling_lib.errors import ParameterError

CLAIMS = claims.read_claims()


def executed(folder, name, numbers):
    """A notebook as papermill leaves it: parameters, a heading, remembered numbers."""
    outputs = [
        new_output(
            "display_data",
            {"application/papermill.record/text/plain": repr(value)},
            metadata={"scrapbook": {"name": key, "mime_prefix": "application/papermill.record/"}},
        )
        for key, value in numbers.items()
    ]
    cells = [
        new_code_cell("prompts: int = 12  # how many", metadata={"tags": ["parameters"]}),
        new_code_cell("prompts = 5", metadata={"tags": ["injected-parameters"]}),
        new_markdown_cell("# Title\n\n## In numbers"),
        new_code_cell("pass", outputs=outputs),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ("[a] > [b]", True),
        ("[b] > max([a], 0.5)", False),
        ("[a] > [b] and [b] > 0", True),
        ("[b] > [a] or abs(0 - [b]) < 1", True),
        ("0 < [b] < [a]", True),
        ("[a] > 2 * ([b] + 1) / 4 - 1", True),
        ("[a] > [missing]", None),
    ],
)
def test_a_rule_is_a_comparison_of_numbers(rule, verdict):
    assert claims.decide(rule, {"a": 0.4, "b": 0.2}) is verdict


@pytest.mark.parametrize("rule", ["__import__('os').getcwd()", "[a].real > 0", "print([a])", "(lambda: 1)()"])
def test_a_rule_that_is_more_than_arithmetic_is_refused(rule):
    with pytest.raises(ParameterError, match="a rule holds"):
        claims.decide(rule, {"a": 1.0})


CLAIM = {
    "claim": "More is more",
    "notebook": "depth",
    "section": "In numbers",
    "models": ["one", "two"],
    "test": [
        {"rule": "[depth-high] > [depth-low]", "measured": "high {depth-high:.2f}, {depth.prompts} prompts"},
        {"rule": "[depth-low] > 0", "measured": "low {depth-low:.1f}"},
    ],
}


@pytest.mark.parametrize(
    ("low", "verdict"), [(0.1, "reproduced"), (-1.0, "depends on the definition"), (None, "not measured here")]
)
def test_all_some_or_none_of_the_rules_decide(tmp_path, low, verdict):
    if low is not None:
        executed(tmp_path / "one", "depth", {"depth-high": 0.5, "depth-low": low})
    outcome = claims.judge(CLAIM, tmp_path, "one")
    assert outcome.verdict == verdict
    if low == 0.1:
        assert outcome.measured == ("high 0.50, 5 prompts (holds)", "low 0.1 (holds)")
    if low == -1.0:
        assert outcome.measured[1] == "low -1.0 (does not hold)"


def test_a_claim_whose_rules_all_fail_is_not_reproduced(tmp_path):
    executed(tmp_path / "one", "depth", {"depth-high": -2.0, "depth-low": -1.0})
    assert claims.judge(CLAIM, tmp_path, "one").verdict == "not reproduced"


def test_models_that_differ_are_named_and_one_that_was_not_run_does_not_count():
    good, bad, none = (
        claims.Outcome(n, v, ()) for n, v in zip("abc", (claims.REPRODUCED, claims.NOT, claims.MISSING), strict=True)
    )
    assert claims.verdict([good, none]) == "reproduced" and claims.verdict([none]) == "not measured here"
    assert claims.verdict([good, bad]) == "reproduced (a); not reproduced (b)"


def test_without_any_result_the_page_says_so_and_gives_commands(tmp_path):
    page = claims.claims_page(tmp_path)
    rows = [line for line in page.splitlines() if re.match(r"\| \d+\. ", line)]
    assert len(rows) == len(CLAIMS) >= 14
    assert all("**not measured here**" in row and "papermill notebooks/" in row for row in rows)


def test_every_claim_states_the_paper_its_rules_and_an_existing_section():
    for claim in CLAIMS:
        twin = (paths.ROOT / "notebooks" / f"{claim['notebook']}.py").read_text(encoding="utf-8")
        assert re.search(rf"^# #+ {re.escape(claim['section'])}$", twin, re.M), (claim["claim"], claim["section"])
        assert claim["paper"] and claim["models"] and all(t["says"] and t["measured"] for t in claim["test"])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["claim"][:40])
def test_every_number_of_a_claim_is_one_that_its_notebook_remembers(claim):
    names = re.findall(r"[\[{]([a-z][\w.-]*-[\w.%-]+)", " ".join(t["rule"] + t["measured"] for t in claim["test"]))
    for notebook in claims._notebooks(claim):
        kept = claims.remembered(paths.ROOT / "notebooks" / f"{notebook}.ipynb")
        missing = {n for n in names if n.startswith(f"{notebook}-")} - set(kept)
        assert not missing


def test_the_anchor_of_a_heading_is_the_one_the_book_makes():
    assert claims.slug("Across prompts, and with distance") == "across-prompts-and-with-distance"
