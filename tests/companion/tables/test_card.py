"""A model's card, and what is found wrong with one: form, digests, versions, and one prompt measured anew."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import coupling_lib as cl
from companion.tables import card as cards
from companion.tables import card_check
from companion.tables.effects import couplings
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[cards.Card, dict]:
    model = cl.load_model("nano-neox", revision="step1000")
    return cards.measure_card(model, 2, store=tmp_path_factory.mktemp("store"))


def written(folder: Path, card: object, signed: bool = True) -> Path:
    """Write a card under a name, with the digest that it should have or the one that it has."""
    file = folder / "one.json"
    file.write_text(json.dumps(cards.with_digest(card) if signed else card))
    return file


def changed(card: cards.Card, path: str, value: object) -> cards.Card:
    """Put a value into a copy of a card."""
    copy = json.loads(json.dumps(card))
    *places, last = path.split(".")
    part = copy
    for place in places:
        part = part[place]
    part[last] = value
    return copy


def test_a_card_holds_what_the_measures_say(made):
    card, measured = made
    depth, shared = measured["depth"], cl.shared_part(measured["depth"])
    for name, ds in (("whole", depth), ("shared", shared)):
        part, values = card["coupling"][name], couplings(ds, "normalized_miscoupling", 10)
        assert part["all"]["mean"] == pytest.approx(values.mean(), rel=1e-4)
        assert part["all"]["low"] < part["all"]["mean"] < part["all"]["high"]
        assert part["neighbours"]["mean"] == pytest.approx(part["by_distance"][0], rel=1e-4)
        assert part["null"]["mean"] == pytest.approx(0.0516, abs=3e-4) and 0 < part["null"]["error"] < 1e-4
        assert card["coupling"]["first"][name] == pytest.approx(values[0], rel=1e-4)
    assert (card["model"], card["revision"], card["blocks"], card["width"]) == ("nano-neox", "step1000", 12, 96)
    assert card["prompts"]["n"] == 2 and card["prompts"]["digest"] == depth.attrs["prompts_sha256"]
    first = card["spectra"][3]
    assert first["s_1"] == pytest.approx(float(depth["singular_values"][:, 3, 0].mean()), rel=1e-4)
    assert len(card["spectra"]) == 12 and all(one["s_1"] >= one["s_10"] and one["rank"] >= 1 for one in card["spectra"])
    assert card["trajectories"]["line_shape_score"]["n"] == 2 and cards.name_of(card) == "nano-neox-step1000"


def test_card_of_a_folder_bears_its_name(made, tmp_path):
    card, measured = made
    folder, model = tmp_path / "my model", cl.load_model("nano-neox", revision="step1000")
    folder.mkdir()
    model = replace(model, name=str(folder))
    own = cards._card(model, card["prompts"], measured, 0.1)
    assert (own["model"], own["source"], cards.name_of(own)) == ("my-model", "folder my-model", "my-model-step1000")
    assert list(card_check.faults(written(tmp_path, own))) == []


def test_known_depth_follows_last_other_prediction(made):
    _, measured = made
    for text, known in zip(cards.chosen_texts(2, 0), measured["known"]["known"].values, strict=True):
        ids = cl.lens(cl.trace(cl.load_model("nano-neox", revision="step1000"), text)).readout(k=1).ids[:, 0].tolist()
        assert set(ids[int(known):]) == {ids[-1]} and (known == 0 or ids[int(known) - 1] != ids[-1])  # fmt: skip


def test_card_of_vision_model_has_no_lens(tmp_path):
    card, measured = cards.measure_card(cl.load_model("nano-vit"), 2, store=tmp_path)
    assert card["known_from"] is None and "known" not in measured and card["token"] == 0
    assert card["prompts"]["kind"] == "images"
    assert card_check.check([written(tmp_path, card, signed=False)]) == 0


def test_a_card_that_was_just_written_is_good(made, tmp_path, capsys):
    card, _ = made
    assert card_check.check([cards.write_card(card, tmp_path / "a" / "card.json")]) == 0
    output = capsys.readouterr()
    first = f"{card['coupling']['first']['whole']:.4f}"
    assert (
        output.err == ""
        and f"card.json: good; of its first prompt {first} was stated, {first} measured anew" in output.out
    )
    assert cards.write_card(card, tmp_path) == tmp_path / f"{cards.name_of(card)}.json"  # a folder was named


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "coupling-card/0", "its format is 'coupling-card/0'; 'coupling-card/1' is expected; measure it"),
        ("coupling.whole.all.mean", "much", "coupling.whole.all.mean: 'much' is not of type 'number'"),
        ("model", "../elsewhere", "model: '../elsewhere' does not match"),
        ("opinion", "good", "the card: Additional properties are not allowed ('opinion' was unexpected)"),
        ("measures.depth", 1, "its measures are {'depth': 1, 'trajectories': 3, 'known': 1}; {'depth': 3,"),
        ("versions", "torch 2.13", "its versions are 'torch 2.13'; one of coupling_lib, transformers, "),
        ("prompts.digest", "0123456789ab", "it has 2 prompts with the digest 0123456789ab; 2 prompts with the digest "),
        ("prompts.chosen", "3", "is expected of '3' with seed 0; measure it anew"),
        ("prompts.chosen", "nowhere:2", "its prompts are 'nowhere:2'; some that are here are expected ("),
        ("revision", "step7", "its model is nano-neox at step7; one that is here is expected ("),
        ("coupling.first.whole", 0.5, "coupling.first.whole is 0.50000; 0.16"),
    ],
)  # fmt: skip
def test_each_fault_of_a_card_is_one_line(made, path, value, message, tmp_path, capsys):
    assert card_check.check([written(tmp_path, changed(made[0], path, value))]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: one.json: ") and message in lines[0]


def test_changed_number_is_found_by_the_digest(made, tmp_path, capsys):
    wrong = changed(made[0], "coupling.whole.all.mean", 0.5)
    assert card_check.check([written(tmp_path, wrong, signed=False)]) == 1
    seen = cards.digest_of(wrong)[:12]
    assert f"its content has the digest {seen}; {made[0]['digest'][:12]} is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it holds no JSON ("),
        ("[" * 5000, "it holds no JSON ("),
        (b"\xff\xfe", "it holds no JSON ("),
        ("[]", "its format is []"),
        (json.dumps("x" * 200_001), "it holds 200,003 bytes; one record of JSON of at most 200,000 bytes is expected"),
    ],
)
def test_file_that_is_no_card_is_refused(text, message, tmp_path, capsys):
    (tmp_path / "bad.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert card_check.check([tmp_path / "bad.json"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: bad.json: {message}")


def test_a_check_of_no_card_is_refused():
    with pytest.raises(ParameterError, match="no card was named, .*; name one: make atlas-check FILE="):
        card_check.check([])


@pytest.mark.thorough
def test_failed_check_ends_with_status_one(tmp_path):
    command = [sys.executable, "-m", "companion.tables.card_check", str(tmp_path / "none.json")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 1 and run.stderr == f"error: {tmp_path / 'none.json'}: No such file or directory\n"


@pytest.mark.parametrize("prompts", ["gsm8k", 0, "-1", "embedded:", "a:b:3", "24\n"])
def test_invalid_prompts_of_a_card_are_refused(prompts):
    with pytest.raises(ParameterError, match="a card takes a number, or a set with one"):
        cards.source_and_count(prompts)


def test_shipped_cards_are_good_and_correctly_named():
    files = sorted(file for file in cards.FOLDER.glob("*.json") if file != cards.SCHEMA)
    assert len(files) >= 10 and {file.name: list(card_check.faults(file)) for file in files} == {
        f"{cards.name_of(card)}.json": [] for card in cards.atlas()
    }
    assert {card["prompts"]["n"] for card in cards.atlas()} <= {12, 24}
