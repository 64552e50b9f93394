"""Text from a seeded grammar: the same on every machine, so that training on it can be repeated anywhere.

Sentences have a subject and a verb that agree in number across a clause that comes between them, and a later
sentence of a paragraph speaks of what an earlier one named. Only `random.Random.random` is used, whose values
for a seed are fixed across versions of Python.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_NOUNS = ("dog", "bird", "sailor", "teacher", "river", "lantern", "gardener", "cousin", "engine", "letter")
_ADJECTIVES = ("old", "quiet", "red", "hungry", "distant", "clever", "broken", "northern")
_VERBS = ("see", "follow", "remember", "answer", "leave", "want", "hear", "paint")
_PLACES = ("near the harbour", "behind the mill", "before noon", "in the long winter", "without a word")
_OPENINGS = ("Then", "Later", "After all", "Once more", "At last")


def grammar_text(paragraphs: int, seed: int = 0) -> str:
    """Write paragraphs of invented sentences."""
    source = random.Random(seed)
    return "".join(_paragraph(source) + "\n" for _ in range(paragraphs))


def _paragraph(source: random.Random) -> str:
    """Four sentences about two things, the second half in the order the first half named them."""
    first, second = _noun_phrase(source), _noun_phrase(source)
    sentences = [_sentence(source, *first), _sentence(source, *second)]
    for phrase in (first, second):
        sentences.append(f"{_one(source, _OPENINGS)} {_sentence(source, *phrase)}")
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def _sentence(source: random.Random, noun: str, plural: bool) -> str:
    """A subject, perhaps a clause about it, and a verb that agrees with the subject."""
    clause = ""
    if source.random() < 0.5:
        other, many = _noun_phrase(source)
        clause = f" that {other} {_agreeing(source, many)}"
    target, _ = _noun_phrase(source)
    return f"{noun}{clause} {_agreeing(source, plural)} {target} {_one(source, _PLACES)}."


def _noun_phrase(source: random.Random) -> tuple[str, bool]:
    """An article, an adjective and a noun, and whether the noun is plural."""
    plural = source.random() < 0.5
    return f"the {_one(source, _ADJECTIVES)} {_one(source, _NOUNS)}{'s' * plural}", plural


def _agreeing(source: random.Random, plural: bool) -> str:
    """A verb in the form that the number asks for."""
    return _one(source, _VERBS) + "s" * (not plural)


def _one(source: random.Random, words: Sequence[str]) -> str:
    """Choose a word with equal chances."""
    return words[int(source.random() * len(words))]
