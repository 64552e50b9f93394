"""Corpora: nothing held out is trained on, and batches are a function of seed and step."""

import numpy as np
import pytest
import torch
from refusals import refused

from companion.training import text
from coupling_lib.errors import ParameterError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "books").mkdir()
    for i in range(8):
        content = f"\ufeffChapter {i}.\r\n" + f"The {i} hounds of winter ran, naïve and loud. " * 60
        (tmp_path / f"books/book{i}.txt").write_bytes(content.encode())
    return tmp_path / "books"


def test_held_out_text_is_whole_files_or_tail(folder, tmp_path):
    train, held = text.read_texts(folder, 0.25, seed=0)
    assert len(train) == 6 and len(held) == 2 and not set(train) & set(held)
    assert text.read_texts(folder, 0.25, seed=0)[1].keys() == held.keys()
    assert not any("\ufeff" in part or "\r" in part for part in [*train.values(), *held.values()])
    path = tmp_path / "one.txt"
    path.write_text("abcdefghij" * 100)
    (train,), (held,) = (part.values() for part in text.read_texts(path, 0.1, seed=0))
    assert train + held == path.read_text() and len(held) == 100


def test_tokens_decode_to_the_text_and_are_cached(folder, tmp_path):
    def prepare(source):
        return text.prepare(tmp_path / source, tmp_path / "cache", 300, 0.25, seed=0)

    corpus, (_, held) = prepare("books"), text.read_texts(folder, 0.25, seed=0)
    assert corpus.tokenizer.decode(corpus.validation) == "".join(part + text.END_OF_TEXT for part in held.values())
    assert corpus.validation_bytes == sum(len(part.encode()) for part in held.values())
    assert corpus.train.max() < 300 and corpus.held_out == tuple(held)
    again = prepare("gone")
    assert np.array_equal(corpus.train, again.train) and corpus.held_out == again.held_out
    (tmp_path / "other.txt").write_text("another text")
    message = r"cache' holds tokens of another text than .*other.txt'; take another run folder"
    refused(ParameterError, message, prepare, "other.txt")
    n = len(corpus.validation)
    text.check_length(corpus, n - 1)
    refused(ParameterError, f"{n} tokens are held out; a window has", text.check_length, corpus, n)


def test_same_named_files_are_separate_texts(tmp_path):
    places = ("x/book.txt", "y/book.txt", "z.txt")
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(place)
    train, held = text.read_texts(tmp_path, 0.3, seed=0)
    assert train | held == dict(zip(places, places, strict=True))


def test_batches_depend_on_seed_and_step_alone():
    stream = np.arange(1000, dtype=np.uint16)
    one, same, *others = (text.batch(stream, *at, n_windows=4, context=16) for at in ((7, 3), (7, 3), (8, 3), (7, 4)))
    assert torch.equal(one, same) and not any(torch.equal(one, other) for other in others)
    assert one.shape == (4, 16) and torch.equal(one.diff(dim=1), torch.ones(4, 15, dtype=torch.int64))
