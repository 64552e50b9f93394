"""One number, one value: a quantity that two pages show is the same number there, or the pages name what differs."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import claims
import named_numbers
import pytest

from coupling_lib import paths

# A quantity's definition, and the names under which notebooks remember it. A name may say the network and the part
# (an end of the interval, an error); "complement" marks a number that stands for 1 minus the quantity; `fixed` holds
# conditions that a notebook does not take from its parameters.
NETWORK, PART = r"(?P<network>untrained|trained)", r"(?P<part>(-low|-high)?)"
READING = r"(?P<reading>[a-z]+(?:_[a-z]+)*)"


@dataclass(frozen=True)
class Name:
    """One name of a quantity."""

    pattern: str
    complement: bool = False
    fixed: tuple[tuple[str, object], ...] = ()


QUANTITIES: dict[str, tuple[Name, ...]] = {
    "coupling: 1 - normalised mis-coupling, all pairs of different blocks, last token": (
        Name(rf"depth-coupling-{NETWORK}{PART}"),
        Name(rf"depth-coupled{PART}", fixed=(("network", "trained"),)),
        Name(
            r"emergence-(?P<step>first|peak|turn|last)-(coupling|(?P<part>low|high))", fixed=(("network", "trained"),)
        ),
        Name(r"precision-coupling-(?P<precision>float32|bfloat16|int8|nf4|fp4)", fixed=(("network", "trained"),)),
        Name(r"precision-coupling-(?P<network>untrained)"),
        Name(rf"readings-normalized_miscoupling-{NETWORK}{PART}", complement=True),
        Name(r"prompts-alone-(?P<network>untrained|trained)", fixed=(("prompts", "questions"),)),
        Name(rf"vision-(model|class)-{NETWORK}{PART}", fixed=(("token", "class"),)),
        Name(rf"vision-drop-path-off{PART}", fixed=(("token", "class"), ("network", "trained"))),
        Name(r"vision-coupling-(?P<token>class|patch)-rate-(?P<rate>[\d.]+)(?P<part>(-low|-high)?)",
             fixed=(("model", "grid"),)),
        Name(r"vision-coupling-(?P<token>class|patch)-(?P<network>untrained)", fixed=(("model", "grid"),)),
    ),
    "coupling of random bases, K = 10": (
        Name(r"depth-coupling-null"),
        Name(r"emergence-(?P<step>first|peak|turn|last)-random-bases"),
        Name(r"precision-coupling-null"),
        Name(r"prompts-null"),
        Name(r"nulls-coupling-null"),
        Name(r"readings-normalized_miscoupling-random-bases", complement=True),
        Name(r"tokens-between-(?P<tokens>self|input|output)-random-bases"),
        Name(r"vision-(model|class)-null"),
    ),
    "share of the way from random bases to perfect coupling": (
        Name(rf"nulls-relative-{READING}-{NETWORK}{PART}"),
        Name(rf"nulls-beyond-{READING}{PART}", fixed=(("network", "trained"),)),
        Name(rf"readings-{READING}-beyond-chance{PART}", fixed=(("network", "trained"),)),
    ),
    "neighbouring blocks' coupling": (Name(rf"depth-neighbours-{NETWORK}"),),
    "line-shape score, median over prompts": (
        Name(rf"trajectories-line-shape-score-{NETWORK}"),
        Name(r"emergence-(?P<step>first|peak|turn|last)-line-shape-score", fixed=(("network", "trained"),)),
    ),
    "expodistance, median over prompts": (
        Name(rf"trajectories-expodistance-{NETWORK}"),
        Name(r"emergence-(?P<step>first|peak|turn|last)-expodistance", fixed=(("network", "trained"),)),
    ),
    "change of coupling with nf4": (
        Name(rf"precision-difference-nf4{PART}"),
        Name(rf"precision-change-nf4{PART}"),
    ),
    "what the instruction adds": (
        Name(rf"prompts-step-by-step-difference-trained{PART}"),
        Name(rf"prompts-step-by-step-change{PART}"),
    ),
}  # fmt: skip

CONDITIONS = {
    "prompts": r"prompts|questions|images",
    "k": r"K ?=",
    "precision": r"`(nf4|int8|fp4|bf)|bits",
    "step": r"step",
}
"""What may differ between two values of a quantity, and the words by which a page names it."""

PLAIN = {"step": None, "precision": "float32"}
"""Conditions that need no word on a page: the end of training, and full precision."""

UNLIKE = {"coupling of random bases, K = 10": 0.0002}
"""What the spectrum may move; elsewhere equal conditions give equal numbers, to the digits that pages print."""


@dataclass(frozen=True)
class Shown:
    """A number as a page shows it."""

    page: str
    name: str
    form: str


@dataclass(frozen=True)
class Known:
    """A number with all that fixes it."""

    page: str
    name: str
    value: float
    digits: int
    conditions: tuple[tuple[str, object], ...]


def shown_numbers() -> Iterator[Shown]:
    for page in sorted((paths.ROOT / "book").glob("*.md")):
        for model, name, form in re.findall(
            r"\{glue:text\}`\.\./results/([\w-]+)/[\w-]+\.ipynb::([\w.%-]+?)(?::([^`]*))?`", page.read_text()
        ):
            yield Shown(page.name, f"{model}/{name}", form)
    for claim in claims.read_claims():
        for test in claim["test"]:
            for name, form in re.findall(r"(?<!\{)\{([a-z][\w.%-]+?)(?::([^{}]*))?\}(?!\})", test["measured"]):
                for model in claim["models"]:
                    yield Shown("claims.toml", f"{model}/{name}", form)


@functools.cache
def remembered(results: Path, model: str, notebook: str) -> dict[str, float | str]:
    return named_numbers.remembered(results / model / f"{notebook}.ipynb")


@functools.cache
def committed(_: str, notebook: str) -> dict[str, float | str]:
    return named_numbers.remembered(paths.ROOT / "notebooks" / f"{notebook}.ipynb")


def default_model(notebook: str) -> str:
    model = committed("", notebook).get(f"{notebook}.model", "")
    return "suite" if notebook == "generalization" else str(model)


def known(shown: Shown, numbers: dict[str, float | str]) -> tuple[str, Known] | None:
    """The quantity that a shown number belongs to, with its value and conditions; None if it is its page's own."""
    model, _, name = shown.name.partition("/")
    notebook = name.split("-")[0]
    for quantity, names in QUANTITIES.items():
        for each in names:
            match = re.fullmatch(each.pattern, name)
            if not match or name not in numbers:
                continue
            found = {key: value for key, value in match.groupdict().items() if value}
            place = {"model": model, "precision": "float32"}
            for key in ("prompts", "images", "k", "precision", "token"):
                if f"{notebook}.{key}" in numbers:
                    place["prompts" if key == "images" else key] = numbers[f"{notebook}.{key}"]
            if "step" in found:
                found["step"] = numbers[f"emergence-{found['step']}-step"]
                if found["step"] == 0:
                    found |= {"network": "untrained"}
            conditions = place | dict(each.fixed) | found
            if "coupling" not in quantity:
                conditions.pop("k", None)
            conditions["part"] = str(conditions.get("part", "")).strip("-")
            if "step" in conditions and conditions["step"] in (0, numbers.get("emergence-last-step")):
                conditions.pop("step")
            value = 1 - float(numbers[name]) if each.complement else float(numbers[name])
            if each.complement and conditions["part"]:
                conditions["part"] = {"low": "high", "high": "low"}[conditions["part"]]
            digits = re.search(r"\.(\d)", shown.form)
            percent = 2 if "%" in shown.form else 0
            return quantity, Known(
                shown.page, name, value, (int(digits[1]) if digits else 4) + percent, tuple(sorted(conditions.items()))
            )
    return None


def collected(numbers_of) -> dict[str, list[Known]]:
    found: dict[str, list[Known]] = defaultdict(list)
    for shown in shown_numbers():
        model, _, name = shown.name.partition("/")
        numbers = numbers_of(model, name.split("-")[0])
        if numbers and (one := known(shown, numbers)):
            found[one[0]].append(one[1])
    return found


def contradictions(found: dict[str, list[Known]], pages: dict[str, str]) -> list[str]:
    """Every pair of numbers of one quantity that differ without naming why."""
    wrong: dict[str, None] = {}
    for quantity, several in found.items():
        several = list(dict.fromkeys(several))
        for at, one in enumerate(several):
            for other in several[at + 1 :]:
                mine, theirs = dict(one.conditions), dict(other.conditions)
                differing = {key for key in mine | theirs if mine.get(key) != theirs.get(key)}
                room = UNLIKE.get(quantity, 0.0) + 0.51 * 10.0 ** -min(one.digits, other.digits)
                # What differs in anything else (the network, the token) is another quantity.
                if abs(one.value - other.value) <= room or differing - set(CONDITIONS):
                    continue
                if not differing:
                    wrong[f"{quantity}: {one.name} {one.value:.5g}, {other.name} {other.value:.5g}"] = None
                for page, conditions in ((one.page, mine), (other.page, theirs)):
                    for key in sorted(differing):
                        plain = key in PLAIN and conditions.get(key) == PLAIN[key]
                        if not plain and not re.search(CONDITIONS[key], pages[page]):
                            wrong[f"{quantity}: {page} does not name {key}"] = None
    return list(wrong)


def page_texts() -> dict[str, str]:
    texts = {page.name: page.read_text() for page in (paths.ROOT / "book").glob("*.md")}
    return texts | {"claims.toml": texts["claims.md"] + (paths.DATA / "claims.toml").read_text()}


def test_quantities_that_two_pages_show_are_the_same_number_in_the_committed_notebooks():
    found = collected(lambda model, notebook: committed(model, notebook) if default_model(notebook) == model else {})
    assert {page for several in found.values() for page in (one.page for one in several)} >= {
        "depth.md", "emergence.md", "nulls.md", "precision.md", "vision.md", "claims.toml",
    }  # fmt: skip
    assert contradictions(found, page_texts()) == []


@pytest.mark.browser
def test_quantities_that_two_pages_show_are_the_same_number_in_the_built_book():
    found = collected(lambda model, notebook: remembered(paths.ROOT / "results", model, notebook))
    assert {dict(one.conditions)["model"] for several in found.values() for one in several} >= {
        "smollm2-135m", "nano-neox", "nano-vit",
    }  # fmt: skip
    assert contradictions(found, page_texts()) == []


def test_the_same_quantity_with_two_values_is_found_out():
    same = {"model": "a", "network": "trained", "prompts": 12, "part": ""}

    def number(page: str, value: float, **conditions: object) -> Known:
        return Known(page, "n", value, 3, tuple(sorted((same | conditions).items())))

    pages = {"one.md": "12 prompts", "two.md": "as on page one"}
    assert contradictions({"q": [number("one.md", 0.094), number("two.md", 0.0943)]}, pages) == []
    assert len(contradictions({"q": [number("one.md", 0.094), number("two.md", 0.087)]}, pages)) == 1
    differing = {"q": [number("one.md", 0.094), number("two.md", 0.087, prompts=6)]}
    assert contradictions(differing, pages) == ["q: two.md does not name prompts"]
    assert contradictions(differing, pages | {"two.md": "6 prompts"}) == []


def test_every_coupling_or_null_that_a_page_shows_belongs_to_a_quantity():
    own = (
        r"generalization-.*", r"tokens-.*", r".*-(error|n|spread|p)", r"depth-(local|emerged|coupling-shared|shared).*",
        r"emergence-(fall|rise).*", r"vision-(class-to|coupling-(class|patch)-null).*",
        r"nulls-(paired|permuted|unpaired|decisive|closed|coupling-null-|rest|shared|isotropic).*",
        r"precision-(difference|change|lost).*",
        r"perturbation-.*",
        r"vision-(rank|accuracy|within|steeper|r-squared|model-epochs|drop-path-on|patch).*",
        r"prompts-(control|step-by-step-over|length|steps).*", r"spectra-.*", r"dynamics-.*", r"readings-agreement.*",
        r"readings-(?!normalized_miscoupling)[a-z_]+-(trained|untrained|random-bases).*", r".*prompts",
    )  # fmt: skip
    loose = set()
    for shown in shown_numbers():
        name = shown.name.partition("/")[2]
        if not re.search(r"coupl|null|random-bases|relative|beyond|expodistance|line-shape", name) or any(
            re.fullmatch(pattern, name) for pattern in own
        ):
            continue
        if not any(re.fullmatch(each.pattern, name) for names in QUANTITIES.values() for each in names):
            loose.add(name)
    assert {name for name in loose if not name.startswith("trajectories-change")} == set()
