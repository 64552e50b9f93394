"""Evaluation of `data/many_prompts.csv`: estimands of the experiment on many prompts, and variance of coupling.

Coupling is 1 minus a variant's mismatch, mean over pairs of different blocks at the last token.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from companion.tables import effects
from companion.tables.files import read_table, without_repeats
from companion.tables.inference import Effect, effect_of, jackknifed, with_error
from companion.tables.statistics import correlation
from companion.tables.texts import EMBEDDED, NEW_PROBLEMS, NEW_QUESTIONS, PASSAGES, PROBLEMS, QUESTIONS
from coupling_lib import paths
from coupling_lib.datasets.statistics import linear_fit
from coupling_lib.inputs.prompts import BENCHMARKS
from coupling_lib.measures.random_bases import null_spreads
from coupling_lib.metrics.nulls import gaussian_miscoupling

TABLE = paths.DATA / "many_prompts.csv"
KEY = ["model", "network", "id", "version"]
READINGS = {"whole": "normalized_miscoupling_k10", "traceless part": "shared_normalized_miscoupling_k10"}
"""Columns of the table by the part of the Jacobians that they describe."""
K = 10
IN_4_BITS = "nf4"
"""Name of the network with weights in 4 bits."""
SCORES = {"straighter": "line_shape_score", "exponential": "expodistance", "even": "equidistance"}
"""Questions about trajectories, and the score of each."""
ACROSS = {"self-coupling": "self", "context coupling, fixed input": "input", "context coupling, fixed output": "output"}
"""Questions about coupling across tokens, and the column of each."""
_WANTED = pd.Series(
    {("trained", name): 200 for name in (*BENCHMARKS, PROBLEMS)}
    | {("trained", name): 100 for name in PASSAGES}
    | {(network, EMBEDDED): 120 for network in ("trained", "untrained", IN_4_BITS)}
    | {("untrained", "wikitext2"): 100}
)
"""Number of prompts to be measured for each set, by network."""
HALF_WIDTH = 0.005
"""Wanted half-width of a mean's interval, for the number of prompts that it requires: the margin of coupling."""


def many_prompts(file: Path = TABLE) -> pd.DataFrame:
    """Read the table, and refuse one with a repeated row."""
    return without_repeats(read_table(file), KEY)


def finished(table: pd.DataFrame) -> pd.DataFrame:
    """Select the models with all prompts and all networks measured."""
    alone = table[table["version"] == "alone"]
    counts = alone.groupby(["network", "set", "model"]).size().unstack(fill_value=0)
    counts = counts.reindex(_WANTED.index, fill_value=0)
    # One in a hundred may be longer than a model reads.
    whole = counts.columns[counts.ge(0.99 * _WANTED, axis=0).all()]
    return table[table["model"].isin(whole)].reset_index(drop=True)


def couplings(rows: pd.DataFrame, part: str, network: str = "trained") -> pd.DataFrame:
    """Return a model's rows of one network with the coupling of one part of its Jacobians."""
    trained = rows[rows["network"] == network]
    return trained.assign(coupling=1 - trained[READINGS[part]]).dropna(subset="coupling")


def of_model(rows: pd.DataFrame, blocks: int) -> dict[tuple[str, str], Effect]:
    """Return the effects in question for one model, by question and part."""
    found: dict[tuple[str, str], Effect] = {}
    both = rows[rows["version"] == "alone"].set_index(["network", "id"])
    for part in READINGS:
        own = couplings(rows, part)
        found |= {(question, part): effect for question, effect in _of_coupling(own).items()}
        if part == "whole" and own.get("product_lead", pd.Series(dtype=float)).notna().any():
            found["product, new questions", part] = effect_of(own["product_lead"].dropna().to_numpy())
        few = couplings(rows, part, IN_4_BITS).set_index("id")["coupling"]
        if len(few) > 1:
            bits = few - own[own["set"] == EMBEDDED].set_index("id")["coupling"]
            found["four bits", part] = effect_of(bits.dropna().to_numpy())
        random, spread = 1 - gaussian_miscoupling(K), null_spreads(K, blocks)["all pairs"]
        for question, column in ACROSS.items():
            name = f"{'' if part == 'whole' else 'shared_'}{column}"
            across = both[name].dropna().unstack("network").dropna()
            if len(across) < 2:
                continue
            conjugated = both.get(f"{name}_conjugated", pd.Series(np.nan, both.index)).unstack("network")
            conjugated = conjugated.loc[across.index, across.columns]
            compared = {question: (across, random)}
            if conjugated.notna().all(axis=None):  # the larger of two nulls, or no statement
                measured, turned = (xr.DataArray(values.rename_axis("prompt")) for values in (across, conjugated))
                beyond = effects.beyond_null(measured, xr.full_like(turned, random), turned)
                compared[f"{question}, stricter"] = beyond.transpose("prompt", ...).to_pandas(), 0.0
            for asked, (values, null) in compared.items():
                excess = effect_of((values["trained"] - null).to_numpy())
                change = effect_of((values["trained"] - values["untrained"]).to_numpy())
                found[asked, part] = with_error(excess, spread, np.inf)
                found[f"{asked}, emerged", part] = with_error(change, 2**0.5 * spread, np.inf)
    for question, score in SCORES.items():
        for states in effects.CONVENTIONS:
            values = both[f"{score}_{states.replace(' ', '_')}"].dropna().unstack("network").dropna()
            if len(values) > 1:
                found[question, states] = effect_of((values["trained"] - values["untrained"]).to_numpy(), "median")
    return found


def _of_coupling(own: pd.DataFrame) -> dict[str, Effect]:
    alone = own[own["version"] == "alone"]
    counted = alone[alone["set"] == PROBLEMS]
    natural = alone[alone["set"].isin([*BENCHMARKS, EMBEDDED])]
    within = effects.group_centred(natural, "set", ["tokens", "coupling"])
    versions = own[own["set"] == QUESTIONS].pivot(index="id", columns="version", values="coupling").dropna()
    # The number at the end of a passage's name is that of the question with the same length.
    passages = alone[alone["set"].isin(["novels", "random tokens"])]
    paired = passages.assign(pair=passages["id"].str.rpartition("-")[2]).pivot(index="pair", columns="set")["coupling"]
    instructed, fresh = versions["step by step"], alone[alone["set"] == NEW_PROBLEMS]
    found, questions = {}, alone[alone["set"].isin(NEW_QUESTIONS)]
    if len(questions):
        short = effects.group_centred(questions, "set", ["tokens", "coupling"])
        found["length, new questions"] = correlation(short["tokens"].round(12), short["coupling"].round(12))
    if len(fresh):
        found["difficulty, new problems"] = correlation(fresh["steps"], fresh["coupling"], given=fresh["tokens"])
    return found | {
        "difficulty": correlation(counted["steps"], counted["coupling"], given=counted["tokens"]),
        "length within sets": correlation(within["tokens"].round(12), within["coupling"].round(12)),
        "length over all": correlation(natural["tokens"], natural["coupling"]),
        "instruction": effect_of((instructed - versions["alone"]).to_numpy()),
        "instruction over control": effect_of((instructed - versions["control sentence"]).to_numpy()),
        "control": effect_of((versions["control sentence"] - versions["alone"]).to_numpy()),
        "meaning": effect_of((paired["novels"] - paired["random tokens"]).dropna().to_numpy()),
    }


def estimates(table: pd.DataFrame, blocks: Mapping[str, int]) -> pd.DataFrame:
    """Return the effects in question, for each model and part: a row each."""
    rows = [
        {"question": question, "model": model, "reading": reading, **effect._asdict()}
        for model, own in table.groupby("model", sort=False)
        for (question, reading), effect in of_model(own, blocks[str(model)]).items()
    ]
    return pd.DataFrame(rows)


def summarised(values: pd.Series) -> dict[str, float]:
    """Return mean, interval and spread of one value per prompt, and the number of prompts for the wanted half-width."""
    needed = int(np.ceil((1.96 * values.std() / HALF_WIDTH) ** 2))
    return {**effect_of(values.to_numpy())._asdict(), "spread": values.std(), "needed": needed}


def by_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise a model's coupling: a row for each set and part."""
    lines = []
    for part in READINGS:
        own = couplings(rows, part)
        shown = own[(own["version"] == "alone") & ~own["set"].isin([NEW_PROBLEMS, *NEW_QUESTIONS])]
        for name, values in shown.groupby("set")["coupling"]:
            lines.append({"set": name, "part": part, **summarised(values)})
    return pd.DataFrame(lines)


def variances(table: pd.DataFrame) -> dict[str, float]:
    """Split the variance of coupling: standard deviations between sources, between models, and between prompts."""
    # Sources have the same lengths, prompt by prompt, and so are balanced: from each variance of means that due to the
    # prompts behind the means is subtracted.
    own = couplings(table, "whole")
    own = own[own["set"].isin([*PASSAGES, QUESTIONS]) & (own["version"] == "alone")]
    cells = own.groupby(["model", "set"])["coupling"].agg(["mean", "var", "count"])
    noise = float((cells["var"] / cells["count"]).mean())
    means = cells["mean"].unstack("set")
    between_sources = float(means.var(axis=1).mean()) - noise
    between_models = float(means.var(axis=0).mean()) - noise
    found = {"sources": between_sources, "models": between_models, "prompts": float(cells["var"].mean())}
    return {name: max(0.0, variance) ** 0.5 for name, variance in found.items()}


def spreads() -> dict[str, float]:
    """Return the standard deviations of `variances` under the names of the book."""
    return {f"many-spread-{name}": value for name, value in variances(many_prompts()).items()}


def numbers(rows: pd.DataFrame, blocks: int) -> dict[str, float]:
    """Return the numbers of one model that the book quotes, by name: effects, and the means of all sets."""
    called = {
        (question.replace(",", "").replace(" ", "-"), reading): effect
        for (question, reading), effect in of_model(rows, blocks).items()
    }
    # New problems, where drawn, replace the first ones in the report: these had been seen when that was decided.
    anew = {reading: effect for (name, reading), effect in called.items() if name == "difficulty-new-problems"}
    called |= {("difficulty", reading): effect for reading, effect in anew.items()}
    words = {"whole": "", "traceless part": "shared-"} | {
        name: f"{word}-" for name, word in effects.CONVENTIONS.items()
    }
    found = {f"many-{words[reading]}{question}": effect for (question, reading), effect in called.items()}
    table = by_set(rows)
    for row in table.to_dict("records"):
        name = f"many-{words[row['part']]}{row['set'].replace(' ', '-')}"
        found[name] = effects.effect_in(row, value="value")
    sizes = table[table["part"] == "whole"].set_index("set")
    more = {f"many-needed-{name.replace(' ', '-')}": float(n) for name, n in sizes["needed"].items()}
    if QUESTIONS in sizes.index:
        more["many-on-diagonal"] = effects.diagonal_share(sizes.loc[QUESTIONS, "value"])
    own = couplings(rows, "whole")
    problems = own[own["set"] == (NEW_PROBLEMS if NEW_PROBLEMS in own["set"].to_numpy() else PROBLEMS)]
    found["many-difficulty-range"] = _difference(problems)
    shared = couplings(rows, "traceless part")
    found["many-shared-difficulty-range"] = _difference(shared[shared["set"].isin(problems["set"])])
    return effects.numbers(found) | more


def _difference(problems: pd.DataFrame) -> Effect:
    """Estimate the difference of coupling between problems with the most and the fewest steps, by a line."""
    steps, coupling = problems["steps"].to_numpy(), problems["coupling"].to_numpy()
    return jackknifed(
        lambda rows: linear_fit(steps[rows], coupling[rows]).slope * float(np.ptp(steps)), np.arange(len(steps))
    )


def chosen(model: str, precision: str = "float32", revision: str = "", token: int = -1) -> pd.DataFrame | None:
    """Return a model's rows if it was measured in this way; otherwise None."""
    table = many_prompts()
    if Path(model).is_dir() or table.empty or (precision, revision, token) != ("float32", "", -1):
        return None
    rows = table[table["model"] == model]
    return None if rows.empty else rows.reset_index(drop=True)
