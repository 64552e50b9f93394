"""Scores of language models: each against the whole forward pass of a choice or a passage, and rows against means."""

import json
import math

import numpy as np
import pytest
import torch

import coupling_lib as cl
from companion.tables.files import read_table
from workflow import decoder_scores

QUERY, CHOICES = "It was the best of times, it was", ["the worst of times", "the", "a far better thing"]


def nats(model: cl.Model, text: str, first: int) -> float:
    """Sum the surprisal of a text's tokens from one on, token by token in float64."""
    ids = model.tokenizer(text)["input_ids"]
    logits = model.hf(input_ids=torch.tensor([ids])).logits[0].double()
    return -sum(logits[at - 1].log_softmax(-1)[ids[at]].item() for at in range(first, len(ids)))


# Choices that begin alike share what is computed once, and are scored from their beginning all the same.
@pytest.mark.parametrize("choices", [CHOICES, ["the worst", "the best"]])
@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_choices_have_the_likelihood_of_whole_texts(name, choices):
    model = cl.load_model(name)
    first = len(model.tokenizer(QUERY)["input_ids"])
    expected = [-nats(model, f"{QUERY} {choice}", first) for choice in choices]
    assert decoder_scores.log_likelihoods(model, QUERY, choices) == pytest.approx(expected, rel=1e-4)


def test_bits_per_byte_leave_out_the_first_token():
    model = cl.load_model("nano-neox")
    passage = " The café was closed – nobody knew why, and nobody asked."
    spans = model.tokenizer(passage, return_offsets_mapping=True)["offset_mapping"]
    size = len(passage[spans[1][0] :].encode())
    whole = decoder_scores.bits_per_byte(model, passage, context=512)
    assert whole == pytest.approx(nats(model, passage, 1) / math.log(2) / size, rel=1e-4)
    start = spans[13][0]  # a window that begins with " no", a word of its own
    bits = sum(nats(model, part, 1) for part in (passage[:start], passage[start:])) / math.log(2)
    windows = decoder_scores.bits_per_byte(model, passage, context=13)
    assert windows == pytest.approx(bits / (size - len(" no")), rel=1e-4)


def test_passages_are_whole_words_spread_over_the_text():
    text = " ".join(f"wörd{number}" for number in range(3000))
    found = decoder_scores.passages(text, 4)
    assert len(found) == 4 and all(900 < len(one.encode()) <= decoder_scores.BYTES for one in found)
    assert all(set(one.split()) <= set(text.split()) for one in found)
    assert found[0].split()[0] == "wörd1" and int(found[3].split()[0][4:]) > 2000
    assert found == decoder_scores.passages(text, 8)[::2]  # fewer are some of the same


def test_rows_are_question_means_measured_once(tmp_path, monkeypatch):
    questions = [{"query": QUERY, "choices": CHOICES, "gold": gold} for gold in (0, 1, 2)]
    for name in decoder_scores.SETS:
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(one) for one in questions))
    table = tmp_path / "scores.csv"
    command = ["nano-neox", "--questions", str(tmp_path), "--n", "3", "--table", str(table)]
    assert decoder_scores.main(command) == 0
    found = read_table(table)
    assert len(found) == 10 and found["n"].eq(3).all() and found["chance"].to_numpy() == pytest.approx(1 / 3)
    # One of three labels is the answer that is chosen, whichever that is.
    assert found["value"].to_numpy() == pytest.approx(1 / 3, abs=1e-5)
    before = table.read_text()
    monkeypatch.setattr(decoder_scores, "answered", None)
    assert decoder_scores.main(command) == 0 and table.read_text() == before
    command[command.index("3")] = "2"  # fewer questions do not take the place of more
    assert decoder_scores.main(command) == 0 and table.read_text() == before


def test_windows_are_rescored_and_limited_to_the_context(tmp_path, capsys):
    text, table = tmp_path / "text", tmp_path / "scores.csv"
    text.write_text("It was the best of times, it was the worst of times. " * 50)
    for asked, context in ((9, 9), (1000, 512)):
        command = ["nano-neox", "--wikitext", text, "--passages", "5", "--context", asked, "--table", table]
        assert decoder_scores.main(list(map(str, command))) == 0
        assert read_table(table)["context"].tolist() == [context]
    assert decoder_scores.main(["nano-vit", *map(str, command[1:])]) == 1
    assert capsys.readouterr().err.startswith("error: 'nano-vit' has no tokenizer; give")


def test_answer_is_chosen_raw_and_per_character():
    model = cl.load_model("nano-neox")
    found = np.array(decoder_scores.log_likelihoods(model, QUERY, CHOICES))
    best = int(found.argmax()), int((found / [len(choice) for choice in CHOICES]).argmax())
    right = [decoder_scores.answered(model, {"query": QUERY, "choices": CHOICES, "gold": gold}) for gold in range(3)]
    assert right == [tuple(float(gold == one) for one in best) for gold in range(3)] and best[0] != best[1]


UNREADABLE = ["", "--novels . --passages 4", "--wikitext no-such-file", "--novels no-such-folder"]
UNREADABLE += ["--questions no-such-folder", "--wikitext {} --context 1", "--wikitext {} --n 0"]


@pytest.mark.parametrize("given", UNREADABLE)
def test_what_cannot_be_read_is_one_line(given, tmp_path, capsys):
    given = [word.format(__file__) for word in given.split()]
    assert decoder_scores.main(["nano-neox", *given, "--table", str(tmp_path / "scores.csv")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "scores.csv").exists()
