"""A model's card, and what is found wrong with one: form, digests, versions, and one prompt measured anew."""

import json
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest
from refusals import refused

import coupling_lib as cl
from companion.tables import card as cards
from companion.tables import card_check
from companion.tables.effects import couplings
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT


@pytest.fixture(scope="module")
def model() -> cl.Model:
    return cl.load_model("nano-neox", revision="step1000")


@pytest.fixture(scope="module")
def made(model, tmp_path_factory) -> tuple[cards.Card, dict]:
    return cards.measure_card(model, 2, store=tmp_path_factory.mktemp("store"))


@pytest.fixture
def check(tmp_path, capsys):
    """Check a file of some content; return the lines of its faults."""

    def lines(content: bytes | str) -> list[str]:
        file = tmp_path / "one.json"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        status, errors = card_check.check([file]), capsys.readouterr().err.splitlines()
        assert status == bool(errors) and all(line.startswith("error: one.json: ") for line in errors)
        return [line.removeprefix("error: one.json: ") for line in errors]

    return lines


def changed(card: cards.Card, path: str, value: object) -> cards.Card:
    """Put a value into a copy of a card."""
    copy, (*places, last) = deepcopy(card), path.split(".")
    reduce(getitem, places, copy)[last] = value
    return copy


def test_a_card_holds_what_the_measures_say(made):
    card, measured = made
    depth = measured["depth"]
    for name, ds in (("whole", depth), ("shared", cl.shared_part(depth))):
        part, values = card["coupling"][name], couplings(ds, "normalized_miscoupling", 10)
        assert part["all"]["mean"] == pytest.approx(values.mean(), rel=1e-4)
        assert part["all"]["low"] < part["all"]["mean"] < part["all"]["high"]
        assert part["neighbours"]["mean"] == pytest.approx(part["by_distance"][0], rel=1e-4)
        assert part["null"]["mean"] == pytest.approx(0.0516, abs=3e-4) and 0 < part["null"]["error"] < 1e-4
        assert card["coupling"]["first"][name] == pytest.approx(values[0], rel=1e-4)
    assert (card["model"], card["revision"], card["blocks"], card["width"]) == ("nano-neox", "step1000", 12, 96)
    assert card["prompts"]["n"] == 2 and card["prompts"]["digest"] == depth.attrs["prompts_sha256"]
    assert card["spectra"][3]["s_1"] == pytest.approx(float(depth["singular_values"][:, 3, 0].mean()), rel=1e-4)
    assert len(card["spectra"]) == 12 and all(one["s_1"] >= one["s_10"] and one["rank"] >= 1 for one in card["spectra"])
    assert card["trajectories"]["line_shape_score"]["n"] == 2 and cards.name_of(card) == "nano-neox-step1000"


def test_card_of_a_folder_bears_its_name(model, made, check, tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    own = cards._card(replace(model, name=str(folder)), made[0]["prompts"], made[1], 0.1)
    assert (own["model"], own["source"], cards.name_of(own)) == ("my-model", "folder my-model", "my-model-step1000")
    assert check(json.dumps(cards.with_digest(own))) == []


def test_known_depth_follows_last_other_prediction(model, made):
    for text, known in zip(cards.chosen_texts(2, 0), made[1]["known"]["known"].values, strict=True):
        ids = cl.lens(cl.trace(model, text)).readout(k=1).ids[:, 0].tolist()
        assert set(ids[int(known):]) == {ids[-1]} and (known == 0 or ids[int(known) - 1] != ids[-1])  # fmt: skip


def test_card_of_vision_model_has_no_lens(check, tmp_path):
    card, measured = cards.measure_card(cl.load_model("nano-vit"), 2, store=tmp_path)
    assert card["known_from"] is None and "known" not in measured and card["token"] == 0
    assert card["prompts"]["kind"] == "images" and check(json.dumps(card)) == []


def test_a_card_that_was_just_written_is_good(made, tmp_path, capsys):
    card, _ = made
    assert card_check.check([cards.write_card(card, tmp_path / "a" / "card.json")]) == 0
    output, first = capsys.readouterr(), f"{card['coupling']['first']['whole']:.4f}"
    assert output.err == ""
    assert f"card.json: good; of its first prompt {first} was stated, {first} measured anew" in output.out
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
def test_each_fault_of_a_card_is_one_line(made, check, path, value, message):
    (line,) = check(json.dumps(cards.with_digest(changed(made[0], path, value))))
    assert message in line


def test_changed_number_is_found_by_the_digest(made, check):
    wrong = changed(made[0], "coupling.whole.all.mean", 0.5)
    expected = f"its content has the digest {cards.digest_of(wrong)[:12]}; {made[0]['digest'][:12]} is expected"
    assert [line.startswith(expected) for line in check(json.dumps(wrong))] == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "it holds no JSON (") for text in ("{", "[" * 5000, b"\xff\xfe")),
        ("[]", "its format is []"),
        (json.dumps("x" * 200_001), "it holds 200,003 bytes; one record of JSON of at most 200,000 bytes is expected"),
    ],
)
def test_file_that_is_no_card_is_refused(check, text, message):
    (line,) = check(text)
    assert line.startswith(message)


@pytest.mark.thorough
def test_failed_check_ends_with_status_one(tmp_path):
    command = [sys.executable, "-m", "companion.tables.card_check", str(tmp_path / "none.json")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 1 and run.stderr == f"error: {tmp_path / 'none.json'}: No such file or directory\n"


def test_a_check_of_no_card_is_refused():
    message = "no card was named, .*; name one: make atlas-check FILE="
    refused(ParameterError, message, card_check.check, [])


@pytest.mark.parametrize("prompts", ["gsm8k", 0, "-1", "embedded:", "a:b:3", "24\n"])
def test_invalid_prompts_of_a_card_are_refused(prompts):
    refused(ParameterError, "a card takes a number, or a set with one", cards.source_and_count, prompts)


def test_shipped_cards_are_good_and_correctly_named():
    files = sorted(file for file in cards.FOLDER.glob("*.json") if file != cards.SCHEMA)
    found = {file.name: list(card_check.faults(file)) for file in files}
    assert len(files) >= 10 and found == {f"{cards.name_of(card)}.json": [] for card in cards.atlas()}
    assert {card["prompts"]["n"] for card in cards.atlas()} <= {12, 24}
