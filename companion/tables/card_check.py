"""Check cards of the atlas: `make atlas-check FILE=data/atlas/nano-neox-step10000.json`; each fault is one line.

Nothing is fetched: where the weights are available one prompt is measured again, and otherwise the check reports that
none was.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports the client of the hub

from jsonschema import Draft202012Validator

import coupling_lib as cl
from companion.tables import card as cards
from companion.tables.effects import couplings
from coupling_lib import provenance
from coupling_lib.errors import CouplingError, ModelUnavailableError, ParameterError, shown
from coupling_lib.models import registry
from coupling_lib.progress import in_one_line

LARGEST = 200_000
"""Maximum size of a card in bytes."""
CLOSE = 1e-3
"""Tolerance of the first prompt's coupling, measured again."""
_ANEW = "measure it anew: make card MODEL=..."


def faults(file: Path) -> Iterator[str]:
    """Iterate over a card's faults that show before a measurement: value seen, value expected, next step."""
    try:
        card = json.loads(file.read_bytes()[: LARGEST + 1])
    except (ValueError, RecursionError) as error:
        size = file.stat().st_size
        message = f"{size:,} bytes" if size > LARGEST else f"no JSON ({error})"
        yield f"it holds {message}; one record of JSON of at most {LARGEST:,} bytes is expected; {_ANEW}"
        return
    name = card.get("format") if isinstance(card, dict) else card
    if name != cards.FORMAT:
        yield f"its format is {shown(name, 40)}; {cards.FORMAT!r} is expected; {_ANEW}"
        return
    schema = Draft202012Validator(json.loads(cards.SCHEMA.read_text(encoding="utf-8")))
    wrong = [f"{'.'.join(map(str, error.path)) or 'the card'}: {error.message[:200]}; data/atlas/card.schema.json says "
             f"what is expected; {_ANEW}" for error in schema.iter_errors(card)]  # fmt: skip
    yield from wrong or content_faults(card)


def content_faults(card: cards.Card) -> Iterator[str]:
    """Iterate over the differences of a card from its digest, and from the current versions and prompts."""
    seen, stated, given = cards.digest_of(card)[:12], card["digest"][:12], card["prompts"]
    if seen != stated:
        yield f"its content has the digest {seen}; {stated} is expected; it was changed: take it as it was written"
    known = {name: measure.version for name, measure in cards.MEASURES.items() if name in card["measures"]}
    if card["measures"] != known or not {"depth", "trajectories"} <= set(known):
        yield f"its measures are {card['measures']}; {known} is expected; {_ANEW}"
    packages = (*provenance.PACKAGES, "Python")
    if lacking := [name for name in packages if not re.search(rf"\b{name} (\d|\(absent\))", card["versions"])]:
        yield f"its versions are {shown(card['versions'], 60)}; one of {', '.join(lacking)} is expected; {_ANEW}"
    try:
        # Pictures depend on the size that a model reads, and are compared once it is loaded.
        if given["kind"] == "texts":
            yield from prompt_faults(given, cards.chosen_texts(given["chosen"], given["seed"]))
    except (CouplingError, OSError) as error:
        yield f"its prompts are {given['chosen']!r}; some that are here are expected ({error}); {_ANEW}"


def prompt_faults(given: cards.Card, chosen: Sequence) -> Iterator[str]:
    """Iterate over the differences of a card's digest and number of prompts from the current ones."""
    seen = f"{given['n']} prompts with the digest {given['digest']}"
    if seen != (known := f"{len(chosen)} prompts with the digest {provenance.prompts_hash(chosen)}"):
        yield f"it has {seen}; {known} is expected of {given['chosen']!r} with seed {given['seed']}; {_ANEW}"


def measured_anew(card: cards.Card) -> tuple[str, list[str]]:
    """Measure the first prompt of a card again; return the comparison and the faults."""
    entry, given, first = registry.lookup(card["model"]), card["prompts"], card["coupling"]["first"]
    how = {"revision": card["revision"], "precision": card["precision"], "untrained": card["untrained"]}
    try:
        model = cl.load_model(card["model"], **how, seed=card["seed"] or 0)
    except ModelUnavailableError as error:
        if entry is not None and entry.embedded:
            return "", [f"its model is {card['model']} at {card['revision']}; one that is here is expected ({error})"]
        return "its weights are not here, so that nothing was measured anew", []
    chosen, inputs, token = cards.card_inputs(model, given["chosen"], given["seed"])
    if wrong := list(prompt_faults(given, chosen)):
        return "", wrong
    whole = cl.measure_depth(model, inputs[:1], ks=(cards.K,), token=token)
    both = {"whole": whole, "shared": cl.shared_part(whole)}
    found = {name: float(couplings(ds, cards.VARIANT, cards.K)[0]) for name, ds in both.items()}
    for name, value in found.items():
        if not abs(value - first[name]) <= CLOSE:
            wrong.append(
                f"coupling.first.{name} is {first[name]:.5f}; {value:.5f} is expected, within {CLOSE:g}; {_ANEW}"
            )
    return f"of its first prompt {first['whole']:.4f} was stated, {found['whole']:.4f} measured anew", wrong


def check(files: Sequence[Path]) -> int:
    """Check cards one after the other, and return the status of the command."""
    if not files:
        raise ParameterError("no card was named, so that none was checked; name one: make atlas-check FILE=CARD.json")
    failed = False
    for file in files:
        note, wrong = "", list(faults(file))
        if not wrong:
            note, wrong = measured_anew(json.loads(file.read_bytes()))
        for line in wrong:
            print(f"error: {file.name}: {line}", file=sys.stderr)
        print(f"{file.name}: {'wrong' if wrong else f'good; {note}'}", flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(in_one_line(lambda: check([Path(name) for name in sys.argv[1:]]), "interrupted"))
