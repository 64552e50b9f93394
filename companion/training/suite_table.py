"""The suite's table: what is measured on a checkpoint, and how it is written down.

The comment lines at the head of the file say what the columns mean; `pandas.read_csv(path, comment="#")` reads it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
import xarray as xr
from torch.nn import functional
from transformers import PreTrainedModel

from companion.tables.files import read_table, write_table
from companion.training.language import Recipe, validation_windows
from companion.training.text import Corpus
from coupling_lib import provenance
from coupling_lib.datasets.parts import VARIANTS_OF_PARTS, shared_part
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.nulls import measure_nulls
from coupling_lib.measures.random_bases import null_of
from coupling_lib.measures.trajectories import SCORES, measure_trajectories
from coupling_lib.metrics.nulls import DRAWS
from coupling_lib.metrics.variants import VARIANTS, different_pairs
from coupling_lib.models.model import Model

N_PROMPTS = 8
KS = {"5": 5, "10": 10, "tenth": None}
"""Names of the numbers of singular vectors in column names; `tenth` is 10 % of the width."""

HEADER = f"""\
Models of the suite (python -m companion.training.suite), one row per model and checkpoint. Step 0 is the
initialisation that the seed gives: the untrained model. Weights from step 1 on are rounded to float16, as they are
kept; everything is measured in float32, at the last token of each prompt of load_prompts(n={N_PROMPTS}).
text: what was trained on ("grammar": training.text, "given": see text_name). train_loss: running mean.
validation_loss: nats per token; bits_per_byte: the same in bits per byte of held-out text; accuracy: share of
held-out tokens whose most probable prediction is right; 256 windows, context tokens each.
line_shape_score, expodistance, equidistance: mean over prompts, with x^0; *_median: median over prompts.
VARIANT_kK: a variant of metrics.variants.VARIANTS (all are distances, 0 is perfect coupling) with K = 5, 10 or
"tenth" (k_tenth = a tenth of the width, rounded), mean over pairs of different blocks and over prompts;
_all: mean over all pairs, the diagonal included; _sd: standard deviation over prompts of the former;
_null: its mean with the same singular values and random orthogonal bases (measures.random_bases.null_of: closed form
of the mean square and {DRAWS:,} draws), over all blocks.
shared_VARIANT_kK: VARIANT of the Jacobians without their isotropic part (cl.shared), with a null of its own;
_neighbours: mean over pairs of adjacent blocks; isotropic: mean over blocks of the Jacobian's trace over the width.
permuted_VARIANT_kK: the coordinates of one of each two blocks shuffled (metrics.surrogates).
The untrained value of a model is its row at step 0. train_seconds: to that step, on the cpu and threads named."""


@dataclass(frozen=True)
class SuiteRecipe(Recipe):
    """A recipe with what the suite varies besides."""

    dropout: float = 0.0
    stochastic_depth: float = 0.0
    corpus: str = "given"
    precision: str = "bfloat16"


Columns = dict[str, float | int | str]
Ks = dict[str, int]


def ks_of(model: Model) -> Ks:
    """Return the numbers of singular vectors at which a model is measured, by their names."""
    return {name: k or round(0.1 * model.d_model) for name, k in KS.items()}


def measure(model: Model) -> Columns:
    """Measure coupling, its parts, its null and the trajectories of one checkpoint on the suite's prompts."""
    prompts, ks = load_prompts(n=N_PROMPTS), ks_of(model)
    depth = measure_depth(model, prompts, ks=tuple(ks.values()))
    columns: Columns = {"k_tenth": ks["tenth"]}
    trajectories = measure_trajectories(model, prompts)
    for name in SCORES:
        columns |= {name: float(trajectories[name].mean()), f"{name}_median": float(trajectories[name].median())}
    columns |= coupling_columns(depth, ks, VARIANTS) | parts(depth, ks)
    columns |= {"n_prompts": N_PROMPTS, "prompts_sha256": str(depth.attrs["prompts_sha256"])}
    return columns | {"versions": str(depth.attrs["versions"])}


def coupling_columns(depth: xr.Dataset, ks: Ks, variants: Iterable[str], prefix: str = "") -> Columns:
    """Condense variants of coupling at every number of singular vectors, over pairs of blocks and over prompts."""
    nulls, columns = null_of(depth)["value"].mean("block_1"), {}
    for variant in variants:
        for label, k in ks.items():
            values = depth[variant].sel(k=k).values
            of_prompts = different_pairs(values).mean(axis=1)
            column = f"{prefix}{variant}_k{label}"
            columns |= {column: float(of_prompts.mean()), f"{column}_all": float(values.mean())}
            columns |= {f"{column}_sd": float(of_prompts.std(ddof=1))}
            columns |= {f"{column}_null": float(nulls.sel(variant=variant, k=k))}
    return columns


def parts(depth: xr.Dataset, ks: Ks) -> Columns:
    """Add the traceless part, and both parts' means over neighbours, to what the suite reads off a measurement."""
    rest = shared_part(depth)
    columns: Columns = {"isotropic": float(depth["isotropic"].mean())}
    columns |= coupling_columns(rest, ks, VARIANTS_OF_PARTS, "shared_")
    for part, variants, prefix in ((depth, VARIANTS, ""), (rest, VARIANTS_OF_PARTS, "shared_")):
        adjacent = part["by_distance"].sel(distance=1).mean("prompt")
        for variant in variants:
            for label, k in ks.items():
                columns[f"{prefix}{variant}_k{label}_neighbours"] = float(adjacent.sel(variant=variant, k=k))
    return columns


def permuted(model: Model) -> Columns:
    """Measure the normalised mis-coupling with the coordinates of one of each two blocks shuffled."""
    ks, name = ks_of(model), "normalized_miscoupling"
    nulls = measure_nulls(model, load_prompts(n=N_PROMPTS), ks=tuple(ks.values()))
    values = nulls["value"].sel(kind="permuted", variant=name).mean("prompt")
    return {f"permuted_{name}_k{label}": float(values.sel(k=k)) for label, k in ks.items()}


@torch.no_grad()
def held_out(hf: PreTrainedModel, corpus: Corpus, context: int) -> dict[str, float]:
    """Score a model on held-out text, in float32."""
    nats, right, count = 0.0, 0, 0
    for ids in validation_windows(corpus, context).split(32):
        logits = hf(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        target = ids[:, 1:].flatten()
        nats += float(functional.cross_entropy(logits, target, reduction="sum"))
        right += int((logits.argmax(dim=-1) == target).sum())
        count += len(target)
    bits = nats / count / math.log(2) * len(corpus.validation) / corpus.validation_bytes
    return {"validation_loss": nats / count, "bits_per_byte": bits, "accuracy": right / count}


def timed_row(name: str, recipe: SuiteRecipe, model: Model, corpus: Corpus, text_name: str, step: int) -> dict:
    """Measure one checkpoint and give its row, without what only the training knows."""
    start = time.monotonic()
    fields = {key: value for key, value in asdict(recipe).items() if key not in ("checkpoints", "held_out", "corpus")}
    row = {"model": name, "text": recipe.corpus, "text_name": text_name if recipe.corpus == "given" else recipe.corpus}
    row |= {key: fields[key] for key in ("dropout", "stochastic_depth", "precision")} | fields
    row |= {"parameters": sum(parameter.numel() for parameter in model.hf.parameters())}
    row |= {"step": step, "tokens": step * recipe.windows * recipe.context}
    row |= held_out(model.hf, corpus, recipe.context) | measure(model)
    where = {"cpu": provenance.processor(), "threads": torch.get_num_threads()}
    return row | where | {"measure_seconds": round(time.monotonic() - start, 2)}


def write(path: Path, rows: list[dict], order: list[str], header: str = HEADER) -> None:
    """Merge rows into a table; a row takes the place of an earlier one of the same model and step."""
    table = pd.concat([read_table(path), pd.DataFrame(rows)], ignore_index=True)
    table = table.drop_duplicates(["model", "step"], keep="last")
    table = table.sort_values(
        ["model", "step"], key=lambda column: pd.Categorical(column, order) if column.name == "model" else column
    )
    write_table(path, table, header)
