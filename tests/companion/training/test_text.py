"""Corpora: nothing held out is trained on, and batches are a function of seed and step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused

from companion.training import text
from coupling_lib.errors import ParameterError

BOOKS = {
    f"book{i}.txt": f"\ufeffChapter {i}.\r\n" + f"The {i} hounds of winter ran, naïve and loud. " * 60 for i in range(8)
}


@pytest.fixture
def folder(tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    for name, content in BOOKS.items():
        (books / name).write_bytes(content.encode())
    return books


def test_held_out_text_is_whole_files_or_tail(folder, tmp_path):
    train, held = text.read_texts(folder, 0.25, seed=0)
    assert len(train) == 6 and len(held) == 2 and not set(train) & set(held)
    assert text.read_texts(folder, 0.25, seed=0)[1].keys() == held.keys()
    assert not any("\ufeff" in part or "\r" in part for part in [*train.values(), *held.values()])
    path = tmp_path / "one.txt"
    path.write_text("abcdefghij" * 100)
    train, held = text.read_texts(path, 0.1, seed=0)
    assert next(iter(train.values())) + next(iter(held.values())) == path.read_text()
    assert len(next(iter(held.values()))) == 100


def test_tokens_decode_to_the_text_and_are_cached(folder, tmp_path):
    corpus = text.prepare(folder, tmp_path / "cache", 300, 0.25, seed=0)
    _, held = text.read_texts(folder, 0.25, seed=0)
    decoded = corpus.tokenizer.decode(corpus.validation.tolist())
    assert decoded == "".join(part + text.END_OF_TEXT for part in held.values())
    assert corpus.validation_bytes == sum(len(part.encode()) for part in held.values())
    assert corpus.train.max() < 300 and corpus.held_out == tuple(held)
    again = text.prepare(tmp_path / "gone", tmp_path / "cache", 300, 0.25, seed=0)
    assert np.array_equal(corpus.train, again.train) and corpus.held_out == again.held_out
    other = tmp_path / "other.txt"
    other.write_text("another text")
    message = r"cache' holds tokens of another text than .*other.txt'; take another run folder"
    refused(ParameterError, message, text.prepare, other, tmp_path / "cache", 300, 0.25, seed=0)
    text.check_length(corpus, len(corpus.validation) - 1)
    message = f"{len(corpus.validation)} tokens are held out; a window has"
    refused(ParameterError, message, text.check_length, corpus, len(corpus.validation))


def test_same_named_files_are_separate_texts(tmp_path):
    for place in ("x/book.txt", "y/book.txt", "z.txt"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(place)
    train, held = text.read_texts(tmp_path, 0.3, seed=0)
    assert train | held == {place: place for place in ("x/book.txt", "y/book.txt", "z.txt")}


def test_batches_depend_on_seed_and_step_alone():
    stream = np.arange(1000, dtype=np.uint16)
    one = text.batch(stream, step=7, seed=3, n_windows=4, context=16)
    assert torch.equal(one, text.batch(stream, step=7, seed=3, n_windows=4, context=16))
    assert not torch.equal(one, text.batch(stream, step=8, seed=3, n_windows=4, context=16))
    assert not torch.equal(one, text.batch(stream, step=7, seed=4, n_windows=4, context=16))
    assert one.shape == (4, 16) and torch.equal(one.diff(dim=1), torch.ones(4, 15, dtype=torch.int64))
