"""One number, one value: a quantity that two pages show is the same number there, or the pages name what differs."""

import functools
import re
import tomllib
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import claims
import named_numbers
import pytest

from coupling_lib import paths

WORDS = {
    "NETWORK": "(?P<network>untrained|trained)",
    "PART": "(?P<part>(-low|-high)?)",
    "STEP": "(?P<step>first|peak|turn|last)",
    "READING": "(?P<reading>[a-z]+(?:_[a-z]+)*)",
}
QUANTITIES = tomllib.loads(Path(__file__).with_name("quantities.toml").read_text(encoding="utf-8"))
for one in (one for quantity in QUANTITIES.values() for one in quantity["names"]):
    one["is"] = functools.reduce(lambda name, word: name.replace(*word), WORDS.items(), one["is"])

# What may differ between two values of a quantity, and the words by which a page names it.
CONDITIONS = {
    "prompts": r"prompts|questions|images",
    "k": r"K ?=",
    "precision": r"`(nf4|int8|fp4|bf)|bits",
    "step": r"step",
}
PLAIN = {"step": None, "precision": "float32"}  # the end of training and full precision need no word


Shown = namedtuple("Shown", "page model name form")  # a number as a page shows it


class Known(NamedTuple):
    page: str
    name: str
    value: float
    digits: int
    conditions: tuple[tuple[str, object], ...]


def shown_numbers() -> Iterator[Shown]:
    quoted = r"\{glue:text\}`\.\./results/([\w-]+)/[\w-]+\.ipynb::([\w.%-]+?)(?::([^`]*))?`"
    for page in sorted((paths.ROOT / "book").glob("*.md")):
        yield from (Shown(page.name, *found) for found in re.findall(quoted, page.read_text()))
    for claim in claims.read_claims():
        for test in claim["test"]:
            for name, form in re.findall(r"(?<!\{)\{([a-z][\w.%-]+?)(?::([^{}]*))?\}(?!\})", test["measured"]):
                yield from (Shown("claims.toml", model, name, form) for model in claim["models"])


remembered = functools.cache(named_numbers.remembered)


def committed(model: str, notebook: str) -> dict[str, float | str]:
    """What a committed notebook remembers, of the model that it ran for."""
    numbers = remembered(paths.ROOT / "notebooks" / f"{notebook}.ipynb")
    ran_for = "suite" if notebook in ("generalization", "edits") else numbers.get(f"{notebook}.model", "")
    return numbers if ran_for == model else {}


def built(model: str, notebook: str) -> dict[str, float | str]:
    return remembered(paths.ROOT / "results" / model / f"{notebook}.ipynb")


def known(shown: Shown, numbers: dict[str, float | str], given: dict, found: dict[str, str], about: str) -> Known:
    notebook = shown.name.split("-")[0]
    place = {"model": shown.model, "precision": "float32"}
    for key in ("prompts", "images", "k", "precision", "token"):
        if f"{notebook}.{key}" in numbers:
            place["prompts" if key == "images" else key] = numbers[f"{notebook}.{key}"]
    conditions = place | given.get("fixed", {}) | found | {"part": found.get("part", "").strip("-")}
    if "step" in found:
        conditions["step"] = numbers[f"emergence-{found['step']}-step"]
        if conditions["step"] == 0:
            conditions["network"] = "untrained"
        if conditions["step"] in (0, numbers.get("emergence-last-step")):
            del conditions["step"]
    if "coupling" not in about:
        conditions.pop("k", None)
    value = float(numbers[shown.name])
    if given.get("complement"):
        value = 1 - value
        conditions["part"] = {"low": "high", "high": "low"}.get(conditions["part"], "")
    digits = re.search(r"\.(\d)", shown.form)
    printed = (int(digits[1]) if digits else 4) + 2 * ("%" in shown.form)
    return Known(shown.page, shown.name, value, printed, tuple(sorted(conditions.items())))


def collected(numbers_of) -> dict[str, list[Known]]:
    found: dict[str, list[Known]] = defaultdict(list)
    for shown in shown_numbers():
        numbers = numbers_of(shown.model, shown.name.split("-")[0])
        names = ((about, one) for about, quantity in QUANTITIES.items() for one in quantity["names"])
        for about, one in names if shown.name in numbers else ():
            if match := re.fullmatch(one["is"], shown.name):
                details = {key: value for key, value in match.groupdict().items() if value}
                found[about].append(known(shown, numbers, one, details, about))
                break
    return found


def contradictions(found: dict[str, list[Known]], pages: dict[str, str]) -> list[str]:
    """Every pair of numbers of one quantity that differ without naming why."""
    wrong: dict[str, None] = {}
    for quantity, several in found.items():
        for one, other in combinations(dict.fromkeys(several), 2):
            mine, theirs = dict(one.conditions), dict(other.conditions)
            differing = {key for key in mine | theirs if mine.get(key) != theirs.get(key)}
            room = QUANTITIES.get(quantity, {}).get("may_differ", 0.0) + 0.51 * 10.0 ** -min(one.digits, other.digits)
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


def test_committed_notebooks_give_each_quantity_one_value():
    found = collected(committed)
    pages = {one.page for several in found.values() for one in several}
    assert pages >= {"depth.md", "emergence.md", "definitions.md", "vision.md", "claims.toml"}
    assert contradictions(found, page_texts()) == []


@pytest.mark.browser
def test_built_book_gives_each_quantity_one_value():
    found = collected(built)
    models = {dict(one.conditions)["model"] for several in found.values() for one in several}
    assert models >= {"smollm2-135m", "nano-neox", "nano-vit"}
    assert contradictions(found, page_texts()) == []


def test_contradicting_values_of_a_quantity_are_found():
    same = {"model": "a", "network": "trained", "prompts": 12, "part": ""}

    def number(page: str, value: float, **conditions: object) -> Known:
        return Known(page, "n", value, 3, tuple(sorted((same | conditions).items())))

    pages = {"one.md": "12 prompts", "two.md": "as on page one"}
    assert contradictions({"q": [number("one.md", 0.094), number("two.md", 0.0943)]}, pages) == []
    assert len(contradictions({"q": [number("one.md", 0.094), number("two.md", 0.087)]}, pages)) == 1
    differing = {"q": [number("one.md", 0.094), number("two.md", 0.087, prompts=6)]}
    assert contradictions(differing, pages) == ["q: two.md does not name prompts"]
    assert contradictions(differing, pages | {"two.md": "6 prompts"}) == []


def test_every_shown_coupling_belongs_to_a_quantity():
    own = [
        r"edits-.*", r"emergence-(phases|later)-.*",
        r"(generalization|tokens)-.*", r".*-(error|n|spread|p)", r"depth-(local|emerged|coupling-traceless|shared).*",
        r"emergence-(fall|rise).*", r"vision-(class-to|coupling-(class|patch)-null).*",
        r"nulls-(paired|permuted|unpaired|decisive|closed|coupling-null-|rest|shared|isotropic|stricter|whole|traceless).*",
        r"precision-(difference|change|lost).*",
        r"perturbation-.*", r"trajectories-change.*",
        r"vision-(rank|accuracy|within|steeper|r-squared|model-epochs|drop-path-on|patch|pairs).*",
        r"prompts-(many|control|step-by-step-over|length|steps).*", r"spectra-.*", r"dynamics-.*",
        r"readings-agreement.*", r".*prompts",
        r"readings-(?!normalized_miscoupling)[a-z_]+-(trained|untrained|random-bases).*",
    ]  # fmt: skip
    names = {shown.name for shown in shown_numbers()}
    wanted = {n for n in names if re.search(r"coupl|null|random-bases|relative|beyond|expodistance|line-shape", n)}
    known = own + [name["is"] for quantity in QUANTITIES.values() for name in quantity["names"]]
    assert {name for name in wanted if not any(re.fullmatch(pattern, name) for pattern in known)} == set()
