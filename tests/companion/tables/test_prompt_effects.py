"""The experiment on many prompts: its estimands find what made-up tables were made with, and its rows are measured."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

import coupling_lib as cl
from companion.tables import many_prompts, prompt_effects, texts
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.nulls import gaussian_miscoupling

RANDOM = 1 - gaussian_miscoupling(10)
SETS = (*texts.SETS, *texts.PASSAGES)


def made_up(
    instruction: float = 0.02, control: float = 0.01, steps: float = 0.0, meaning: float = 0.03
) -> pd.DataFrame:
    """A model whose coupling changes by known amounts, prompts scattering by 0.01."""
    rng, rows = np.random.default_rng(0), []

    def add(name: str, at: int, coupling: float, version: str = "alone", **more: float) -> None:
        noise, untrained = rng.normal(0, 0.01), name in ("embedded", "wikitext2")
        row = {"model": "m", "network": "trained", "set": name, "id": f"{name}-{at}", "version": version}
        row |= {"tokens": 40 + at % 20, "steps": np.nan} | more
        values = {f"{score}_{states}": 2.0 + noise for score in prompt_effects.SCORES.values() for states in STATES}
        for part, lower in (("", 0.0), ("shared_", 0.04)):
            row[f"{part}normalized_miscoupling_k10"] = 1 - (coupling + noise - lower)
            if name == "embedded":
                row |= {f"{part}{kind}": RANDOM + 0.03 + noise for kind in ("self", "input", "output")}
        rows.append(row | (values if untrained else {}))
        if name == "embedded":
            columns = [key for key in row if "miscoupling" in key]
            rows.append({**row, **{key: row[key] + 0.005 for key in columns}, "network": "nf4"})
        if untrained:
            before = {key: value + 1.0 for key, value in values.items()}
            across = {key: RANDOM for key in row if key.split("_")[-1] in ("self", "input", "output")}
            rows.append({**row, **before, **across, "network": "untrained"})

    for at in range(200):
        add("problems", at, 0.16 + steps * (at % 8), steps=1 + at % 8)
        for version, change in (("alone", 0.0), ("step by step", instruction), ("control sentence", control)):
            add("gsm8k", at, 0.15 + change, version)
        for name in SETS:
            if name not in ("problems", "gsm8k"):
                add(name, at, 0.15 + meaning * (name == "novels"))
    return pd.DataFrame(rows)


STATES = ("default", "without_embedding", "normed_end", "both")


def test_known_effects_are_recovered():
    found = prompt_effects.of_model(made_up(), blocks=30)
    for part in prompt_effects.READINGS:
        assert found["instruction", part].value == pytest.approx(0.02, abs=0.003)
        assert found["instruction over control", part].value == pytest.approx(0.01, abs=0.003)
        assert found["meaning", part].value == pytest.approx(0.03, abs=0.004)
        assert found["difficulty", part].low < 0 < found["difficulty", part].high
        assert found["length within sets", part].n == 200 * len(texts.SETS) - 200
        assert found["self-coupling", part].value == pytest.approx(0.03, abs=0.003)
        assert found["self-coupling, emerged", part].value == pytest.approx(0.03, abs=0.003)
        assert found["four bits", part].value == pytest.approx(-0.005) and found["four bits", part].n == 200
    assert found["straighter", "default"].value == pytest.approx(-1.0) and found["straighter", "default"].n == 400


def test_tokens_are_compared_with_the_larger_null():
    table = made_up()
    conjugated = {"trained": RANDOM + 0.02, "untrained": RANDOM - 0.01, "nf4": 0.0}
    named = [f"{prefix}{kind}" for prefix in ("", "shared_") for kind in ("self", "input", "output")]
    null = table["network"].map(conjugated).where(table["set"] == "embedded")
    table = table.assign(**{f"{name}_conjugated": null for name in named})
    found = prompt_effects.of_model(table, blocks=30)
    plain = prompt_effects.of_model(table.drop(columns="self_conjugated"), blocks=30)
    for question in prompt_effects.ACROSS:
        for part in prompt_effects.READINGS:
            assert found[f"{question}, stricter", part].value == pytest.approx(found[question, part].value - 0.02)
            emerged = found[f"{question}, stricter, emerged", part].value
            assert emerged == pytest.approx(found[f"{question}, emerged", part].value - 0.02)
    assert ("self-coupling, stricter", "whole") not in plain and ("self-coupling, stricter", "traceless part") in plain
    table.loc[table["set"].eq("embedded").idxmax(), "self_conjugated"] = np.nan
    once = prompt_effects.of_model(table, blocks=30)
    assert ("self-coupling, stricter", "whole") not in once and once["self-coupling", "whole"].n == 200


@pytest.mark.parametrize("prefix", ["", "shared_"])
def test_conjugated_token_null_equals_explicit_rotations(prefix):
    model, K, rng = cl.load_model("nano-neox"), many_prompts.K, np.random.default_rng(0)
    prompt = cl.load_prompts(n=1)[0].text
    found = many_prompts.token_couplings(model, prompt)
    traced = cl.trace(model, prompt)
    last = [(at, at) for at in range(traced.n_tokens - many_prompts.TOKENS, traced.n_tokens)]
    J = [list(cl.block_jacobians(traced, block, last).double().numpy()) for block in range(12)]
    if prefix:
        J = [[one - np.trace(one) / len(one) * np.eye(len(one)) for one in block] for block in J]
    svds = [[np.linalg.svd(one) for one in block] for block in J]
    draws = []
    for _ in range(6):
        values = []
        for second, other in product(range(12), range(3)):
            Q, (U, _, Vh) = np.linalg.qr(rng.normal(size=J[0][0].shape))[0], svds[second][other]
            for first, one in product(range(12), range(3)):
                if first != second and one != other:
                    A = (Q @ U[:, :K]).T @ J[first][one] @ (Q @ Vh[:K].T)
                    values.append(1 - np.sqrt(1 - (np.diag(A) ** 2).sum() / (A**2).sum()))
        draws.append(np.mean(values))
    assert found[f"{prefix}self_conjugated"] == pytest.approx(np.mean(draws), abs=5 * np.std(draws, ddof=1))
    assert np.std(draws, ddof=1) < 0.003 < found[f"{prefix}self"]


def test_new_questions_count_within_their_sets_only():
    table = made_up()
    longer = {"arc_easy": 0.01, "piqa": 0.05}  # sets that differ in level, and in which coupling falls with length
    rows = [
        {
            "set": name,
            "id": f"{name}-{n}",
            "tokens": 10 + n,
            "normalized_miscoupling_k10": 0.9 - level + n / 1e4,
            "shared_normalized_miscoupling_k10": 0.95 - n / 1e4,
        }
        for name, level in longer.items()
        for n in range(40)
    ]
    new = pd.DataFrame(rows).assign(model="m", network="trained", version="alone", product_lead=[0.2, 0.4] * 40)
    found = prompt_effects.of_model(pd.concat([table, new]), blocks=30)
    assert found["length, new questions", "whole"].value == pytest.approx(-1.0) and len(rows) == 80
    assert found["length, new questions", "traceless part"].value == pytest.approx(1.0)
    assert found["product, new questions", "whole"].value == pytest.approx(0.3)
    before = prompt_effects.of_model(table, blocks=30)
    assert all(found[key].value == effect.value for key, effect in before.items())
    assert set(prompt_effects.by_set(pd.concat([table, new]))["set"]) == set(table["set"])


def test_first_new_questions_are_named_by_set(tmp_path):
    (tmp_path / "more.jsonl").write_text(
        "".join(
            json.dumps({"id": "7", "dataset": name, "prompt": f"{name}?"}) + "\n" for name in ("piqa", "arc_easy", "b")
        )
    )
    assert [one.id for one in texts.new_questions(tmp_path, 2)] == ["piqa-7", "arc_easy-7"]


@pytest.mark.thorough
def test_known_effect_of_steps_is_recovered():
    few, many = (prompt_effects.of_model(made_up(), blocks)["self-coupling", "whole"].error for blocks in (3, 30))
    assert few > 5 * many
    found = prompt_effects.of_model(made_up(steps=0.003), blocks=30)["difficulty", "whole"]
    assert found.low > 0.2 and found.n == 200
    numbers = prompt_effects.numbers(made_up(steps=0.003), blocks=30)
    assert numbers["many-difficulty-range"] == pytest.approx(7 * 0.003, abs=0.004)
    assert numbers["many-on-diagonal"] == pytest.approx(1 - (1 - numbers["many-gsm8k"]) ** 2)


def test_effect_of_steps_is_jackknifed_over_problems():
    rng = np.random.default_rng(0)
    steps = np.tile(np.arange(1, 9), 5)
    table = pd.DataFrame({"steps": steps, "coupling": 0.003 * steps + 0.01 * rng.normal(size=40)})
    found = prompt_effects._difference(table)
    left = [7 * np.polyfit(*table.drop(index=at).to_numpy().T, 1)[0] for at in table.index]
    whole = 7 * np.polyfit(*table.to_numpy().T, 1)[0]
    assert found.value == pytest.approx(whole) and found.n == 40
    assert found.error == pytest.approx(np.sqrt(39 / 40 * np.sum((np.array(left) - whole) ** 2)))


def test_variance_is_split_by_set_model_and_prompt():
    table = pd.concat([made_up(), made_up().assign(model="n")])
    same = prompt_effects.variances(table)
    assert same["models"] < 0.003 and same["prompts"] == pytest.approx(0.01, abs=0.001)
    assert same["sources"] == pytest.approx(0.03 / 5**0.5, abs=0.002)
    column = prompt_effects.READINGS["whole"]
    other = table.assign(**{column: table[column] - 0.05 * (table["model"] == "n")})
    assert prompt_effects.variances(other)["models"] == pytest.approx(0.05 / 2**0.5, abs=0.003)


def test_models_without_all_prompts_are_left_out(tmp_path):
    table = made_up()
    assert prompt_effects.finished(table[~table["id"].isin([f"mmlu-{at}" for at in range(3)])]).empty
    assert len(prompt_effects.finished(table)) == len(table)
    assert prompt_effects.finished(table[table["set"] != "code"]).empty
    assert prompt_effects.finished(table[table["network"] == "trained"]).empty
    pd.concat([table, table.iloc[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(ParameterError, match="two rows of model m, .*problems-0"):
        prompt_effects.many_prompts(tmp_path / "twice.csv")


def test_problems_have_as_many_sentences_whatever_their_steps():
    made = texts.problems()
    assert len({prompt.text for prompt in made}) == 200 and {prompt.steps for prompt in made} == set(range(1, 9))
    assert {prompt.text.count(".") + prompt.text.count("?") for prompt in made} == {texts.MOST_STEPS + 2}
    assert all(prompt.text.count(" Then ") == prompt.steps for prompt in made)
    assert texts.problems() == made


def test_passages_are_as_long_as_the_questions(tmp_path):
    model = cl.load_model("nano-neox")
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "test.txt").write_text("A whale is a large animal of the sea. " * 1000)
    for source in ("wikitext2", "code", "random tokens"):
        cut = texts.passages(model, [5, 17, 30], source, tmp_path, tmp_path)
        assert [ids.shape for ids in cut.values()] == [(1, 5), (1, 17), (1, 30)]
        again = texts.passages(model, [5, 17, 30], source, tmp_path, tmp_path)
        assert all(torch.equal(one, other) for one, other in zip(cut.values(), again.values(), strict=True))
    with pytest.raises(ParameterError, match=r"holds no \*.txt, of which novels are read; name another folder"):
        texts.passages(model, [5], "novels", tmp_path, tmp_path)


def test_folder_named_like_an_alias_gets_no_numbers(tmp_path, monkeypatch):
    (tmp_path / "nano-neox").mkdir()
    assert prompt_effects.chosen("nano-neox") is not None
    monkeypatch.chdir(tmp_path)
    assert prompt_effects.chosen("nano-neox") is None


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama", pytest.param("smollm2-135m", marks=pytest.mark.thorough)])
def test_two_prompts_of_each_model_are_measured_anew(name):
    rows = prompt_effects.chosen(name)
    model = cl.load_model(name)
    listed = many_prompts.planned_prompts(model, None, None)
    for asked in (
        next(one for one in listed if one.tokens),
        next(one for one in listed if one.notes["set"] == "problems"),
    ):
        stored = rows[(rows["id"] == asked.notes["id"]) & (rows["network"] == "trained")].iloc[0]
        for column, value in many_prompts.row(model, "trained", asked).items():
            if isinstance(value, float) and np.isfinite(value):
                assert value == pytest.approx(stored[column], rel=2e-3, abs=2e-4), column
