"""Finds the sentences that compare or judge: a list of words, wide enough that a reader finds none that it misses."""

from __future__ import annotations

import re

_WORDS = (
    # Degrees
    "more less fewer most least mostly largely much higher lower highest lowest larger smaller largest smallest "
    "greater greatest longer shorter longest wider narrower deeper faster slower earlier later closer nearer further "
    "stronger weaker strongest weakest better worse best worst straighter steeper easier harder cheaper slightest "
    "darker brighter louder quieter nearest high low large small tiny great strong weak close near far little few easy "
    "clear clearly slightly barely hardly nearly almost roughly exactly closely secure real visible seen too enough "
    # Amounts
    "twice half third quarter fifth tenth hundredth thousandth double doubles triple times thousands hundreds "
    # Changes
    "rise rises rising risen rose fall falls falling fallen fell grow grows growing grew shrink shrinks shrinking peak "
    "peaks raise raises raised lowers lowered decay decays outgrows outgrow increases decreases vanishes vanish "
    "disappears appears returns reverses reversed flips turns survive survives change changes changed stays stay "
    "dominates "
    # Orders
    "above below beyond exceed exceeds outside unlike alike same equal equally identical differ differs different "
    "similar even "
    # Counts of things
    "none no nothing never nowhere neither nor not cannot without only every everywhere both always either alone half "
    # Verdicts
    "positive negative agree agrees contradict contradicts contradicted reproduced undecided confirms explains explain "
    "decides decided predicts couples correlates correlation lead leads led depends follow follows need needs hides "
    "leaves loses lost keeps kept weighs explodes harmless part right wrong sure orthogonal diagonal away down matter "
    "matters inverted goes go reverse fails fail hold holds missing instead points couple concentrates"
).split()
_COUNTS = "one two three four five six seven eight nine ten most some many few any".split()
_PATTERN = re.compile(
    rf"\b(?:{'|'.join(dict.fromkeys(_WORDS))})\b"
    rf"|\b(?:{'|'.join(_COUNTS)}) of (?:the |them|its |{'|'.join(_COUNTS)})|\bin part\b|\ball but\b|\bas \w+ as\b",
    re.IGNORECASE,
)


def compares(sentence: str) -> bool:
    """Says whether a sentence compares or judges, or might."""
    return bool(_PATTERN.search(sentence))
