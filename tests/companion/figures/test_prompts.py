"""Prompt figures: what is drawn is what was measured, against loops written out and SciPy."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from pytest import approx
from scipy.stats import spearmanr

from companion.figures import prompts
from companion.tables.arrays import side_by_side
from companion.tables.inference import Effect
from coupling_lib.datasets.summaries import Chance
from coupling_lib.errors import ParameterError
from tests.companion.figures import made
from tests.companion.figures.drawn import titles

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
    notes = pd.DataFrame(lines, columns=["question", "version", "dataset", "steps"])
    notes = notes.assign(id=notes.question + "/" + notes.version, n_tokens=rng.integers(10, 60, len(lines)))
    coords = {"k": [K]} | {name: ("prompt", list(column)) for name, column in notes.items()}
    attrs = {"control": "It rained.", "control_tokens": 3, "instruction_tokens": 4, "words_as_tokens": 0}
    return xr.Dataset({NAME: (("prompt", "k", "block_1", "block_2"), values)}, coords, attrs)


def networks(n):
    return made.networks(n, lambda place: make_prompts((0.05, 0.3, 0.2)[place], seed=place + 1))


def rated(n: int) -> xr.Dataset:
    """Some of the prompts have a rating of their difficulty."""
    both = networks(n)
    ratings = np.where(np.arange(both.sizes["prompt"]) % 4 > 0, np.linspace(-1, 2, both.sizes["prompt"]) ** 2, np.nan)
    return both.assign_coords(rating=("prompt", ratings))


def of_models(n: int) -> xr.Dataset:
    """Trained models of different depths, the first without the last block."""
    found = {f"organisation/a-model-with-a-name-{i}": make_prompts(0.2, seed=i) for i in range(1, n)}
    return prompts.take_models({"organisation/short": SHORT} | found, NAME, K, NULL)


CASES = {
    "draw_versions of models": (prompts.draw_versions, of_models),
    "draw_prompts rated": made.case(prompts, "prompts", rated, NAME, K, NULL),
}


BOTH = networks(2)
TRAINED = make_prompts(0.3, seed=2)
SHORT = TRAINED.isel(block_1=slice(3), block_2=slice(3))
ALONE = TRAINED.version.values == "alone"
VERSION_COUPLINGS = prompts.version_couplings(BOTH, NAME, K)


def taken(both: xr.Dataset) -> pd.DataFrame:
    return prompts.take_prompts(both, NAME, K, NULL)


def blocks_of(data, prompt):
    """Each block's coupling with all others in both directions, written out."""
    values = data[NAME].values[prompt, 0]
    others = [[other for other in range(BLOCKS) if other != block] for block in range(BLOCKS)]
    return [np.mean([1 - v for o in others[b] for v in (values[b, o], values[o, b])]) for b in range(BLOCKS)]


def test_prompt_correlations_are_spearman_correlations():
    table = taken(BOTH)
    assert len(table) == 2 * 11 and set(table.version) == {"alone"}
    alone = table[table.network == "trained"]
    assert alone.id.tolist() == TRAINED.id.values[ALONE].tolist()
    couplings = 1 - TRAINED[NAME].values[ALONE, 0].sum(axis=(1, 2)) / (BLOCKS * (BLOCKS - 1))
    assert_allclose(alone[["coupling", "tokens"]], np.transpose([couplings, TRAINED.n_tokens.values[ALONE]]))
    counted, found = alone[alone.steps.notna()], prompts.correlations(table, "trained")
    within = alone[["tokens", "coupling"]] - alone.groupby("dataset")[["tokens", "coupling"]].transform("mean")
    pairs = {"length": (alone.tokens, alone.coupling), "steps": (counted.steps, counted.coupling)}
    pairs |= {"length within sets": (within.tokens, within.coupling)}
    wanted = {name: spearmanr(*pair).statistic for name, pair in pairs.items()}
    assert {name: found[name].value for name in wanted} == approx(wanted) and found["steps"].n == 6
    listed = prompts.correlation_table(table).set_index(["network", "quantity"])
    assert listed.loc[("trained", "length in tokens"), "spearman"] == found["length"].value


def test_ratings_replace_steps_where_known():
    table = taken(rated(2))
    known = table[(table.network == "trained") & table.rating.notna()]
    found = prompts.correlations(table, "trained")
    assert found["rating"].value == approx(spearmanr(known.rating, known.coupling).statistic) and len(known) > 4
    assert (found["rating"].n, found["rating at equal length"].n, found["steps"].n) == (len(known), len(known), 6)
    left = prompts.draw_prompts(table).axes[0]
    assert left.get_xlabel() == "rated difficulty"
    assert_allclose(left.collections[1].get_offsets(), known[["rating", "coupling"]])
    assert "rating" not in prompts.correlations(taken(BOTH), "trained")
    for unrated in (BOTH, BOTH.assign_coords(rating=("prompt", [np.nan] * 23))):
        assert "rating" not in taken(unrated)


def test_difference_between_sets_gives_no_within_correlation():
    data = TRAINED.copy(deep=True)
    stories = data["dataset"].values == "stories"
    data[NAME].values[stories] *= 0.5
    data["n_tokens"].values[:] = np.where(stories, 20, 50) + data["n_tokens"].values % 7
    found = prompts.correlations(taken(side_by_side(trained=data)), "trained")
    assert found["length"].high < 0 and found["length within sets"].low < 0 < found["length within sets"].high


def test_too_few_prompts_have_no_correlation():
    columns = {"network": "trained", "id": [*"abcdefghijkl"], "steps": np.nan, "tokens": np.arange(12.0)}
    table = pd.DataFrame(columns | {"coupling": np.random.default_rng(0).normal(size=12)})
    pairs, more = (table.assign(dataset=np.repeat([*"abcdef"], counts)) for counts in (2, [3, 4, 3, 2, 0, 0]))
    assert prompts.correlations(pairs, "trained")["length within sets"] is None
    assert prompts.correlations(more, "trained")["length within sets"].n == 10
    few = TRAINED.isel(prompt=np.isin(TRAINED.question.values, ["q0", "q1"])).copy(deep=True)
    few["n_tokens"].values[:] = 16
    table = taken(side_by_side(trained=few))
    assert set(prompts.correlations(table, "trained").values()) == {None}
    assert prompts.draw_prompts(table).axes[0].texts[0].get_text() == "trained: too few prompts"


def test_versions_are_paired_by_question():
    found, versions, ids = VERSION_COUPLINGS.sel(network="trained"), TRAINED.version.values, TRAINED.id.values.tolist()
    assert found.version.values.tolist() == list(dict.fromkeys(versions)) and set(versions) == set(VERSIONS)
    order = [question for question in TRAINED.question.values[versions == versions[0]] if question.startswith("q")]
    assert found.question.values.tolist() == order and len(order) == 6
    wanted = [[blocks_of(TRAINED, ids.index(f"{question}/{version}")) for version in VERSIONS] for question in order]
    assert_allclose(found.sel(version=list(VERSIONS)).transpose("question", "version", "block"), wanted)
    with pytest.raises(ParameterError, match="no prompt was measured in several versions"):
        prompts.version_couplings(side_by_side(trained=TRAINED.isel(prompt=ALONE)), NAME, K)


def test_summary_gives_paired_differences_with_intervals():
    summary, found = prompts.take_summary(BOTH, NAME, K, null=0.95), VERSION_COUPLINGS.sel(network="trained")
    difference = (found.sel(version="step by step") - found.sel(version="alone")).mean().item()
    line = summary.loc["trained"]
    wanted = (found.sel(version="step by step").mean().item(), difference)
    assert (line["step by step"], line["step by step difference"]) == approx(wanted)
    assert line["step by step difference low"] < difference < line["step by step difference high"]
    book = prompts.numbers_of(BOTH, NAME, K, Chance(0.95, 1e-5))
    exact = {"step-by-step-difference-trained-low": line["step by step difference low"], "null-error": 1e-5}
    exact |= {"control-sentence-difference-untrained": summary.loc["untrained", "control sentence difference"]}
    exact |= {"step-by-step-trained": line["step by step"]}
    assert {name: book[name] for name in exact} == exact and "length-untrained-high" in book
    assert (book["null"], book["step-by-step-change"]) == approx((0.05, difference))


def test_profiles_and_caption_show_each_version():
    figure = prompts.draw_versions(prompts.take_versions(BOTH, NAME, K, null=0.95))
    means, (above, below) = VERSION_COUPLINGS.sel(network="trained").mean("question"), figure.axes[1::2]
    for line, version in zip(above.lines, means.version.values, strict=False):
        assert_allclose(line.get_data(), [[1, 2, 3, 4], means.sel(version=version)], err_msg=version)
        assert above.get_ylim()[0] <= 0 and line.get_ydata().max() < above.get_ylim()[1]
    changes = (means - means.sel(version="alone")).sel(version=means.version != "alone")
    assert_allclose([line.get_ydata() for line in below.lines[:2]], changes.transpose("version", "block"))
    assert "adds 4 tokens, the control sentence (“It rained.”) 3." in prompts.versions_caption(TRAINED)
    assert "each word stands for one token" in prompts.versions_caption(TRAINED.assign_attrs(words_as_tokens=1))


def test_models_are_sorted_by_size():
    found = prompts.take_models({"mine": TRAINED, "gpt2-xl": TRAINED, "gpt2": SHORT}, NAME, K, NULL)
    assert found.network.values.tolist() == ["gpt2", "gpt2-xl", "mine"]
    alone = prompts.take_versions(side_by_side(trained=SHORT), NAME, K, NULL)["mean"].isel(network=0)
    shown = found["mean"].sel(network="gpt2")
    assert_allclose(shown, alone.reindex(block=[1, 2, 3, 4]).transpose(*shown.dims))  # no fourth block
    assert titles(prompts.draw_versions(found).axes[:3]) == ["gpt2", "gpt2-xl", "mine"]


def test_correlations_are_written_with_intervals_and_numbers():
    found = Effect(-0.001, -0.504, 0.5, 0.2, 12)
    assert prompts._written("steps", found) == r"steps: $\rho$ = 0.00 [−0.50, 0.50], n = 12"
    assert prompts._written("steps", None) == "steps: too few prompts"
