"""Effects that verdicts rest on: paired by prompt, against numpy written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr

from companion.tables import effects
from companion.tables.arrays import side_by_side
from companion.tables.inference import Effect
from coupling_lib import miscoupling
from coupling_lib.datasets.statistics import mean_interval

RNG = np.random.default_rng(0)
VARIANT = "normalized_miscoupling"
DIFFERENT = ~np.eye(3, dtype=bool)


def depth(values: np.ndarray) -> xr.Dataset:
    """A measurement (prompt, block_1, block_2) as `measure_depth` gives it, at K = 10."""
    blocks = range(values.shape[-1])
    apart = np.stack(
        [np.stack([v[abs(np.subtract.outer(blocks, blocks)) == d].mean() for d in blocks]) for v in values]
    )
    return xr.Dataset(
        {
            VARIANT: (("prompt", "k", "block_1", "block_2"), values[:, None]),
            "by_distance": (("prompt", "variant", "k", "distance"), apart[:, None, None]),
        },
        coords={"k": [10], "block_1": blocks, "block_2": blocks, "variant": [VARIANT], "distance": blocks},
    )


@pytest.fixture(scope="module")
def mismatches():
    return {name: RNG.uniform(0.5, 1, (12, 3, 3)) for name in ("untrained", "trained")}


def test_diagonal_share_is_that_of_squared_entries():
    A = RNG.standard_normal((10, 10)) + 3 * np.eye(10)
    coupling = 1 - miscoupling(torch.from_numpy(A), normalized=True).item()
    assert effects.diagonal_share(coupling) == pytest.approx((np.diag(A) ** 2).sum() / (A**2).sum())
    found = effects.numbers({"local": Effect(0.1, np.nan, np.nan, np.nan, 1)}, "depth")
    assert found == {"depth-local": 0.1, "depth-local-n": 1.0, "depth-local-skew": 0.0}
    assert effects.numbers({"local": Effect(0.1, 0.0, 0.2, 0.05, 4)}, "")["local-error"] == 0.05


def assert_is_mean_of(effect: Effect, values: np.ndarray) -> None:
    assert (effect.value, effect.error, effect.n) == pytest.approx(
        (values.mean(), scipy.stats.sem(values), len(values))
    )


def test_networks_are_compared_prompt_by_prompt(mismatches):
    both = side_by_side(**{name: depth(values) for name, values in mismatches.items()})
    coupling = {name: 1 - values[:, DIFFERENT].mean(axis=1) for name, values in mismatches.items()}
    near = 1 - mismatches["trained"][:, [0, 1, 1, 2], [1, 0, 2, 1]].mean(axis=1)
    found = effects.of_depth(both, VARIANT, 10)
    assert_is_mean_of(found["coupled"], coupling["trained"])
    assert_is_mean_of(found["emerged"], coupling["trained"] - coupling["untrained"])
    assert_is_mean_of(found["local"], near - coupling["trained"])


def emergence(values: np.ndarray, steps: list[int]) -> xr.Dataset:
    """A measurement (step, prompt, block_1, block_2) as `measure_emergence` gives it."""
    return xr.Dataset(
        {VARIANT: (("step", "prompt", "k", "block_1", "block_2"), values[:, :, None])},
        coords={"k": [10], "block_1": range(3), "block_2": range(3), "step": steps},
    )


def test_rise_and_fall_meet_where_other_runs_turn():
    values = RNG.uniform(0.5, 1, (4, 6, 3, 3))
    values[1] -= 0.4  # the run's own most coupled step, which is not asked for
    ds, coupling = emergence(values, [0, 10, 100, 1000]), 1 - values[..., DIFFERENT].mean(axis=-1)
    found = effects.of_emergence(ds, VARIANT, 10, effects.OtherRuns(90.0, 0.03, 4))
    for name, change in (("rise", coupling[2] - coupling[0]), ("fall", coupling[3] - coupling[2])):
        assert found[name].value == pytest.approx(change.mean()) and found[name].n == 6
        assert found[name].error == pytest.approx(np.hypot(scipy.stats.sem(change), 2**0.5 * 0.03))
        assert found[name].freedom == 4
    assert effects.of_emergence(ds.isel(step=[0, 3]), VARIANT, 10, effects.OtherRuns(90.0, 0.03, 4)) == {}
    steps, others = np.array([0, 10, 100, 1000]), effects.OtherRuns(1.0, 0.0, 1)
    assert effects.turning_step(steps, others) == 1 and effects.turning_step(steps, others._replace(turn=9e9)) == 2
    assert effects.turning_step(steps, others._replace(turn=40.0)) == 2


def test_scatter_alone_is_no_fall_from_the_peak():
    rng, alarms = np.random.default_rng(8), 0
    for _ in range(100):
        coupling = 0.2 + 0.01 * rng.normal(size=(8, 1)) + 0.01 * rng.normal(size=(8, 12))
        values = np.broadcast_to(1 - coupling[..., None, None], (8, 12, 3, 3)).copy()
        others = effects.OtherRuns(100.0, 0.01 * (rng.chisquare(12) / 12) ** 0.5, 12)
        found = effects.of_emergence(emergence(values, [0, 1, 10, 100, 300, 1000, 3000, 9000]), VARIANT, 10, others)
        alarms += found["fall"].high < 0
    assert alarms <= 7  # chosen and tested on the same run: two of three


def nulls_made(prompts: int = 6) -> xr.Dataset:
    """Values of the normalised variant by network, prompt, part, kind and span, as `measure_nulls` has them."""
    kinds = ["measured", "conjugated", "permuted", "unpaired", "state directions"]
    coords = {
        "network": ["untrained", "trained"],
        "part": ["whole", "traceless"],
        "kind": kinds,
        "span": ["all pairs", "neighbours"],
        "k": [10],
    }
    shape = (2, prompts, 2, len(kinds), 2, 1)
    values = RNG.uniform(0.7, 0.9, shape)
    nulls = RNG.uniform(0.94, 0.95, (2, prompts, 2, 1))
    # Conjugation is stricter in the whole of the trained network, and laxer than random bases everywhere else.
    values[:, :, :, 1] = 0.97
    values[1, :, 0, 1] = RNG.uniform(0.85, 0.9, (prompts, 2, 1))
    dims = ("network", "prompt", "part", "kind", "span", "k")
    return xr.Dataset(
        {"normalised": (dims, values), "normalised_null": (("network", "prompt", "part", "k"), nulls)}, coords
    )


def test_shared_directions_are_what_permuted_coordinates_lose():
    ds = nulls_made().sel(network="trained")
    rest = 1 - ds.normalised.sel(part="traceless", span="all pairs", k=10) / ds.normalised_null.sel(
        part="traceless", k=10
    )
    wanted = (rest.sel(kind="measured") - rest.sel(kind="permuted")).values
    assert_is_mean_of(effects.of_rest(ds, 10)["shared-directions"], wanted)


def test_coupling_is_judged_against_the_larger_null():
    ds = nulls_made()
    found = effects.of_stricter_nulls(ds, 10)
    at = {"k": 10, "part": "whole", "span": "all pairs"}
    value, null = ds.normalised.sel(at), ds.normalised_null.sel(k=10, part="whole")
    own, turned = (value.sel(kind=kind).transpose("network", "prompt").values for kind in ("measured", "conjugated"))
    random = null.transpose("network", "prompt").values
    # m is a distance: the larger null of coupling is the smaller of m.
    trained, untrained = turned[1] - own[1], random[0] - own[0]
    assert_is_mean_of(found["stricter-coupled"], trained)
    assert_is_mean_of(found["stricter-coupled-untrained"], untrained)
    assert_is_mean_of(found["stricter-emerged"], trained - untrained)
    traceless = ds.sel(part="traceless", k=10, network="trained")
    measured = traceless.normalised.sel(kind="measured", span="all pairs")
    assert_is_mean_of(found["stricter-traceless-coupled"], (traceless.normalised_null - measured).values)
    states = value.sel(network="trained", kind="state directions").values
    assert_is_mean_of(found["stricter-over-states"], states - own[1])
    near = ds.normalised.sel(k=10, part="whole", span="neighbours", network="trained")
    lead, chance = (
        (value.sel(network="trained", kind=kind) - near.sel(kind=kind)).values for kind in ("measured", "conjugated")
    )
    assert_is_mean_of(found["stricter-local"], lead - max(chance.mean(), 0) / (chance.mean() or 1) * chance)
    unpaired = value.sel(network="trained", kind="unpaired").values
    assert_is_mean_of(found["stricter-paired"], unpaired - own[1] - (random[1] - turned[1]))


def test_decisive_change_is_at_tenth_of_width():
    values = RNG.uniform(0.1, 0.3, (2, 5, 2, 2, 2))
    ds = xr.Dataset(
        {"value": (("network", "prompt", "variant", "rule", "pairs"), values)},
        coords={
            "network": ["untrained", "trained"],
            "variant": ["released_norm", "released_trace"],
            "rule": ["10", "0.1 d"],
            "pairs": ["different", "all"],
            "k": (("network", "rule"), [[10, 64], [10, 64]]),
        },
    )
    found = effects.of_decisive(ds)
    assert_is_mean_of(found["decisive-trace-change"], values[0, :, 1, 1, 0] - values[1, :, 1, 1, 0])
    assert_is_mean_of(found["decisive-trace-over-curve"], 1 - values[1, :, 1, 1, 0] - 7 / 8)


def test_pairing_effect_is_measured_minus_unpaired():
    values = RNG.uniform(-0.1, 0.3, (6, 2, 1, 1))
    ds = xr.Dataset(
        {"relative": (("prompt", "kind", "variant", "k"), values)},
        coords={"kind": ["measured", "unpaired"], "variant": [VARIANT], "k": [10]},
    )
    found = effects.of_nulls(ds, 10, (VARIANT,))
    assert_is_mean_of(found[f"beyond-{VARIANT}"], values[:, 0, 0, 0])
    assert_is_mean_of(found[f"paired-{VARIANT}"], values[:, 0, 0, 0] - values[:, 1, 0, 0])
    assert found[f"beyond-{VARIANT}"][:3] == pytest.approx([*map(float, mean_interval(values[:, 0, 0, 0]))])


def test_trajectory_changes_are_medians_ignoring_missing_scores():
    values = RNG.normal(size=(2, 9, 4, 1))
    values[0, 0, 3, 0] = np.nan
    both = {
        name: xr.Dataset(
            {"readings": (("prompt", "states", "reading"), part)},
            coords={"states": list(effects.CONVENTIONS), "reading": ["expodistance"]},
        )
        for name, part in zip(("trained", "untrained"), values, strict=True)
    }
    found = effects.of_trajectories(side_by_side(**both), ("expodistance",))
    change = values[0] - values[1]
    assert found["change-expodistance-all"].value == pytest.approx(np.median(change[:, 0, 0]))
    assert found["change-expodistance-both"].n == 8
    assert found["change-expodistance-both"].value == pytest.approx(np.median(change[1:, 3, 0]))


def test_instruction_is_compared_with_question_and_control():
    versions = {name: RNG.uniform(0, 1, (16, 5)) for name in ("alone", "step by step", "control sentence")}
    means = {name: values.mean(axis=1) for name, values in versions.items()}
    found = effects.of_prompts(versions, "alone")
    assert_is_mean_of(found["step-by-step-change"], means["step by step"] - means["alone"])
    lead = found["step-by-step-over-control-sentence"]
    assert_is_mean_of(lead, means["step by step"] - means["control sentence"])


def test_effects_of_other_chapters_are_mean_differences():
    a, b = RNG.normal(size=(2, 11))
    tokens = effects.of_tokens({"self": a}, {"self": b})
    assert_is_mean_of(tokens["coupled-self"], a)
    assert_is_mean_of(tokens["emerged-self"], a - b)

    aligned, lines = RNG.uniform(size=(11, 4)), RNG.uniform(size=(2, 11))
    both = {"trained": xr.Dataset({"left_right_alignment": (("prompt", "block"), aligned)})}
    fits = {n: xr.Dataset({"r_squared": ("prompt", r)}) for n, r in zip(("trained", "untrained"), lines, strict=True)}
    spectra = effects.of_spectra(side_by_side(**both), side_by_side(**fits))
    assert_is_mean_of(spectra["aligned"], aligned.mean(axis=1))
    assert_is_mean_of(spectra["r2-change"], lines[0] - lines[1])

    ratio = RNG.uniform(0.1, 2, (11, 5))
    dynamics = effects.of_dynamics(
        xr.Dataset(
            {
                "end_cosine": (("prompt", "reading"), a[:, None]), "null_cosine": (("prompt", "level"), b[:, None]),
                "linear_norm_ratio": (("prompt", "block"), ratio),
            },
            coords={"reading": ["product"]},
        )
    )  # fmt: skip
    assert_is_mean_of(dynamics["product-over-random"], a - b)
    assert_is_mean_of(dynamics["linear-length"], np.log2(np.median(ratio, axis=1)))

    cosine = RNG.uniform(size=(11, 2, 2, 3, 4))  # prompt, carrier, noise, draw, level
    ds = xr.Dataset(
        {"cosine": (("prompt", "carrier", "noise", "draw", "level"), cosine)},
        coords={"carrier": ["network", "random"], "noise": [0.1, 0.3]},
    )
    gap = cosine[:, :, 1, :, -1].mean(axis=-1) - cosine[:, :, 1, :, 1].mean(axis=-1)
    perturbation = effects.of_perturbation(ds, 0.3)
    assert_is_mean_of(perturbation["gap-trained"], gap[:, 0])
    assert_is_mean_of(perturbation["gap-over-random"], gap[:, 0] - gap[:, 1])

    pairs = RNG.uniform(0.5, 1, (2, 11, 3, 3))
    ds = xr.Dataset(
        {VARIANT: (("precision", "prompt", "block_1", "block_2"), pairs)},
        coords={"precision": ["float32", "nf4"], "block_1": range(3), "block_2": range(3)},
    )
    coupling = 1 - pairs[..., DIFFERENT].mean(axis=-1)
    assert_is_mean_of(effects.of_precision(ds)["change-nf4"], coupling[1] - coupling[0])
