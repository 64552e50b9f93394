"""The page of claims: rules decide, numbers come from executed notebooks, and what is missing is named."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import claims
import named_numbers
import pdf
import pytest
import scipy.stats
import scorecard
import verdicts
from browser import HTML, new_tab
from executed import executed

from companion.tables import photographs, quality, width
from coupling_lib import paths

CLAIMS = claims.read_claims()


def claim(*tests):
    where = {"notebook": "depth", "section": "In numbers", "models": ["one", "two"]}
    fields = {"id": "more", "kind": "our question", "quantifier": "typical", "quote": "More is more", "where": "here"}
    return {"claim": "More is more", "paper": "more", **fields, **where, "test": tests}


LOCAL = {"effect": "depth-local", "claims": "above", "measured": "local {depth-local:.2f}, {depth.prompts} prompts"}
PAPER = {"effect": "depth-paper", "claims": "above", "scope": "paper", "measured": "theirs {depth-paper:.1f}"}


def remembering(folder, name, value, error=0.1, n=20, **more):
    executed(folder / "depth.ipynb", {name: value, f"{name}-error": error, f"{name}-n": n} | more)


def decided(one, results, scope="here"):
    found = [judged for model in one["models"] for judged in claims.judge(one, results, model, {"coupling": 0.3})]
    verdicts.correct([judged.evidence for judged in found])
    return claims.decided(one, found, scope), found


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "reproduced"), (-1.0, "contradicted"), (0.01, "inconclusive")])
def test_evidence_comes_from_an_executed_notebook_and_decides(tmp_path, value, verdict):
    remembering(tmp_path / "one", "depth-local", value)
    given, (only,) = decided(claim(LOCAL), tmp_path)
    assert given == verdict and only.measured == f"local {value:.2f}, 5 prompts"
    assert (only.evidence.value, only.evidence.error, only.evidence.n) == (value, 0.1, 20)


def test_more_prompts_count_instead_of_fewer(tmp_path):
    more = LOCAL | {"effect": "depth-many", "measured": "many {depth-many:.2f}"}
    one = claim(more, LOCAL | {"unless": "depth-many"})
    many = {"depth-many": 1.0, "depth-many-error": 0.1, "depth-many-n": 9}
    remembering(tmp_path / "one", "depth-local", -1.0, **many)
    remembering(tmp_path / "two", "depth-local", 1.0)
    given, found = decided(one, tmp_path)
    texts = [(judged.reading, judged.measured) for judged in found]
    assert given == "reproduced" and texts == [(0, "many 1.00"), (0, "local 1.00, 5 prompts")]
    shown = {"what": "size", "effect": "depth-many", "or": "depth-local", "form": ".1f"}
    ends = {f"{name}-{end}": 0.5 for name in ("depth-many", "depth-local") for end in ("low", "high")}
    found = [replace(judged, numbers=judged.numbers | ends) for judged in found]
    ((_, values),) = scorecard._shown(one | {"shown": [shown]}, found)
    assert [value.partition("\u00a0")[0] for value in values] == ["one: 1.0", "two: 1.0"]
    (fault,) = claims.wrong([claim(LOCAL | {"unless": "depth-most"})], {})
    assert "has no reading of 'depth-most', which `unless` names" in fault


def test_a_claim_without_numbers_is_not_measured(tmp_path):
    assert decided(claim(LOCAL), tmp_path) == ("not measured here", [])


@pytest.mark.parametrize(("other", "verdict"), [(-1.0, "depends on the model"), (0.1, "inconclusive")])
def test_models_that_disagree_give_no_single_verdict(tmp_path, other, verdict):
    for name, value in (("one", 1.0), ("two", other)):
        remembering(tmp_path / name, "depth-local", value)
    assert decided(claim(LOCAL), tmp_path)[0] == verdict


def test_sign_change_along_training_depends_on_the_step(tmp_path):
    late = {"depth-late": -1.0, "depth-late-error": 0.1, "depth-late-n": 20}
    remembering(tmp_path / "one", "depth-local", 1.0, **late)
    two = [LOCAL, LOCAL | {"effect": "depth-late"}]
    assert decided(claim(*two), tmp_path)[0] == "depends on the definition"
    steps = [test | {"condition": "training step"} for test in two]
    assert decided(claim(*steps), tmp_path)[0] == "depends on the training step"


def test_paper_readings_have_their_own_verdict(tmp_path):
    remembering(tmp_path / "one", "depth-paper", 1.0)
    both = claim(LOCAL, PAPER)
    assert decided(both, tmp_path)[0] == "not measured here" and decided(both, tmp_path, "paper")[0] == "reproduced"


def test_null_error_is_its_own_unless_named(tmp_path):
    more = {"depth-null": 0.5, "depth-null-error": 0.2, "depth-spread": 0.7}
    remembering(tmp_path / "one", "depth-local", 1.0, **more)
    own, named, arithmetic = (
        claims.judge(claim(LOCAL | given), tmp_path, "one", {})[0].evidence
        for given in ({"than": "[depth-null]"}, {"than": "[depth-null]", "than_error": "[depth-spread]"},
                      {"than": "2 * [depth-null]"})
    )  # fmt: skip
    assert [(e.null, e.null_error) for e in (own, named, arithmetic)] == [(0.5, 0.2), (0.5, 0.7), (1.0, 0.0)]


def test_margin_is_the_unit_default_or_given(tmp_path):
    remembering(tmp_path / "one", "depth-local", 1.0)
    margins = [
        claims.judge(claim(LOCAL | given), tmp_path, "one", {"coupling": 0.3})[0].evidence.margin
        for given in ({"unit": "coupling"}, {"unit": "coupling", "margin": "0.1 * [depth-local]"}, {})
    ]
    assert margins[:2] == pytest.approx([0.3, 0.1]) and math.isnan(margins[2])


def rows(page: str) -> list[str]:
    return re.split(r"^\(claim-[a-z0-9-]+\)=$", page.partition(scorecard.RULES)[0], flags=re.MULTILINE)[1:]


def given(part: str) -> list[tuple[str, str]]:
    return re.findall(r'data-place="(\w*)" data-verdict="([^"]+)"', part)


def test_rows_without_results_say_not_measured_once(tmp_path):
    page = scorecard.claims_page(tmp_path)
    found = {text: row for row in rows(page) if (text := row.strip().partition("\n")[0])}
    texts = [one["claim"] + f" *({one['kind']})*" * (one["kind"] != "the paper's claim") for one in CLAIMS]
    assert set(found) == set(texts) and len(rows(page)) == len(CLAIMS) == 27
    for one, text in zip(CLAIMS, texts, strict=True):
        assert given(found[text]) == [("", "not measured here")]
        assert f"*What is asked* ({one['quantifier']})" in found[text] and "papermill notebooks/" in found[text]
    assert given(page.partition("<table")[0]) == []
    assert re.search(r"(\d+) of \1 in SmolLM2-135M;", page) and "suffice to test 0 claims" in page


def test_headline_claims_lead_the_table_in_their_order(tmp_path):
    labels = re.findall(r"^\(claim-([a-z0-9-]+)\)=$", scorecard.claims_page(tmp_path), flags=re.MULTILINE)
    first = claims.headline_ids()
    assert labels[: len(first)] == first and first[0] == "blocks-share-directions"
    assert labels[len(first) :] == [one["id"] for one in CLAIMS if one["id"] not in first]


def test_the_counts_are_those_of_the_rows(tmp_path):
    for model, value in (("smollm2-135m", 1.0), ("nano-neox", -1.0)):
        remembering(tmp_path / model, "depth-neighbours-spread", 0.01)
        effect = "nulls-stricter-local"
        kept = {effect: value, f"{effect}-error": 0.1, f"{effect}-n": 20}
        executed(tmp_path / model / "nulls.ipynb", kept | {f"{effect}-low": value, f"{effect}-high": value})
    page = scorecard.claims_page(tmp_path)
    local = next(row for row in rows(page) if "Coupling is local" in row)
    assert given(local) == [("decoder", "reproduced"), ("trained", "contradicted")]
    above, _, table = page.partition("<table")
    counted = re.findall(r'data-place="(\w+)" data-verdict="([^"]+)">(\d+) ', above)
    assert {(place, name): int(n) for place, name, n in counted} == Counter(one for one in given(table) if one[0])


def test_row_shows_headline_effect_and_folds_readings(tmp_path):
    kept = {f"depth-local{end}": value for end, value in (("-low", 0.8), ("-high", 1.2), ("-chance", 0.25))}
    shown = [{"what": "local more", "effect": "depth-local", "form": ".2f", "chance": "2 * [depth-local-chance]"}]
    for name in ("one", "two"):
        remembering(tmp_path / name, "depth-local", 1.0, **kept)
    one = claim(LOCAL | {"says": "it is more"}) | {"models": ["one"], "shown": shown}
    _, found = decided(one, tmp_path)
    row = scorecard.row(one, found, "more", tmp_path)
    before, _, folded = row.partition("<details")
    assert "Local more: 1.00\u00a0[0.80,\u00a01.20]; by chance 0.50" in before and "\nMore\n" in before
    assert ">1 network trained here: one</td>" in before and given(before) == [("trained", "reproduced")]
    assert "local 1.00, 5 prompts: **✓ for** (p < .001, corrected < .001)" in folded and "prompts" not in before
    assert folded.startswith(' class="claim-numbers short">\n<summary>Tests: 1 for<')
    assert "of “More is more”</span></summary>" in folded and "](../results/one/depth.ipynb#in-numbers)" in folded
    assert "*What would refute it:* more than half of the tests" in folded
    both = one | {"models": ["one", "two"]}
    row = scorecard.row(both, decided(both, tmp_path)[1], "more", tmp_path)
    assert re.search(r"Local more:\s+- one: 1\.00\xa0\[", row) and ">2 networks trained here: one, two</td>" in row


def test_shown_effects_belong_to_the_claim():
    for one in CLAIMS:
        effects = [test["effect"] for test in one["test"]]
        measured = " ".join(test["measured"] for test in one["test"])
        for shown in one.get("shown", ()):
            assert shown["effect"] in effects or f"{{{shown['effect']}-low:" in measured, shown
            assert shown["what"] and f"{{{shown['effect']}-low:" in measured, shown
        deciding = any("beside" not in test for test in one["test"])
        assert bool(one.get("shown")) == deciding, one["id"]


def test_reading_of_one_prompt_has_no_verdict(tmp_path):
    executed(tmp_path / "one" / "depth.ipynb", {"depth-local": 0.3, "depth-local-n": 1.0, "depth-local-skew": 0.0})
    one = claim(LOCAL | {"says": "neighbours are more"}) | {"models": ["one"]}
    verdict, found = decided(one, tmp_path)
    assert (verdict, found) == ("not measured here", [])
    line = "neighbours are more: 1 value has no error, a verdict needs 2 or more; run with `-p prompts 2`"
    assert claims.unjudged(one, tmp_path, "one") == [line]
    assert f"  - {line}\n" in scorecard.row(one, found, "more", tmp_path)


def test_correlation_is_judged_on_the_fisher_scale(tmp_path):
    parts = {"": 0.6, "-error": 0.2, "-n": 9.0, "-skew": 0.0, "-freedom": 3.5}
    executed(tmp_path / "one" / "depth.ipynb", {f"depth-local{part}": value for part, value in parts.items()})
    one = claim(LOCAL | {"unit": "correlation"}) | {"models": ["one"]}
    (found,) = claims.judge(one, tmp_path, "one", {"correlation": 0.1})
    evidence = found.evidence
    assert evidence.fisher and evidence.freedom == 3.5 and evidence.limit == 1
    assert evidence.p["differs"] == pytest.approx(2 * scipy.stats.t.sf(math.atanh(0.6) / 0.2, 3.5))


def test_every_verdict_has_a_distinct_mark(tmp_path):
    page = scorecard.claims_page(tmp_path)
    shapes = dict(re.findall(r'<symbol id="mark-([\w-]+)" viewBox="0 0 16 16">(.+?)</symbol>', page))
    assert list(shapes) == [name.replace(" ", "-") for name in verdicts.VERDICTS]
    assert len(set(shapes.values())) == len(verdicts.VERDICTS)
    assert 'href="#mark-not-measured-here"></use></svg>not measured here</span>' in page
    css = (paths.ROOT / "book" / "_static" / "claims.css").read_text(encoding="utf-8")
    for name in set(verdicts.VERDICTS) - {"not measured here"}:  # which is muted as all text beside it
        slug = name.replace(" ", "-")
        assert f".verdict-{slug} " in css or re.search(r'class\*="(verdict-[\w-]+)"', css)[1] in f"verdict-{slug}"


def test_every_claim_states_paper_rules_margin_and_section():
    for claim in CLAIMS:
        twin = (paths.ROOT / "notebooks" / f"{claim['notebook']}.py").read_text(encoding="utf-8")
        assert re.search(rf"^# #+ {re.escape(claim['section'])}$", twin, re.M), (claim["claim"], claim["section"])
        assert claim["paper"] and claim["models"] and all(t["says"] and t["measured"] for t in claim["test"])
        assert {test["claims"] for test in claim["test"]} <= set(verdicts.DIRECTIONS)
        assert {test["condition"] for test in claim["test"] if "condition" in test} <= set(verdicts.CONDITIONS)
        assert {test.get("scope", "here") for test in claim["test"]} <= {"here", "paper"}
        assert {test["unit"] for test in claim["test"] if "unit" in test} <= set(claims.read_margins())
    assert all("margin" in test for claim in CLAIMS for test in claim["test"] if test["claims"] == "within")
    assert all(entry["why"] and entry["value"] > 0 for entry in claims.read_margins().values())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["claim"][:40])
def test_claim_numbers_are_remembered_by_their_notebooks(claim):
    texts = [str(t.get(part, "")) for t in claim["test"] for part in ("measured", "than", "than_error", "margin")]
    names = re.findall(
        r"[\[{]([a-z][\w.-]*-[\w.%-]+)", " ".join([*texts, claim.get("needs", ""), claim.get("settle", "")])
    )
    effects = [test[part] for test in claim["test"] for part in ("effect", "size") if part in test]
    names += [f"{effect}{end}" for effect in effects for end in ("", "-error", "-n")]
    for notebook in claims.notebooks_of(claim):
        kept = named_numbers.remembered(paths.ROOT / "notebooks" / f"{notebook}.ipynb")
        missing = {n for n in names if n.startswith(f"{notebook}-")} - set(kept)
        assert not missing


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


def test_incomplete_claims_are_reported_in_one_line():
    one = claim(LOCAL | {"asked": ["quality, early"]})
    asked = {"quality, early": "More is more", "edits, skip": ""}
    assert claims.wrong([one], asked) == []
    for key, known in (("id", ""), ("quote", ""), ("kind", "; known are the paper's claim, our question,"),
                       ("quantifier", "; known are every, typical, some")):  # fmt: skip
        (line,) = (one for one in claims.wrong([one | {key: ""}], asked) if "registered" not in one)
        assert line.startswith(f"the claim 'More is more' has no {key}{known}") and "\n" not in line
    assert "two claims have the id 'more'" in claims.wrong([one, one], asked)
    assert claims.wrong([claim(LOCAL)], asked) == [
        "the registered question 'quality, early' is in no reading of the claim 'More is more'"
    ]
    assert claims.wrong([one], {}) == ["no question 'quality, early' is registered"]
    # A claim's former wording is what a question may still name.
    anew = one | {"claim": "More is much more", "former": ["More is more"]}
    assert claims.wrong([anew], asked) == []


def test_reading_beside_a_claim_decides_nothing(tmp_path):
    cause = {"depth-cause": -1.0, "depth-cause-error": 0.1, "depth-cause-n": 9}
    remembering(tmp_path / "one", "depth-local", 1.0, **cause)
    beside = {"effect": "depth-cause", "claims": "above", "measured": "{depth-cause:.1f}", "beside": "it is a cause"}
    both = claim(LOCAL | {"says": "local"}, beside | {"says": "cause"}) | {"models": ["one"]}
    given, found = decided(both, tmp_path)
    assert given == "reproduced" and [one.decides for one in found] == [True, False]
    row = scorecard.row(both, found, "more", tmp_path)
    assert "**beside it, below 0**" in row and "decides nothing: it is a cause." in row


def test_each_expands_into_several_readings():
    test = {"each": ["a", "b"], "effect": "depth-<each>", "asked": ["x, y"], "says": "<each>"}
    assert [(one["effect"], one["says"], one["asked"]) for one in claims._each(test)] == [
        ("depth-a", "a", ["x, y"]), ("depth-b", "b", ["x, y"]),
    ]  # fmt: skip


def test_networks_count_once_and_suites_by_models(tmp_path):
    for name in ("one", "two"):
        remembering(tmp_path / name, "depth-local", 1.0)
    assert claims.networks(decided(claim(LOCAL), tmp_path)[1]) == 2
    remembering(tmp_path / "suite", "depth-local", 1.0, n=32)
    assert claims.networks(decided(claim(LOCAL) | {"models": ["suite", "one"]}, tmp_path)[1]) == 33
