"""Prompt figures: what is drawn is what was measured, against loops written out and SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import xarray as xr

from companion.figures import prompts
from companion.tables.arrays import side_by_side
from coupling_lib.datasets.summaries import Chance
from coupling_lib.errors import ParameterError
from tests.companion.figures import made

NAME, K, BLOCKS, NULL = "normalized_miscoupling", 3, 4, Chance(0.95, 9e-6)
VERSIONS = ("alone", "step by step", "control sentence")


def make_prompts(strength: float, seed: int, n_questions: int = 6, n_others: int = 5) -> xr.Dataset:
    """Questions in three versions, shuffled, and prompts of another set without counted steps."""
    rng = np.random.default_rng(seed)
    lines = [(f"q{i}", version, "sums", 2.0 + i % 3) for i in range(n_questions) for version in VERSIONS]
    lines += [(f"s{i}", "alone", "stories", np.nan) for i in range(n_others)]
    lines = [lines[i] for i in np.random.default_rng(9).permutation(len(lines))]
    values = 1 - strength + 0.05 * rng.standard_normal((len(lines), 1, BLOCKS, BLOCKS))
    values[:, :, range(BLOCKS), range(BLOCKS)] = 0
    question, version, dataset, steps = (list(column) for column in zip(*lines, strict=True))
    notes = {
        "id": [f"{q}/{v}" for q, v in zip(question, version, strict=True)],
        "question": question,
        "version": version,
        "dataset": dataset,
        "steps": steps,
        "n_tokens": rng.integers(10, 60, len(lines)),
    }
    return xr.Dataset(
        {NAME: (("prompt", "k", "block_1", "block_2"), values)},
        coords={"k": [K]} | {name: ("prompt", column) for name, column in notes.items()},
        attrs={"control": "It rained.", "control_tokens": 3, "instruction_tokens": 4, "words_as_tokens": 0},
    )


def networks(n):
    return made.networks(n, lambda place: make_prompts((0.05, 0.3, 0.2)[place], seed=place + 1))


def rated(n: int) -> xr.Dataset:
    """Some of the prompts have a rating of their difficulty."""
    both = networks(n)
    ratings = np.where(np.arange(both.sizes["prompt"]) % 4 > 0, np.linspace(-1, 2, both.sizes["prompt"]) ** 2, np.nan)
    return both.assign_coords(rating=("prompt", ratings))


def of_models(n: int) -> xr.Dataset:
    """Trained models of different depths, the second without the last block."""
    found = {f"organisation/a-model-with-a-name-{i}": make_prompts(0.2, seed=i) for i in range(n)}
    shorter = {name: ds.isel(block_1=slice(3), block_2=slice(3)) for name, ds in list(found.items())[1:2]}
    return prompts.take_models(found | shorter, NAME, K, NULL)


CASES = {
    "draw_versions of models": (prompts.draw_versions, of_models),
    "draw_prompts rated": (prompts.draw_prompts, lambda n: prompts.take_prompts(rated(n), NAME, K, NULL)),
}


BOTH = networks(2)
TRAINED = make_prompts(0.3, seed=2)


def blocks_of(data, prompt):
    """Each block's coupling with all others in both directions, written out."""
    values = data[NAME].values[prompt, 0]
    others = [[other for other in range(BLOCKS) if other != block] for block in range(BLOCKS)]
    return [np.mean([1 - v for o in others[b] for v in (values[b, o], values[o, b])]) for b in range(BLOCKS)]


def test_prompt_correlations_are_spearman_correlations():
    table = prompts.take_prompts(BOTH, NAME, K, NULL)
    assert len(table) == 2 * 11 and set(table.version) == {"alone"}
    data = TRAINED
    place = data.version.values.tolist().index("alone")
    line = table[(table.network == "trained") & (table.id == data.id.values[place])].iloc[0]
    assert line.coupling == pytest.approx(1 - data[NAME].values[place, 0].sum() / (BLOCKS * (BLOCKS - 1)))
    assert line.tokens == data.n_tokens.values[place]
    alone = table[table.network == "trained"]
    found = prompts.correlations(table, "trained")
    assert found["length"].value == pytest.approx(scipy.stats.spearmanr(alone.tokens, alone.coupling).statistic)
    counted = alone[alone.steps.notna()]
    assert found["steps"].n == 6
    assert found["steps"].value == pytest.approx(scipy.stats.spearmanr(counted.steps, counted.coupling).statistic)
    means = alone.groupby("dataset")[["tokens", "coupling"]].transform("mean")
    within = scipy.stats.spearmanr(alone.tokens - means.tokens, alone.coupling - means.coupling).statistic
    assert found["length within sets"].value == pytest.approx(within)
    listed = prompts.correlation_table(table).set_index(["network", "quantity"])
    assert listed.loc[("trained", "length in tokens"), "spearman"] == found["length"].value


def test_ratings_replace_steps_where_known():
    table = prompts.take_prompts(rated(2), NAME, K, NULL)
    known = table[(table.network == "trained") & table.rating.notna()]
    found = prompts.correlations(table, "trained")
    assert found["rating"].n == len(known) > 4
    assert found["rating"].value == pytest.approx(scipy.stats.spearmanr(known.rating, known.coupling).statistic)
    assert found["rating at equal length"].n == len(known) and found["steps"].n == 6
    left = prompts.draw_prompts(table).axes[0]
    assert left.get_xlabel() == "rated difficulty"
    np.testing.assert_allclose(left.collections[1].get_offsets(), known[["rating", "coupling"]])
    unrated = prompts.take_prompts(BOTH, NAME, K, NULL)
    assert "rating" not in unrated and "rating" not in prompts.correlations(unrated, "trained")
    assert "rating" not in prompts.take_prompts(BOTH.assign_coords(rating=("prompt", [np.nan] * 23)), NAME, K, NULL)


def test_difference_between_sets_gives_no_within_correlation():
    data = TRAINED.copy(deep=True)
    stories = data["dataset"].values == "stories"
    data[NAME].values[stories] *= 0.5
    data["n_tokens"].values[:] = np.where(stories, 20, 50) + data["n_tokens"].values % 7
    found = prompts.correlations(prompts.take_prompts(side_by_side(trained=data), NAME, K, NULL), "trained")
    assert found["length"].high < 0 and found["length within sets"].low < 0 < found["length within sets"].high


def test_sets_of_two_prompts_are_left_out():
    rng = np.random.default_rng(0)
    columns = {"network": "trained", "id": np.arange(12).astype(str), "dataset": np.repeat(list("abcdef"), 2)}
    table = pd.DataFrame(columns | {"steps": np.nan, "tokens": np.arange(12.0), "coupling": rng.normal(size=12)})
    assert prompts.correlations(table, "trained")["length within sets"] is None
    more = prompts.correlations(table.assign(dataset=np.repeat([*"abcd"], [3, 4, 3, 2])), "trained")
    assert more["length within sets"].n == 10


def test_too_few_prompts_have_no_correlation():
    few = TRAINED.isel(prompt=np.isin(TRAINED.question.values, ["q0", "q1"])).copy(deep=True)
    few["n_tokens"].values[:] = 16
    table = prompts.take_prompts(side_by_side(trained=few), NAME, K, NULL)
    assert set(prompts.correlations(table, "trained").values()) == {None}
    assert prompts.draw_prompts(table).axes[0].texts[0].get_text() == "trained: too few prompts"


def test_versions_are_paired_by_question():
    data = TRAINED
    found = prompts.version_couplings(BOTH, NAME, K).sel(network="trained")
    assert found.version.values.tolist() == list(dict.fromkeys(data.version.values)) and set(
        found.version.values
    ) == set(VERSIONS)
    first = data.version.values == data.version.values[0]
    order = [question for question in data.question.values[first] if question.startswith("q")]
    assert found.question.values.tolist() == order and len(order) == 6
    for version in VERSIONS:
        for question in order:
            wanted = blocks_of(data, data.id.values.tolist().index(f"{question}/{version}"))
            np.testing.assert_allclose(found.sel(version=version, question=question), wanted)
    alone = side_by_side(trained=TRAINED.isel(prompt=TRAINED.version.values == "alone"))
    with pytest.raises(ParameterError, match="no prompt was measured in several versions"):
        prompts.version_couplings(alone, NAME, K)


def test_summary_gives_paired_differences_with_intervals():
    summary = prompts.take_summary(BOTH, NAME, K, null=0.95)
    found = prompts.version_couplings(BOTH, NAME, K).sel(network="trained")
    difference = (found.sel(version="step by step") - found.sel(version="alone")).mean("block").values
    line = summary.loc["trained"]
    assert line["step by step"] == pytest.approx(found.sel(version="step by step").mean().item())
    assert line["step by step difference"] == pytest.approx(difference.mean())
    assert line["step by step difference low"] < difference.mean() < line["step by step difference high"]
    book = prompts.numbers_of(BOTH, NAME, K, Chance(0.95, 1e-5))
    assert book["step-by-step-difference-trained-low"] == line["step by step difference low"]
    assert book["control-sentence-difference-untrained"] == summary.loc["untrained", "control sentence difference"]
    assert book["step-by-step-trained"] == line["step by step"] and book["null-error"] == 1e-5
    assert book["null"] == pytest.approx(0.05) and "length-untrained-high" in book
    assert book["step-by-step-change"] == pytest.approx(difference.mean())


def test_profiles_show_mean_and_paired_difference():
    figure = prompts.draw_versions(prompts.take_versions(BOTH, NAME, K, null=0.95))
    found = prompts.version_couplings(BOTH, NAME, K).sel(network="trained")
    above, below = figure.axes[1], figure.axes[3]
    for line, version in zip(above.lines, found.version.values, strict=False):
        assert np.allclose(line.get_ydata(), found.sel(version=version).mean("question")), version
        assert line.get_xdata().tolist() == [1, 2, 3, 4]
        assert above.get_ylim()[0] <= 0 and line.get_ydata().max() < above.get_ylim()[1]
    changed = [version for version in found.version.values if version != "alone"]
    for line, version in zip(below.lines, changed, strict=False):
        assert np.allclose(line.get_ydata(), (found.sel(version=version) - found.sel(version="alone")).mean("question"))


def test_caption_names_the_control_sentence():
    data = TRAINED.copy()
    assert "adds 4 tokens, the control sentence (“It rained.”) 3." in prompts.versions_caption(data)
    data.attrs["words_as_tokens"] = 1
    assert "each word stands for one token" in prompts.versions_caption(data)


def test_models_are_sorted_by_size():
    short = TRAINED.isel(block_1=slice(3), block_2=slice(3))
    found = prompts.take_models({"mine": TRAINED, "gpt2-xl": TRAINED, "gpt2": short}, NAME, K, NULL)
    assert found.network.values.tolist() == ["gpt2", "gpt2-xl", "mine"]
    alone = prompts.take_versions(side_by_side(trained=short), NAME, K, NULL).isel(network=0, drop=True)
    shown = found.sel(network="gpt2").isel(block=slice(3)).drop_vars("network")
    np.testing.assert_allclose(shown["mean"], alone["mean"].transpose(*shown["mean"].dims))
    assert np.isnan(found["mean"].sel(network="gpt2").isel(block=3)).all()
    titles = [axes.get_title() for axes in prompts.draw_versions(found).axes[:3]]
    assert titles == ["gpt2", "gpt2-xl", "mine"]
