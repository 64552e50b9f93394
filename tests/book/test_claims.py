"""The page of claims: rules decide, numbers come from executed notebooks, and what is missing is named."""

import math
import re
from collections import Counter
from dataclasses import replace

import claims
import named_numbers
import pdf
import pytest
import scorecard
import verdicts
from browser import HTML, new_tab
from executed import executed

from companion.tables import photographs, quality, width
from coupling_lib import paths

CLAIMS = claims.read_claims()
TESTS = [test for one in CLAIMS for test in one["test"]]
LOCAL = {"effect": "depth-local", "claims": "above", "measured": "local {depth-local:.2f}, {depth.prompts} prompts"}
LATE = LOCAL | {"effect": "depth-late"}
PAPER = {"effect": "depth-paper", "claims": "above", "scope": "paper", "measured": "theirs {depth-paper:.1f}"}
STEP = {"condition": "training step"}


def claim(*tests, **changed):
    where = {"notebook": "depth", "section": "In numbers", "models": ["one", "two"]}
    fields = {"id": "more", "kind": "our question", "quantifier": "typical", "quote": "More is more", "where": "here"}
    return {"claim": "More is more", "paper": "more", **fields, **where, "test": tests, **changed}


def effect(name, value, error=0.1, n=20):
    return {name: value, f"{name}-error": error, f"{name}-n": n}


def remembering(results, model="one", value=1.0, **more):
    """Write the notebook of a model that remembers the local effect and whatever else."""
    executed(results / model / "depth.ipynb", effect("depth-local", value) | more)


def decided(one, results, scope="here"):
    found = [judged for model in one["models"] for judged in claims.judge(one, results, model, {"coupling": 0.3})]
    verdicts.correct([judged.evidence for judged in found])
    return claims.decided(one, found, scope), found


def evidence(results, margins=None, **given):
    (found,) = claims.judge(claim(LOCAL | given), results, "one", margins or {})
    return found.evidence


SPLIT = effect("depth-local", 1.0) | effect("depth-late", -1.0)
DECIDED = {
    "for": ([LOCAL], [effect("depth-local", 1.0)], "reproduced"),
    "against": ([LOCAL], [effect("depth-local", -1.0)], "contradicted"),
    "undecided": ([LOCAL], [effect("depth-local", 0.01)], "inconclusive"),
    "no numbers": ([LOCAL], [], "not measured here"),
    "models disagree": ([LOCAL], [effect("depth-local", value) for value in (1.0, -1.0)], "depends on the model"),
    "one model undecided": ([LOCAL], [effect("depth-local", value) for value in (1.0, 0.1)], "inconclusive"),
    "definitions disagree": ([LOCAL, LATE], [SPLIT], "depends on the definition"),
    "steps disagree": ([LOCAL | STEP, LATE | STEP], [SPLIT], "depends on the training step"),
    "the paper's alone": ([LOCAL, PAPER], [effect("depth-paper", 1.0)], "not measured here"),
}


@pytest.mark.parametrize(("tests", "of_models", "verdict"), DECIDED.values(), ids=DECIDED)
def test_numbers_of_executed_notebooks_decide_the_verdict(tmp_path, tests, of_models, verdict):
    for model, numbers in zip(("one", "two"), of_models, strict=False):
        executed(tmp_path / model / "depth.ipynb", numbers)
    assert decided(claim(*tests), tmp_path)[0] == verdict
    assert (decided(claim(*tests), tmp_path, "paper")[0] == "reproduced") == (PAPER in tests)


def test_more_prompts_count_instead_of_fewer(tmp_path):
    more = LOCAL | {"effect": "depth-many", "measured": "many {depth-many:.2f}"}
    one = claim(more, LOCAL | {"unless": "depth-many"})
    remembering(tmp_path, "one", -1.0, **effect("depth-many", 1.0, n=9))
    remembering(tmp_path, "two")
    verdict, found = decided(one, tmp_path)
    texts = [(judged.reading, judged.measured) for judged in found]
    assert verdict == "reproduced" and texts == [(0, "many 1.00"), (0, "local 1.00, 5 prompts")]
    shown = {"what": "size", "effect": "depth-many", "or": "depth-local", "form": ".1f"}
    ends = {f"{name}-{end}": 0.5 for name in ("depth-many", "depth-local") for end in ("low", "high")}
    found = [replace(judged, numbers=judged.numbers | ends) for judged in found]
    ((_, values),) = scorecard._shown(one | {"shown": [shown]}, found)
    assert [value.partition("\u00a0")[0] for value in values] == ["one: 1.0", "two: 1.0"]


def test_evidence_takes_null_margin_and_scale_from_notebooks(tmp_path):
    remembering(tmp_path, **{"depth-null": 0.5, "depth-null-error": 0.2, "depth-spread": 0.7})
    nulls = [{"than": "[depth-null]"}, {"than": "[depth-null]", "than_error": "[depth-spread]"}]
    found = [evidence(tmp_path, **given) for given in (*nulls, {"than": "2 * [depth-null]"})]
    assert [(one.null, one.null_error) for one in found] == [(0.5, 0.2), (0.5, 0.7), (1.0, 0.0)]
    given = ({"unit": "coupling"}, {"unit": "coupling", "margin": "0.1 * [depth-local]"}, {})
    margins = [evidence(tmp_path, {"coupling": 0.3}, **one).margin for one in given]
    assert margins == pytest.approx([0.3, 0.1, math.nan], nan_ok=True)
    remembering(tmp_path, value=0.6, **{"depth-local-skew": 0.2, "depth-local-freedom": 3.5})
    one = evidence(tmp_path, {"correlation": 0.1}, unit="correlation")
    assert (one.value, one.error, one.n, one.margin, one.limit) == (0.6, 0.1, 20, 0.1, 1)
    assert (one.fisher, one.skew, one.freedom) == (True, 0.2, 3.5)


def rows(page: str) -> list[str]:
    return re.split(r"^\(claim-[a-z0-9-]+\)=$", page.partition(scorecard.RULES)[0], flags=re.MULTILINE)[1:]


def given(part: str) -> list[tuple[str, str]]:
    return re.findall(r'data-place="(\w*)" data-verdict="([^"]+)"', part)


def test_page_without_results_has_rows_and_verdict_marks(tmp_path):
    empty = scorecard.claims_page(tmp_path)
    found = {text: row for row in rows(empty) if (text := row.strip().partition("\n")[0])}
    texts = [one["claim"] + f" *({one['kind']})*" * (one["kind"] != "the paper's claim") for one in CLAIMS]
    assert set(found) == set(texts) and len(rows(empty)) == len(CLAIMS) == 27
    for one, text in zip(CLAIMS, texts, strict=True):
        assert given(found[text]) == [("", "not measured here")]
        assert f"*What is asked* ({one['quantifier']})" in found[text] and "papermill notebooks/" in found[text]
    assert given(empty.partition("<table")[0]) == []
    assert re.search(r"(\d+) of \1 in SmolLM2-135M;", empty) and "suffice to test 0 claims" in empty
    first = claims.headline_ids()
    others = [one["id"] for one in CLAIMS if one["id"] not in first]
    assert re.findall(r"^\(claim-([a-z0-9-]+)\)=$", empty, flags=re.MULTILINE) == first + others
    assert first[0] == "blocks-share-directions"
    shapes = dict(re.findall(r'<symbol id="mark-([\w-]+)" viewBox="0 0 16 16">(.+?)</symbol>', empty))
    assert list(shapes) == [name.replace(" ", "-") for name in verdicts.VERDICTS]
    assert len(set(shapes.values())) == len(verdicts.VERDICTS)
    assert 'href="#mark-not-measured-here"></use></svg>not measured here</span>' in empty
    css = (paths.ROOT / "book" / "_static" / "claims.css").read_text(encoding="utf-8")
    for slug in shapes.keys() - {"not-measured-here"}:  # which is muted as all text beside it
        assert f".verdict-{slug} " in css or re.search(r'class\*="(verdict-[\w-]+)"', css)[1] in f"verdict-{slug}"


def test_the_counts_are_those_of_the_rows(tmp_path):
    name = "nulls-stricter-local"
    for model, value in (("smollm2-135m", 1.0), ("nano-neox", -1.0)):
        executed(tmp_path / model / "depth.ipynb", effect("depth-neighbours-spread", 0.01))
        ends = {f"{name}-low": value, f"{name}-high": value}
        executed(tmp_path / model / "nulls.ipynb", effect(name, value) | ends)
    page = scorecard.claims_page(tmp_path)
    local = next(row for row in rows(page) if "Coupling is local" in row)
    assert given(local) == [("decoder", "reproduced"), ("trained", "contradicted")]
    above, _, table = page.partition("<table")
    counted = re.findall(r'data-place="(\w+)" data-verdict="([^"]+)">(\d+) ', above)
    assert {(place, name): int(n) for place, name, n in counted} == Counter(one for one in given(table) if one[0])


def test_row_shows_headline_effect_and_folds_readings(tmp_path):
    ends = {"depth-local-low": 0.8, "depth-local-high": 1.2, "depth-local-chance": 0.25}
    shown = [{"what": "local more", "effect": "depth-local", "form": ".2f", "chance": "2 * [depth-local-chance]"}]
    remembering(tmp_path, "one", **ends)
    remembering(tmp_path, "two", **ends)
    both = claim(LOCAL | {"says": "it is more"}, shown=shown)
    one = both | {"models": ["one"]}
    row = scorecard.row(one, decided(one, tmp_path)[1], "more", tmp_path)
    before, _, folded = row.partition("<details")
    assert "Local more: 1.00\u00a0[0.80,\u00a01.20]; by chance 0.50" in before and "\nMore\n" in before
    assert ">1 network trained here: one</td>" in before and given(before) == [("trained", "reproduced")]
    assert "local 1.00, 5 prompts: **✓ for** (p < .001, corrected < .001)" in folded and "prompts" not in before
    assert folded.startswith(' class="claim-numbers short">\n<summary>Tests: 1 for<')
    assert "of “More is more”</span></summary>" in folded and "](../results/one/depth.ipynb#in-numbers)" in folded
    assert "*What would refute it:* more than half of the tests" in folded
    row = scorecard.row(both, decided(both, tmp_path)[1], "more", tmp_path)
    assert re.search(r"Local more:\s+- one: 1\.00\xa0\[", row) and ">2 networks trained here: one, two</td>" in row


def test_readings_of_one_prompt_or_beside_decide_nothing(tmp_path):
    executed(tmp_path / "one" / "depth.ipynb", {"depth-local": 0.3, "depth-local-n": 1.0, "depth-local-skew": 0.0})
    one = claim(LOCAL | {"says": "neighbours are more"}, models=["one"])
    assert decided(one, tmp_path) == ("not measured here", [])
    line = "neighbours are more: 1 value has no error, a verdict needs 2 or more; run with `-p prompts 2`"
    assert claims.unjudged(one, tmp_path, "one") == [line]
    assert f"  - {line}\n" in scorecard.row(one, [], "more", tmp_path)
    remembering(tmp_path, **effect("depth-cause", -1.0, n=9))
    beside = {"effect": "depth-cause", "claims": "above", "measured": "{depth-cause:.1f}", "beside": "it is a cause"}
    both = claim(LOCAL | {"says": "local"}, beside | {"says": "cause"}, models=["one"])
    verdict, found = decided(both, tmp_path)
    assert verdict == "reproduced" and [one.decides for one in found] == [True, False]
    row = scorecard.row(both, found, "more", tmp_path)
    assert "**beside it, below 0**" in row and "decides nothing: it is a cause." in row


def test_networks_count_once_and_suites_by_models(tmp_path):
    for name in ("one", "two"):
        remembering(tmp_path, name)
    assert claims.networks(decided(claim(LOCAL), tmp_path)[1]) == 2
    executed(tmp_path / "suite" / "depth.ipynb", effect("depth-local", 1.0, n=32))
    assert claims.networks(decided(claim(LOCAL, models=["suite", "one"]), tmp_path)[1]) == 33


@pytest.mark.browser
@pytest.mark.thorough
def test_claims_print_in_at_most_six_sheets(chromium, tmp_path):
    page = new_tab(chromium, viewport={"width": 1000, "height": 1400})
    address, written = (HTML / "book" / "claims.html").as_uri(), (HTML / "book" / "claims.html").read_text()
    kept = pdf.printed(page, address, tmp_path / "book.pdf")
    page.goto(address)
    page.pdf(path=tmp_path / "own.pdf", format="A4")
    for printed in (kept, pdf.PdfReader(tmp_path / "own.pdf")):
        text = " ".join(" ".join(sheet.extract_text() for sheet in printed.pages).split())
        short = written.count('class="claim-numbers short"')
        assert len(printed.pages) <= 6 and 0 < short == text.count("What is asked") < len(CLAIMS)
        assert text.count("Tests:") == len(CLAIMS) and "that matter" in text and "Holm" in text
    page.close()


def test_every_claim_states_paper_rules_section_and_effects():
    for one in CLAIMS:
        twin = (paths.ROOT / "notebooks" / f"{one['notebook']}.py").read_text(encoding="utf-8")
        assert re.search(rf"^# #+ {re.escape(one['section'])}$", twin, re.M), (one["claim"], one["section"])
        assert one["paper"] and one["models"]
    assert all(test["says"] and test["measured"] for test in TESTS)
    assert {test["claims"] for test in TESTS} <= set(verdicts.DIRECTIONS)
    assert {test.get("condition") for test in TESTS} <= {None, *verdicts.CONDITIONS}
    assert {test.get("scope", "here") for test in TESTS} <= {"here", "paper"}
    assert {test.get("unit") for test in TESTS} <= {None, *claims.read_margins()}
    assert all("margin" in test for test in TESTS if test["claims"] == "within")
    assert all(entry["why"] and entry["value"] > 0 for entry in claims.read_margins().values())
    for one in CLAIMS:
        measured = " ".join(test["measured"] for test in one["test"])
        for shown in one.get("shown", ()):
            assert shown["what"] and f"{{{shown['effect']}-low:" in measured, shown
        assert bool(one.get("shown")) == any("beside" not in test for test in one["test"]), one["id"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["claim"][:40])
def test_claim_numbers_are_remembered_by_their_notebooks(claim):
    texts = [str(t.get(part, "")) for t in claim["test"] for part in ("measured", "than", "than_error", "margin")]
    texts += [claim.get("needs", ""), claim.get("settle", "")]
    names = re.findall(r"[\[{]([a-z][\w.-]*-[\w.%-]+)", " ".join(texts))
    effects = [test[part] for test in claim["test"] for part in ("effect", "size") if part in test]
    names += [f"{effect}{end}" for effect in effects for end in ("", "-error", "-n")]
    for notebook in claims.notebooks_of(claim):
        kept = named_numbers.remembered(paths.ROOT / "notebooks" / f"{notebook}.ipynb")
        assert {n for n in names if n.startswith(f"{notebook}-")} <= set(kept)


def test_inconclusive_claims_say_what_would_settle_them():
    for asked, judged_here in claims.judge_all(paths.RESULTS):
        given = {claims.verdict_at(asked, judged_here, place) for place in claims.PLACES}
        assert "inconclusive" not in given or len(asked["settle"]) > 60, asked["id"]
        row = scorecard.row(asked, judged_here, "more", paths.RESULTS)
        assert ("*Power:*" in row and "we had 80 % power for" in row) == ("inconclusive" in given)


def test_pages_quote_power_at_the_level_of_the_claim():
    known = {"beyond-width": width.TESTS, "vit-accuracy": photographs.TESTS, "coupling-and-score": quality.TESTS}
    beside = {one["id"]: sum("beside" in test for test in one["test"]) for one in CLAIMS}
    assert known.items() <= beside.items()


def test_readings_are_expanded_and_faults_reported_in_lines():
    one, asked = claim(LOCAL | {"asked": ["quality, early"]}), {"quality, early": "More is more", "edits, skip": ""}
    lacks = "the claim 'More is more' has no "
    kinds, quantifiers = (f"; known are {', '.join(words)}" for words in (claims.KINDS, verdicts.QUANTIFIERS))
    for key, known in {"id": "", "quote": "", "where": "", "kind": kinds, "quantifier": quantifiers}.items():
        assert claims.wrong([one | {key: ""}], asked)[0] == f"{lacks}{key}{known}"
    unasked = "the registered question 'quality, early' is in no reading of the claim 'More is more'"
    assert claims.wrong([one, one], asked) == ["two claims have the id 'more'"]
    assert claims.wrong([claim(LOCAL)], asked) == [unasked]
    assert claims.wrong([one], {}) == ["no question 'quality, early' is registered"]
    unless = claim(LOCAL | {"unless": "depth-most"})
    assert claims.wrong([unless], {}) == [f"{lacks}reading of 'depth-most', which `unless` names"]
    # A claim's former wording is what a question may still name.
    for right in (one, one | {"claim": "More is much more", "former": ["More is more"]}):
        assert claims.wrong([right], asked) == []
    test = {"each": ["a", "b"], "effect": "depth-<each>", "asked": ["x, y"], "says": "<each>"}
    expanded = [(one["effect"], one["says"], one["asked"]) for one in claims._each(test)]
    assert expanded == [("depth-a", "a", ["x, y"]), ("depth-b", "b", ["x, y"])]
