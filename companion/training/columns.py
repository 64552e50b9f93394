"""Columns that every experiment measures of a checkpoint: losses on held-out text, coupling and null, trajectories."""

import math
from collections.abc import Iterable

import torch
import xarray as xr
from torch.nn import functional
from transformers import PreTrainedModel

from companion.training.language import evenly_spaced
from companion.training.text import Corpus
from coupling_lib.datasets.parts import VARIANTS_OF_PARTS, shared_part
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.nulls import measure_nulls
from coupling_lib.measures.random_bases import null_of
from coupling_lib.measures.trajectories import SCORES, measure_trajectories
from coupling_lib.metrics.variants import VARIANTS, different_pairs
from coupling_lib.models.model import Model

N_PROMPTS = 8
KS = {"5": 5, "10": 10, "tenth": None}
"""Names of the values of K in column names; `tenth` is 10 % of the width."""

Columns = dict[str, float | int | str]
Ks = dict[str, int]


def ks_of(model: Model) -> Ks:
    """Return the values of K at which a model is measured, by name."""
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
    """Summarise variants of coupling at every K, over pairs of blocks and over prompts."""
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
    """Return the columns of the traceless part, and both parts' means over neighbours."""
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
    """Measure the normalised mis-coupling with the coordinates of one block of each pair shuffled."""
    ks, name = ks_of(model), "normalized_miscoupling"
    nulls = measure_nulls(model, load_prompts(n=N_PROMPTS), ks=tuple(ks.values()))
    values = nulls["value"].sel(kind="permuted", variant=name).mean("prompt")
    return {f"permuted_{name}_k{label}": float(values.sel(k=k)) for label, k in ks.items()}


@torch.no_grad()
def held_out(hf: PreTrainedModel, corpus: Corpus, context: int) -> dict[str, float]:
    """Return a model's scores on held-out text, in float32."""
    nats, right, count = 0.0, 0, 0
    for ids in evenly_spaced(corpus.validation, context).split(32):
        logits = hf(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        target = ids[:, 1:].flatten()
        nats += float(functional.cross_entropy(logits, target, reduction="sum"))
        right += int((logits.argmax(dim=-1) == target).sum())
        count += len(target)
    bits = nats / count / math.log(2) * len(corpus.validation) / corpus.validation_bytes
    return {"validation_loss": nats / count, "bits_per_byte": bits, "accuracy": right / count}
