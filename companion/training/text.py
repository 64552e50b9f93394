"""Text to token windows: reading, splitting, byte-level BPE, and stateless batches.

Whole files are held out if there are several, so that no sentence of a validation novel is ever trained on; the tail
is held out of a single one. Batches are a pure function of `(seed, step)`: a resumed run sees exactly the windows
of an uninterrupted one.

Without a corpus, a seeded grammar generates one, the same on every machine, so that training on it can be repeated
anywhere. Its sentences have a subject and a verb that agree in number across an intervening clause, and a
later sentence of a paragraph refers to a noun of an earlier one. Only `random.Random.random` is used, whose values for
a seed are fixed across versions of Python.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from coupling_lib.errors import ParameterError

END_OF_TEXT = "<|endoftext|>"

HeldOut = float | tuple[str, ...]
"""The held-out part: a share of the files, or whole authors, with whose names files begin."""

_NOUNS = ("dog", "bird", "sailor", "teacher", "river", "lantern", "gardener", "cousin", "engine", "letter")
_ADJECTIVES = ("old", "quiet", "red", "hungry", "distant", "clever", "broken", "northern")
_VERBS = ("see", "follow", "remember", "answer", "leave", "want", "hear", "paint")
_PLACES = ("near the harbour", "behind the mill", "before noon", "in the long winter", "without a word")
_OPENINGS = ("Then", "Later", "After all", "Once more", "At last")


@dataclass(frozen=True)
class Corpus:
    """A tokenised corpus, split into training and validation streams."""

    tokenizer: PreTrainedTokenizerFast
    train: np.ndarray
    validation: np.ndarray
    validation_bytes: int
    held_out: tuple[str, ...]


def read_texts(source: Path, held_out: HeldOut, seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """Read a text file or a folder of `.txt` files and split it into training and held-out parts."""
    files = _files(source)
    if not files:
        raise ParameterError(f"no text at {str(source)!r}; give a text file or a folder of .txt files")
    texts = {name: file.read_text(encoding="utf-8-sig", errors="replace") for name, file in files.items()}
    if not isinstance(held_out, float):
        return _by_author(texts, held_out, source)
    if len(texts) == 1:
        ((name, text),) = texts.items()
        cut = int(len(text) * (1 - held_out))
        return {name: text[:cut]}, {f"{name} (last {held_out:.0%})": text[cut:]}
    names = sorted(texts)
    random.Random(seed).shuffle(names)
    held = set(names[: max(1, round(len(names) * held_out))])
    train = {name: text for name, text in texts.items() if name not in held}
    return train, {name: text for name, text in texts.items() if name in held}


def _files(source: Path) -> dict[str, Path]:
    """Return the text files of a source by name, those of one name by their paths; empty if there are none."""
    files = sorted(source.rglob("*.txt")) if source.is_dir() else [source] * source.is_file()
    often = Counter(file.name for file in files)
    return {file.name if often[file.name] == 1 else str(file.relative_to(source)): file for file in files}


def _by_author(texts: dict[str, str], authors: Sequence[str], source: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Hold out all files whose names begin with an author's name, as in `Conrad_Nostromo_1904.txt`."""
    wrote = {name: name.partition("_")[0] for name in texts}
    if missing := set(authors) - set(wrote.values()):
        raise ParameterError(
            f"{str(source)!r} has no file of the held-out author {min(missing)!r}; expected a folder of files named "
            "AUTHOR_TITLE_YEAR.txt"
        )
    train = {name: texts[name] for name in sorted(texts) if wrote[name] not in authors}
    if not train:
        raise ParameterError(f"all files at {str(source)!r} are by held-out authors; there is nothing to train on")
    return train, {name: texts[name] for name in sorted(texts) if name not in train}


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, of the kind that GPT-2 and Pythia use."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, unk_token=END_OF_TEXT
    )


def _encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """Concatenate the texts as token ids, with an end-of-text token after each."""
    encodings = tokenizer.backend_tokenizer.encode_batch(texts)
    return np.concatenate([np.array([*one.ids, tokenizer.eos_token_id], dtype=np.uint16) for one in encodings])


def prepare(source: Path, cache: Path, vocabulary: int, held_out: HeldOut, seed: int) -> Corpus:
    """Tokenise a corpus once and store the result in `cache`, for resumed runs."""
    done, made_of = cache / "held_out.txt", cache / "sources.txt"
    sources = "".join(f"{file.stat().st_size} {name}\n" for name, file in _files(source).items())
    if sources and made_of.exists() and made_of.read_text() != sources:
        raise ParameterError(
            f"{str(cache)!r} holds tokens of another text than {str(source)!r}; take another run folder"
        )
    if not done.exists():
        cache.mkdir(parents=True, exist_ok=True)
        train, validation = read_texts(source, held_out, seed)
        tokenizer = train_tokenizer(list(train.values()), vocabulary)
        tokenizer.save_pretrained(cache)
        np.save(cache / "train.npy", _encode(tokenizer, list(train.values())))
        np.save(cache / "validation.npy", _encode(tokenizer, list(validation.values())))
        size = sum(len(text.encode()) for text in validation.values())
        made_of.write_text(sources)
        done.write_text("\n".join([str(size), *validation]))
    size, *names = done.read_text().splitlines()
    return Corpus(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(cache),
        train=np.load(cache / "train.npy", mmap_mode="r"),
        validation=np.load(cache / "validation.npy", mmap_mode="r"),
        validation_bytes=int(size),
        held_out=tuple(names),
    )


def check_length(corpus: Corpus, context: int) -> None:
    """Refuse a corpus that is shorter than a window."""
    for part, stream in (("trained on", corpus.train), ("held out", corpus.validation)):
        if len(stream) <= context:
            raise ParameterError(f"{len(stream)} tokens are {part}; a window has {context}: take a longer text")


def batch(stream: np.ndarray, step: int, seed: int, n_windows: int, context: int) -> torch.Tensor:
    """Draw the windows of one training step; a pure function of its arguments."""
    generator = np.random.default_rng([seed, step])
    starts = generator.integers(0, len(stream) - context, size=n_windows)
    return torch.from_numpy(np.stack([stream[s : s + context] for s in starts]).astype(np.int64))


def grammar_text(paragraphs: int) -> str:
    """Generate paragraphs of invented sentences."""
    source = random.Random(0)
    return "".join(_paragraph(source) + "\n" for _ in range(paragraphs))


def _paragraph(source: random.Random) -> str:
    """Generate four sentences about two things, the last two in the same order as the first two."""
    first, second = _noun_phrase(source), _noun_phrase(source)
    sentences = [_sentence(source, *first), _sentence(source, *second)]
    for phrase in (first, second):
        sentences.append(f"{_one(source, _OPENINGS)} {_sentence(source, *phrase)}")
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def _sentence(source: random.Random, noun: str, plural: bool) -> str:
    """Generate a subject, perhaps a clause about it, and a verb that agrees with the subject."""
    clause = ""
    if source.random() < 0.5:
        other, many = _noun_phrase(source)
        clause = f" that {other} {_agreeing(source, many)}"
    target, _ = _noun_phrase(source)
    return f"{noun}{clause} {_agreeing(source, plural)} {target} {_one(source, _PLACES)}."


def _noun_phrase(source: random.Random) -> tuple[str, bool]:
    """Generate an article, an adjective and a noun; return whether the noun is plural as well."""
    plural = source.random() < 0.5
    return f"the {_one(source, _ADJECTIVES)} {_one(source, _NOUNS)}{'s' * plural}", plural


def _agreeing(source: random.Random, plural: bool) -> str:
    """Choose a verb in the form of the number."""
    return _one(source, _VERBS) + "s" * (not plural)


def _one(source: random.Random, words: Sequence[str]) -> str:
    """Choose a word with equal probabilities."""
    return words[int(source.random() * len(words))]
