"""Tables of models and their properties: the paper's figures, the leaderboard, the suite, the store."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from companion.tables.files import read_table
from coupling_lib import paths, store
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import prompt_name
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.metrics.variants import VARIANTS, different_pairs
from coupling_lib.models.registry import TASKS, Entry, entries, lookup
from coupling_lib.store.files import DamagedError, open_file, shipped

SCORES = {"minus validation loss": "negative_loss", "accuracy on held-out tokens": "accuracy"}
"""Scores of a model of the suite: label and column."""

RIVALS = {
    "parameters": "log_parameters", "blocks": "blocks", "width": "width", "training tokens": "log_tokens",
    "line-shape score": "line_shape_score", "expodistance": "log_expodistance",
}  # fmt: skip
"""Rival predictors of the score: label and column of `suite`."""

DECISIVE_MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "qwen1.5-0.5b", "pythia-1.4b")
"""Smallest models of the paper's figure 1a, for the test of what its coupling is."""


def paper_figures() -> pd.DataFrame:
    """Read the values read off the paper's figures or stated with them."""
    return pd.read_csv(paths.DATA / "paper_figures.csv", comment="#", dtype={"figure": str})


def figure_1a() -> pd.DataFrame:
    """Return the points of the paper's figure 1a with the registry's data about each model."""
    points = paper_figures()
    points = points[(points["figure"] == "1a") & (points["x_quantity"] == "coupling")]
    known = ("family", "kind", "width", "blocks", "parameters_b", "training_tokens_t", "average")
    table = _registered(map(lookup, points["series"]), known)
    table.insert(table.columns.get_loc("average"), "score", points["y"].to_numpy())
    table.insert(table.columns.get_loc("score"), "coupling", points["x"].to_numpy())
    return table.assign(how=points["how"].to_numpy())


def leaderboard() -> pd.DataFrame:
    """Return the registry's models with at least one benchmark score."""
    known = ("family", "kind", "parameters_b", "blocks", "width", "training_tokens_t", *TASKS, "average", "in_paper")
    table = _registered(entries(), known)
    return table[table[list(TASKS)].notna().any(axis=1)].reset_index(drop=True)


def _registered(models: Iterable[Entry], known: Sequence[str]) -> pd.DataFrame:
    """Tabulate the registry's data about models; training tokens in trillions are `tokens_t`."""
    rows = [{"model": entry.alias} | {name: getattr(entry, name) for name in known} for entry in models]
    return pd.DataFrame(rows).rename(columns={"training_tokens_t": "tokens_t"})


def suite(file: Path = paths.DATA / "suite.csv", untrained: bool = False) -> pd.DataFrame:
    """Read the suite of models trained by this project (`python -m companion.training suite`)."""
    # Models trained on the generated grammar are left out: losses on different texts are not comparable. So is step 0,
    # which is no trained model, unless it is asked for.
    if not file.is_file():
        raise ParameterError(f"{str(file)!r} does not exist; train the suite with: make suite")
    table = read_table(file)
    table = table[(table["text"] == "given") & (untrained | (table["step"] > 0))].reset_index(drop=True)
    added = {
        "negative_loss": -table["validation_loss"],
        "log_parameters": np.log10(table["parameters"]),
        "log_tokens": np.log10(table["tokens"].where(table["tokens"] > 0)),
        # Its values span orders of magnitude where the mean growth is close to 0.
        "log_expodistance": np.log10(table["expodistance"]),
        "final": table["step"] == table.groupby("model")["step"].transform("max"),
    }
    for column, null in _nulls(table).items():
        added[f"{column}_relative"] = (table[column] - table[null]) / -table[null]
    return pd.concat([table, pd.DataFrame(added)], axis=1)


def _nulls(table: pd.DataFrame) -> dict[str, str]:
    """Map each column of coupling to that of its null: whole, traceless part, shuffled coordinates."""
    whole = coupling_columns(table)
    parts = {column: f"{column}_null" for column in (*whole, *(f"shared_{column}" for column in whole))}
    nulls = parts | {f"permuted_{column}": f"{column}_null" for column in whole}
    return {column: null for column, null in nulls.items() if column in table.columns}


def coupling_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns of the suite's table that hold a variant of coupling."""
    names = [f"{variant}_k{label}" for variant in VARIANTS for label in ("5", "10", "tenth")]
    return [name for name in names if name in table.columns and f"{name}_null" in table.columns]


def measured_models(root: Path | None = None) -> pd.DataFrame:
    """Return the models with measurements in the store, and those of the paper."""
    roots = [shipped(), None] if root is None else [root]
    kept = pd.concat([store.listing(root=one) for one in roots], ignore_index=True)
    kept = _comparable(kept[~kept["untrained"].astype(bool)])
    rows = []
    for entry in entries():
        if not (entry.in_paper or entry.embedded or entry.alias in set(kept["model"])):
            continue
        mine = kept[kept["model"] == entry.alias]
        files = {measure: mine.loc[mine["measure"] == measure, "path"] for measure in ("decisive", "depth")}
        trace = _means(files["decisive"], "0.1 d")
        rows.append(
            {
                "model": entry.alias, "score": entry.average, "digitised": entry.coupling_fig1a_digitised,
                "trace": trace, "normalized": _means(files["depth"]),
                "prompts": int(((mine["measure"] == "depth") & mine["prompt"].notna()).sum()),
                "command": f"python workflow/decisive.py {entry.alias}" if np.isnan(trace) else "",
                **{f"trace_{k}": _means(files["decisive"], k) for k in ("10", "30", "50")},
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _comparable(kept: pd.DataFrame) -> pd.DataFrame:
    """Select comparable measurements: float32, the blocks' own boundary, end of training, the chapters' prompts."""
    # A mean over everything in a store has no meaning. Measurements on other prompts only are kept.
    kept = kept[kept["precision"] == "float32"]
    settings = kept["settings"].map(json.loads)
    at_block = settings.map(lambda s: s.get("boundary", "block") == "block")
    at_ten = settings.map(lambda s: 10 in s.get("ks", [10]))
    kept = kept[(at_block & at_ten | (kept["measure"] != "depth")) & settings.map(lambda s: s.get("token", -1) == -1)]
    step = kept["revision"].str.extract(r"^step(\d+)$", expand=False).astype(float)
    kept = kept[step.isna() | (step == step.groupby(kept["model"]).transform("max"))]
    # The chapters average over the first 12 embedded prompts.
    ours = kept["prompt"].isin([prompt_name(prompt.text) for prompt in load_prompts(n=12)])
    known = ours.groupby([kept["model"], kept["measure"]]).transform("any")
    kept = kept[ours | ~known]
    # The same prompt measured at one K and at several is one measurement.
    return kept.drop_duplicates(["model", "measure", "prompt"], keep="last")


def _means(files: pd.Series, rule: str = "") -> float:
    """Return the mean coupling over files of a model, decisive ones by their `rule`; unreadable ones are skipped."""
    found = []
    for path in files:
        try:
            ds = open_file(Path(path))[1]
            if rule:
                found.append(1 - float(ds["value"].sel(variant="released_trace", rule=rule, pairs="different").mean()))
                continue
            values = ds["normalized_miscoupling"].sel(k=10).transpose("prompt", "block_1", "block_2").values
            found.append(1 - float(different_pairs(values).mean()))
        except (DamagedError, KeyError):  # damaged, or measured at other K
            continue
    return float(np.mean(found)) if found else np.nan
