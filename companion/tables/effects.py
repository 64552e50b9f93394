"""Effects that the claims' verdicts rest on: one value per prompt, summarised by estimate, interval, error and n.

Networks are compared prompt by prompt, which removes differences between prompts. `numbers` names effects for rules.
"""

from collections.abc import Mapping
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from companion.tables.inference import Effect, effect_of, with_error
from coupling_lib.datasets.parts import known_shared_part
from coupling_lib.datasets.summaries import mean_couplings


class OtherRuns(NamedTuple):
    """Summary of other runs, for the course of one run (`correlations.other_runs`)."""

    turn: float  #: The step at which other models are most coupled.
    scatter: float  #: Standard deviation of coupling between runs that differ by seed alone.
    freedom: float  #: Degrees of freedom of that.


CONVENTIONS = {
    "default": "all", "without embedding": "no-embedding", "normed end": "normed-end", "both": "both",
}  # fmt: skip
"""The choices of states in `metrics.trajectory`, and the names of their effects."""


def numbers(effects: Mapping[str, Effect], prefix: str = "") -> dict[str, float]:
    """Return the parts of effects as named numbers."""
    ends = ["" if field == "value" else f"-{field}" for field in Effect._fields]
    parts = {f"{name}{end}": part for name, effect in effects.items() for end, part in zip(ends, effect, strict=True)}
    return {f"{prefix}-{name}".lstrip("-"): float(part) for name, part in parts.items() if np.isfinite(part)}


def tabulated(found: Mapping[str, Effect] | Mapping[tuple[str, str], Effect]) -> pd.DataFrame:
    """Tabulate effects by question, or by question and label: a row each."""
    keys = [(key, "") if isinstance(key, str) else key for key in found]
    lines = zip(keys, found.values(), strict=True)
    return pd.DataFrame([{"question": name, "label": label, **one._asdict()} for (name, label), one in lines])


def effect_in(row: Mapping[str, float], n: str = "n", value: str = "r") -> Effect:
    """Return the effect in a table's row, whose columns bear the names of its parts."""
    more = {name: row[name] for name in ("skew", "freedom") if name in row}
    return Effect(row[value], row["low"], row["high"], row["error"], int(row[n]), **more)


def couplings(ds: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Return each prompt's coupling, 1 - m, mean over pairs of different blocks."""
    return mean_couplings(ds, variant, k).values


def diagonal_share(coupling: float) -> float:
    """Return the share of a matrix's energy (its squared entries) that lies on its diagonal: 1 - m~² for 1 - m~."""
    return 1 - (1 - coupling) ** 2


def of_depth(both: xr.Dataset, variant: str, k: int) -> dict[str, Effect]:
    """Return the trained network's coupling, its excess over the untrained one, and that of neighbours over all."""
    untrained, trained = (couplings(both.sel(network=name), variant, k) for name in ("untrained", "trained"))
    mismatch = both["by_distance"].sel(network="trained", variant=variant, k=k, distance=1)
    changes = {"coupled": trained, "emerged": trained - untrained, "local": 1 - mismatch.values.astype(float) - trained}
    return {name: effect_of(values) for name, values in changes.items()}


def of_shared_depth(both: xr.Dataset, variant: str, k: int) -> dict[str, Effect]:
    """Return the effects of `of_depth` for the traceless part, and the excess of whole Jacobians over it."""
    if (shared := known_shared_part(both, variant)) is None:
        return {}
    whole, rest = (couplings(part.sel(network="trained"), variant, k) for part in (both, shared))
    return of_depth(shared, variant, k) | {"lacks": effect_of(whole - rest)}


def of_nulls(trained: xr.Dataset, k: int, variants: tuple[str, ...]) -> dict[str, Effect]:
    """Return coupling relative to random bases, and its loss when the partners of singular vectors are exchanged."""
    found = {}
    for variant in variants:
        relative = trained["relative"].sel(variant=variant, k=k)
        measured, unpaired = (relative.sel(kind=kind).values.astype(float) for kind in ("measured", "unpaired"))
        found |= {f"beyond-{variant}": effect_of(measured), f"paired-{variant}": effect_of(measured - unpaired)}
    return found


def of_rest(trained: xr.Dataset, k: int) -> dict[str, Effect]:
    """Return relative coupling without the isotropic part, beyond its value with permuted coordinates."""
    rest = trained["normalised"].sel(part="traceless", span="all pairs", k=k).astype(float)
    lost = (rest.sel(kind="permuted") - rest.sel(kind="measured")) / trained["normalised_null"].sel(
        part="traceless", k=k
    )
    return {"shared-directions": effect_of(lost.values)}


def of_stricter_nulls(both: xr.Dataset, k: int) -> dict[str, Effect]:
    """Return coupling, its emergence, locality and pairing beyond the larger null: random bases or conjugation."""
    found = {}
    for part, name in (("whole", "stricter"), ("traceless", "stricter-traceless")):
        coupling = 1 - both["normalised"].sel(part=part, k=k, drop=True).astype(float)
        random = 1 - both["normalised_null"].sel(part=part, k=k, drop=True).astype(float)
        every, near = (coupling.sel(span=span, drop=True) for span in ("all pairs", "neighbours"))
        lead, measured, conjugated = near - every, every.sel(kind="measured"), every.sel(kind="conjugated")
        stricter = {
            "coupled": beyond_null(measured, random, conjugated),
            "local": beyond_null(lead.sel(kind="measured"), 0 * random, lead.sel(kind="conjugated")),
            "paired": beyond_null(measured - every.sel(kind="unpaired"), 0 * random, conjugated - random),
        }
        for network, (word, values) in product(both["network"].values, stricter.items()):
            called = f"{name}-{word}" + ("" if network == "trained" else f"-{network}")
            found[called] = effect_of(values.sel(network=network).values)
        coupled, over_states = stricter["coupled"], measured - every.sel(kind="state directions")
        emerged = coupled.sel(network="trained") - coupled.sel(network="untrained")
        found[f"{name}-emerged"] = effect_of(emerged.values)
        found[f"{name}-over-states"] = effect_of(over_states.sel(network="trained").values)
    return found


def beyond_null(measured: xr.DataArray, *nulls: xr.DataArray) -> xr.DataArray:
    """Subtract, network by network, the null with the larger mean over prompts."""
    left = xr.concat([measured - null for null in nulls], "null", coords="minimal", compat="override")
    return left.isel(null=left.mean("prompt").argmin("null"))


def of_decisive(both: xr.Dataset) -> dict[str, Effect]:
    """Return the change of 1 - `released_trace` at K = .1 d (figure 1a), and its excess over 1 - 1 / sqrt K."""
    values = 1 - both["value"].sel(variant="released_trace", rule="0.1 d", pairs="different").astype(float)
    change = values.sel(network="trained") - values.sel(network="untrained")
    curve = 1 - float(both["k"].sel(rule="0.1 d").max()) ** -0.5  # networks of a model have one width
    over_curve = values.sel(network="trained") - curve
    return {
        "decisive-trace-change": effect_of(change.values),
        "decisive-trace-over-curve": effect_of(over_curve.values),
    }


def of_emergence(measured: xr.Dataset, variant: str, k: int, others: OtherRuns) -> dict[str, Effect]:
    """Return coupling at the last step minus that at the step where other models turn, and that one minus the first."""
    # The run's own most coupled step would be selected for chance maxima. The error of each of the two steps includes
    # the variation between runs of one recipe, which prompts do not show.
    if measured.sizes["step"] < 3:
        return {}
    coupling = couplings(measured.transpose("step", "prompt", ...), variant, k)
    turned = coupling[turning_step(measured["step"].values, others)]
    changes = {"fall": coupling[-1] - turned, "rise": turned - coupling[0]}
    scatter = float(np.sqrt(2)) * others.scatter
    return {name: with_error(effect_of(change), scatter, others.freedom) for name, change in changes.items()}


def turning_step(steps: np.ndarray, others: OtherRuns) -> int:
    """Return the index of the inner step that is nearest to the one where other models turn."""
    return 1 + int(np.abs(np.log1p(steps[1:-1].astype(float)) - np.log1p(others.turn)).argmin())


def of_tokens(trained: Mapping[str, np.ndarray], untrained: Mapping[str, np.ndarray]) -> dict[str, Effect]:
    """Return the coupling of each comparison of tokens when trained, and its excess over the untrained network."""
    found = {}
    for name, values in trained.items():
        found |= {f"coupled-{name}": effect_of(values), f"emerged-{name}": effect_of(values - untrained[name])}
    return found


def of_trajectories(both: xr.Dataset, scores: tuple[str, ...]) -> dict[str, Effect]:
    """Return the change of each score with training, median over prompts, in every choice of states."""
    found = {}
    for states, word in CONVENTIONS.items():
        for score in scores:
            values = both["readings"].sel(states=states, reading=score)
            change = values.sel(network="trained").values - values.sel(network="untrained").values
            change = change[np.isfinite(change)]
            if len(change) > 1:
                found[f"change-{score.replace('_', '-')}-{word}"] = effect_of(change, "median")
    return found


def of_prompts(versions: Mapping[str, np.ndarray], alone: str) -> dict[str, Effect]:
    """Return the change by each addition to a question, and the first one's excess over the second, by question."""
    means = {name: values.mean(axis=1) for name, values in versions.items()}
    added = [name for name in means if name != alone]
    pairs = {f"{name}-change": (name, alone) for name in added}
    pairs |= {f"{first}-over-{second}": (first, second) for first, second in pairwise(added)}
    return {name.replace(" ", "-"): effect_of(means[a] - means[b]) for name, (a, b) in pairs.items()}


def of_spectra(both: xr.Dataset, fits: xr.Dataset) -> dict[str, Effect]:
    """Return the alignment of left and right vectors when trained, and the change of R² of the line through 1/sigma."""
    alignment = both["left_right_alignment"].sel(network="trained").transpose("prompt", "block").values.astype(float)
    lines = [fits["r_squared"].sel(network=name).values.astype(float) for name in ("trained", "untrained")]
    return {"aligned": effect_of(alignment.mean(axis=1)), "r2-change": effect_of(lines[0] - lines[1])}


def of_dynamics(trained: xr.Dataset) -> dict[str, Effect]:
    """Return the excess of the product of linear maps over random bases (cosines), and log2 of |J x| / |f(x)|."""
    cosine = trained["end_cosine"].sel(reading="product").values.astype(float)
    random = trained["null_cosine"].isel(level=-1).values.astype(float)
    length = np.log2(trained["linear_norm_ratio"].median("block").values.astype(float))
    return {"product-over-random": effect_of(cosine - random), "linear-length": effect_of(length)}


def of_perturbation(trained: xr.Dataset, noise: float) -> dict[str, Effect]:
    """Return the cosine after the last block minus after the first, for the network and beyond random bases."""
    at = trained["cosine"].sel(noise=noise, method="nearest").mean("draw").transpose("carrier", "prompt", "level")
    kept = {name: at.sel(carrier=name).values.astype(float) for name in ("network", "random")}
    gap = {name: values[:, -1] - values[:, 1] for name, values in kept.items()}
    return {"gap-trained": effect_of(gap["network"]), "gap-over-random": effect_of(gap["network"] - gap["random"])}


def of_precision(measured: xr.Dataset) -> dict[str, Effect]:
    """Return coupling in each precision minus that in float32, prompt by prompt."""
    coupling = mean_couplings(measured)
    of_each = {name: coupling.sel(precision=name).values.astype(float) for name in measured["precision"].values}
    base = of_each.pop("float32")
    return {f"change-{name}": effect_of(values - base) for name, values in of_each.items()}


def group_centred(table: pd.DataFrame, by: str, columns: list[str]) -> pd.DataFrame:
    """Subtract from every value the mean of its group."""
    return table[columns] - table.groupby(by)[columns].transform("mean")


def level_columns(table: pd.DataFrame, factors: Mapping[str, str], together: str) -> dict[str, np.ndarray]:
    """Return indicator columns of the levels of factors, given by name and column, and of all factors together."""
    levels = {
        name: pd.get_dummies(table[column].astype(str), drop_first=True, dtype=float).to_numpy()
        for name, column in factors.items()
    }
    return levels | {together: np.column_stack([*levels.values()])}
