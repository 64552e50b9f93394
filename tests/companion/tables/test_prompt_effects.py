"""The experiment on many prompts: its estimands find what made-up tables were made with, and its rows are measured."""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

import coupling_lib as cl
from companion.tables import many_prompts, prompt_effects, texts
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.nulls import gaussian_miscoupling

RANDOM = 1 - gaussian_miscoupling(10)
SETS = (*texts.SETS, *texts.PASSAGES)
STATES = ("default", "without_embedding", "normed_end", "both")
SCORES = [f"{score}_{states}" for score in prompt_effects.SCORES.values() for states in STATES]
VERSIONS = {"alone": 0.0, "step by step": 0.02, "control sentence": 0.01}
ACROSS = [part + kind for part in ("", "shared_") for kind in ("self", "input", "output")]


def made_up(steps: float = 0.0) -> pd.DataFrame:
    """A model whose coupling changes by known amounts, prompts scattering by 0.01."""
    at, others = np.arange(200), [name for name in SETS if name not in ("problems", "gsm8k")]
    sets = [{"set": "problems", "coupling": 0.16 + steps * (at % 8), "steps": 1 + at % 8}]
    sets += [{"set": "gsm8k", "version": version, "coupling": 0.15 + size} for version, size in VERSIONS.items()]
    sets += [{"set": name, "coupling": 0.15 + 0.03 * (name == "novels")} for name in others]
    common = {"model": "m", "network": "trained", "version": "alone", "tokens": 40 + at % 20, "id": at.astype(str)}
    table = pd.concat([pd.DataFrame(common | one) for one in sets], ignore_index=True)
    table["id"], noise = table["set"] + "-" + table["id"], np.random.default_rng(0).normal(0, 0.01, len(table))
    embedded = table["set"] == "embedded"
    before = embedded | (table["set"] == "wikitext2")
    table["normalized_miscoupling_k10"] = 1 - table["coupling"] - noise
    table["shared_normalized_miscoupling_k10"] = 1.04 - table["coupling"] - noise
    values = dict.fromkeys(SCORES, np.where(before, 2.0 + noise, np.nan))
    table = table.join(pd.DataFrame(values | dict.fromkeys(ACROSS, np.where(embedded, RANDOM + 0.03 + noise, np.nan))))
    untrained, bits = table[before].assign(network="untrained"), table[embedded].drop(columns=SCORES)
    untrained[SCORES] += 1.0
    untrained[ACROSS] = untrained[ACROSS].where(untrained[ACROSS].isna(), RANDOM)
    bits[[*prompt_effects.READINGS.values()]] += 0.005
    return pd.concat([table, untrained, bits.assign(network="nf4")], ignore_index=True)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return made_up()


@pytest.fixture(scope="module")
def effects(table) -> dict:
    return prompt_effects.of_model(table, blocks=30)


def test_known_effects_are_recovered(effects):
    margins = {"instruction": (0.02, 0.003), "instruction over control": (0.01, 0.003), "meaning": (0.03, 0.004)}
    margins |= {"self-coupling": (0.03, 0.003), "self-coupling, emerged": (0.03, 0.003), "four bits": (-0.005, 5e-9)}
    for part in prompt_effects.READINGS:
        for question, (size, within) in margins.items():
            assert effects[question, part].value == pytest.approx(size, abs=within), question
        assert effects["difficulty", part].low < 0 < effects["difficulty", part].high
        assert effects["length within sets", part].n == 200 * len(texts.SETS) - 200
        assert effects["four bits", part].n == 200
    assert effects["straighter", "default"].value == pytest.approx(-1.0) and effects["straighter", "default"].n == 400


def test_tokens_are_compared_with_the_larger_null(table, effects):
    conjugated = {"trained": RANDOM + 0.02, "untrained": RANDOM - 0.01, "nf4": 0.0}
    null = table["network"].map(conjugated).where(table["set"] == "embedded")
    table = table.assign(**{f"{name}_conjugated": null for name in ACROSS})
    found = prompt_effects.of_model(table, blocks=30)
    for question, part in product(prompt_effects.ACROSS, prompt_effects.READINGS):
        for emerged in ("", ", emerged"):
            stricter = found[f"{question}, stricter{emerged}", part].value
            assert stricter == pytest.approx(effects[f"{question}{emerged}", part].value - 0.02)
    plain = prompt_effects.of_model(table.drop(columns="self_conjugated"), blocks=30)
    assert ("self-coupling, stricter", "whole") not in plain and ("self-coupling, stricter", "traceless part") in plain
    table.loc[table["set"].eq("embedded").idxmax(), "self_conjugated"] = np.nan
    once = prompt_effects.of_model(table, blocks=30)
    assert ("self-coupling, stricter", "whole") not in once and once["self-coupling", "whole"].n == 200


@pytest.mark.parametrize("prefix", ["", "shared_"])
def test_conjugated_token_null_equals_explicit_rotations(prefix):
    model, K, rng = cl.load_model("nano-neox"), many_prompts.K, np.random.default_rng(0)
    prompt = cl.load_prompts(n=1)[0].text
    found, traced = many_prompts.token_couplings(model, prompt), cl.trace(model, prompt)
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


def test_new_questions_count_within_their_sets_only(table, effects):
    # Two sets that differ in level, and in which coupling falls with length.
    new = pd.DataFrame(product(("arc_easy", "piqa"), range(40)), columns=["set", "n"])
    level, rise = new["set"].map({"arc_easy": 0.01, "piqa": 0.05}), new["n"] / 1e4
    new = new.assign(
        id=new["set"] + "-" + new["n"].astype(str), tokens=10 + new["n"], product_lead=[0.2, 0.4] * 40, model="m",
        normalized_miscoupling_k10=0.9 - level + rise, shared_normalized_miscoupling_k10=0.95 - rise,
        network="trained", version="alone",
    )  # fmt: skip
    both = pd.concat([table, new])
    found = prompt_effects.of_model(both, blocks=30)
    expected = {("length", "whole"): -1.0, ("length", "traceless part"): 1.0, ("product", "whole"): 0.3}
    assert {(what, part): found[f"{what}, new questions", part].value for what, part in expected} == pytest.approx(
        expected
    )
    assert {key: found[key].value for key in effects} == {key: effect.value for key, effect in effects.items()}
    assert set(prompt_effects.by_set(both)["set"]) == set(table["set"])


def test_first_new_questions_are_named_by_set(tmp_path):
    rows = [{"id": "7", "dataset": name, "prompt": f"{name}?"} for name in ("piqa", "arc_easy", "b")]
    (tmp_path / "more.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [one.id for one in texts.new_questions(tmp_path, 2)] == ["piqa-7", "arc_easy-7"]


@pytest.mark.thorough
def test_known_effect_of_steps_is_recovered(table, effects):
    few = prompt_effects.of_model(table, blocks=3)["self-coupling", "whole"].error
    assert few > 5 * effects["self-coupling", "whole"].error
    table = made_up(steps=0.003)
    found = prompt_effects.of_model(table, blocks=30)["difficulty", "whole"]
    assert found.low > 0.2 and found.n == 200
    numbers = prompt_effects.numbers(table, blocks=30)
    assert numbers["many-difficulty-range"] == pytest.approx(7 * 0.003, abs=0.004)
    assert numbers["many-on-diagonal"] == pytest.approx(1 - (1 - numbers["many-gsm8k"]) ** 2)


def test_effect_of_steps_is_jackknifed_over_problems():
    steps, noise = np.tile(np.arange(1, 9), 5), np.random.default_rng(0).normal(size=40)
    table = pd.DataFrame({"steps": steps, "coupling": 0.003 * steps + 0.01 * noise})
    found = prompt_effects._difference(table)
    left = [7 * np.polyfit(*table.drop(index=at).to_numpy().T, 1)[0] for at in table.index]
    whole = 7 * np.polyfit(*table.to_numpy().T, 1)[0]
    expected = (whole, np.sqrt(39 / 40 * np.sum((np.array(left) - whole) ** 2)), 40)
    assert (found.value, found.error, found.n) == pytest.approx(expected)


def test_variance_is_split_by_set_model_and_prompt(table):
    both, column = pd.concat([table, table.assign(model="n")]), prompt_effects.READINGS["whole"]
    same = prompt_effects.variances(both)
    assert same["models"] < 0.003 and same["prompts"] == pytest.approx(0.01, abs=0.001)
    assert same["sources"] == pytest.approx(0.03 / 5**0.5, abs=0.002)
    other = both.assign(**{column: both[column] - 0.05 * (both["model"] == "n")})
    assert prompt_effects.variances(other)["models"] == pytest.approx(0.05 / 2**0.5, abs=0.003)


def test_models_without_all_prompts_are_left_out(table, tmp_path):
    assert len(prompt_effects.finished(table)) == len(table)
    some = ~table["id"].isin([f"mmlu-{at}" for at in range(3)])
    for kept in (some, table["set"] != "code", table["network"] == "trained"):
        assert prompt_effects.finished(table[kept]).empty
    pd.concat([table, table.iloc[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    message = "two rows of model m, .*problems-0"
    refused(ParameterError, message, prompt_effects.many_prompts, tmp_path / "twice.csv")


def test_problems_have_as_many_sentences_whatever_their_steps():
    made = texts.problems()
    assert len({prompt.text for prompt in made}) == 200 and {prompt.steps for prompt in made} == set(range(1, 9))
    assert {prompt.text.count(".") + prompt.text.count("?") for prompt in made} == {texts.MOST_STEPS + 2}
    assert all(prompt.text.count(" Then ") == prompt.steps for prompt in made) and texts.problems() == made


def test_passages_are_as_long_as_the_questions(tmp_path):
    model, lengths = cl.load_model("nano-neox"), [5, 17, 30]
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "test.txt").write_text("A whale is a large animal of the sea. " * 1000)
    for source in ("wikitext2", "code", "random tokens"):
        cut, again = (texts.passages(model, lengths, source, tmp_path, tmp_path).values() for _ in range(2))
        assert [ids.shape for ids in cut] == [(1, n) for n in lengths]
        assert all(torch.equal(*both) for both in zip(cut, again, strict=True))
    message = r"holds no \*.txt, of which novels are read; name another folder"
    refused(ParameterError, message, texts.passages, model, [5], "novels", tmp_path, tmp_path)


def test_folder_named_like_an_alias_gets_no_numbers(tmp_path, monkeypatch):
    (tmp_path / "nano-neox").mkdir()
    assert prompt_effects.chosen("nano-neox") is not None
    monkeypatch.chdir(tmp_path)
    assert prompt_effects.chosen("nano-neox") is None


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama", pytest.param("smollm2-135m", marks=pytest.mark.thorough)])
def test_two_prompts_of_each_model_are_measured_anew(name):
    rows, model = prompt_effects.chosen(name), cl.load_model(name)
    listed = many_prompts.planned_prompts(model, None, None)
    chosen = (lambda one: one.tokens, lambda one: one.notes["set"] == "problems")
    for asked in (next(filter(of, listed)) for of in chosen):
        stored = rows[(rows["id"] == asked.notes["id"]) & (rows["network"] == "trained")].iloc[0]
        for column, value in many_prompts.row(model, "trained", asked).items():
            if isinstance(value, float) and np.isfinite(value):
                assert value == pytest.approx(stored[column], rel=2e-3, abs=2e-4), column
