"""The grid of vision transformers: weight decay by stochastic depth, each model trained, measured and recorded.

One row per model goes into a table as soon as it is measured, and a model that has its row is not trained again.
`data/tables.toml` defines its columns; `seconds` and `measuring_seconds` are of a machine that does other work as
well. The nulls of `data/vit_grid.csv` were derived afterwards, without training, and not for `miscoupling`.
"""

import functools
import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.stats
import torch
from tqdm import tqdm
from transformers import ViTForImageClassification

from companion.tables.files import merge, predictions_sha256, read_table, unique_keys
from companion.tables.vit_grid import NAMED_RATES, SEEDED_DECAY
from companion.training import vit
from companion.training.vit import VitRecipe
from coupling_lib.datasets.parts import VARIANTS_OF_PARTS, shared_part
from coupling_lib.datasets.statistics import finite
from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import LabelledImages
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.random_bases import null_of
from coupling_lib.measures.trajectories import measure_trajectories
from coupling_lib.metrics.variants import VARIANTS, different_pairs
from coupling_lib.models.storages import wrap_model
from coupling_lib.provenance import processor, versions
from coupling_lib.svd.triplets import IllDefinedSubspaceWarning

WEIGHT_DECAYS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2)
"""The paper's eight weight decays."""

DROP_PATHS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Eight rates of stochastic depth; the paper names four of its own."""

PAIRS = 40
"""Number of pairs of models that differ in stochastic depth only."""

TOKENS = {"class": 0, "patch": -1}
"""Tokens whose Jacobians are measured, by their position."""

IMAGES = 12
"""Number of held-out images measured per model."""


def grid(weight_decays: Sequence[float], rates: Sequence[float], base: VitRecipe) -> list[VitRecipe]:
    """Return the recipes of a grid of weight decay by stochastic depth."""
    return [replace(base, weight_decay=decay, drop_path=rate) for decay in weight_decays for rate in rates]


def paper_grid(base: VitRecipe) -> list[VitRecipe]:
    """Return the recipes of the whole grid, in an order of which any beginning is useful."""
    # The row of several seeds comes first, then the rates that the paper names, then the others.
    others = [rate for rate in DROP_PATHS if rate not in NAMED_RATES]
    rest = [decay for decay in WEIGHT_DECAYS if decay != SEEDED_DECAY]
    order = grid([SEEDED_DECAY], DROP_PATHS, base) + grid(rest, NAMED_RATES, base) + grid(rest, others, base)
    return order + [r for seed in (1, 2) for r in grid([SEEDED_DECAY], DROP_PATHS, replace(base, seed=seed))]


def independent_grid(base: VitRecipe) -> list[VitRecipe]:
    """Return the recipes of a grid without shared seeds, and two more of each model on its diagonal."""
    # Models of one seed start from the same weights and see the same batches; those that differ only in weight decay
    # are then nearly copies, and eight of them not eight trials. The order is drawn: any part is a smaller grid.
    cells = grid(WEIGHT_DECAYS, DROP_PATHS, base)
    diagonal = cells[:: len(DROP_PATHS) + 1]
    recipes = [replace(one, seed=seed) for seed, one in enumerate([*cells, *diagonal, *diagonal])]
    return [recipes[at] for at in np.random.default_rng(0).permutation(len(recipes))]


def switched_pairs(base: VitRecipe) -> list[VitRecipe]:
    """Return the recipes of pairs of one seed and weight decay: without stochastic depth, and with the most of it."""
    seeds = range(100, 100 + PAIRS)
    decays = itertools.cycle(WEIGHT_DECAYS)
    pairs = [replace(base, seed=seed, weight_decay=decay) for seed, decay in zip(seeds, decays, strict=False)]
    return [replace(one, drop_path=rate) for one in pairs for rate in (DROP_PATHS[0], DROP_PATHS[-1])]


GRIDS = {
    ("grid", "digits"): (paper_grid, "vit_grid.csv"),
    ("grid", "cifar10"): (paper_grid, "vit_grid.csv"),
    ("grid", "cifar10-small"): (independent_grid, "cifar_grid.csv"),
    ("pairs", "cifar10-small"): (switched_pairs, "cifar_pairs.csv"),
}
"""Recipes of each kind of set and recipe of `vit.RECIPES`, and the name of their table."""


def run_grid(
    recipes: Sequence[VitRecipe], data: LabelledImages, run: Path, table: Path, n_images: int = IMAGES
) -> None:
    """Train and measure every model that has no row in the table yet."""
    check_whole("--images", n_images, 2, len(data.test))
    _refuse_other_settings(table, _settings(recipes[0], data))
    stored, order = unique_keys(table, ["model"]), [recipe.name for recipe in recipes]
    waiting = [recipe for recipe in recipes if (recipe.name,) not in stored]
    for recipe in tqdm(waiting, "grid", len(waiting), unit="model", disable=None):
        folder = vit.train(recipe, data, run / recipe.name)
        merge(table, [measured_row(recipe, data, folder, n_images)], ["model"], order, "")


def measured_row(recipe: VitRecipe, data: LabelledImages, folder: Path, n_images: int) -> dict:
    """Measure a trained model: one row of the table."""
    began = time.monotonic()
    model = ViTForImageClassification.from_pretrained(folder / "model", attn_implementation="eager")
    train_accuracy, train_loss = vit.evaluate(model, data.train, data.train_labels)
    test_accuracy, test_loss = vit.evaluate(model, data.test, data.test_labels)
    # All models of a seed start from the same weights.
    start = untrained_values(replace(recipe, weight_decay=0.0, drop_path=0.0), data, n_images)
    names = [name for name in start if not name.endswith(("_low", "_high", "_all", "_null"))]
    values = measured_values(model, data, n_images) | {f"{name}_untrained": start[name] for name in names}
    return {
        "model": recipe.name,
        **{name: getattr(recipe, name) for name in ("weight_decay", "drop_path", "seed")},
        **_settings(recipe, data),
        "train_accuracy": train_accuracy,
        "test_accuracy": test_accuracy,
        "train_loss": train_loss,
        "test_loss": test_loss,
        "seconds": float((folder / "seconds.txt").read_text()),
        "measuring_seconds": round(time.monotonic() - began, 1),
        "images": n_images,
        "test_pictures": len(data.test),
        **values,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "predictions_sha256": predictions_sha256(),
    }


@functools.lru_cache(maxsize=2)
def untrained_values(recipe: VitRecipe, data: LabelledImages, n_images: int) -> dict[str, float]:
    """Measure the fresh weights of a seed, once for all models that start from them."""
    model = vit.initialise(vit.configuration(recipe, data), recipe.seed)
    accuracy, _ = vit.evaluate(model, data.test, data.test_labels)
    return {"test_accuracy": accuracy, **measured_values(model, data, n_images)}


def measured_values(hf: ViTForImageClassification, data: LabelledImages, n_images: int) -> dict[str, float]:
    """Measure coupling in every variant, and the shape of trajectories."""
    pixels = images.pixels_for(data.test[:n_images] / 255, hf.config).split(1)
    width = hf.config.hidden_size
    # The third is 10 % of the width, rounded down as in the released code.
    ks = sorted({k for k in (5, 10, width // 10) if 2 <= k <= width})
    model = wrap_model(hf)
    out: dict[str, float] = {}
    for token, position in TOKENS.items():
        with warnings.catch_warnings():
            # Coinciding singular values are expected in a fresh model.
            warnings.simplefilter("ignore", IllDefinedSubspaceWarning)
            ds = measure_depth(model, pixels, ks=ks, token=position)
        for part, prefix, variants in ((ds, "", VARIANTS), (shared_part(ds), "shared_", VARIANTS_OF_PARTS)):
            nulls = null_of(part, list(variants))["value"].mean("block_1")
            for name, k in itertools.product(variants, ks):
                column, values = f"{token}.k{k}.{prefix}{name}", part[name].sel(k=k).values
                out |= _with_interval(column, different_pairs(values).mean(axis=1))
                out |= {f"{column}_all": float(values.mean()), f"{column}_null": float(nulls.sel(variant=name, k=k))}
        shape = measure_trajectories(model, pixels, token=position)
        for name in ("line_shape_score", "expodistance"):
            out |= _with_interval(f"{token}.{name}", shape[name].values)
    return out


def _with_interval(column: str, values: np.ndarray) -> dict[str, float]:
    """Return the mean of images' values, with its interval."""
    values = finite(values, column)
    if len(values) < 2:
        raise ParameterError(f"{column} is known of {len(values)} image; an interval over images needs at least two")
    rng = np.random.default_rng(0)
    # The percentile method stays defined where all values agree: the interval is then that single point.
    found = scipy.stats.bootstrap((values,), np.mean, n_resamples=500, batch=500, method="percentile", rng=rng)
    low, high = map(float, found.confidence_interval)
    return {column: float(values.mean()), f"{column}_low": low, f"{column}_high": high}


def _settings(recipe: VitRecipe, data: LabelledImages) -> dict:
    """Return the settings that all models of a table share."""
    common = {name: getattr(recipe, name) for name in ("width", "blocks", "heads", "patch", "epochs", "batch")}
    steps = recipe.epochs * vit.steps_per_epoch(recipe, data)
    return {"data": data.name, **common, "steps": steps, "learning_rate": recipe.peak}


def _refuse_other_settings(table: Path, wanted: dict) -> None:
    """Refuse a table whose models were trained with other settings than a grid's."""
    held = read_table(table)
    for name, value in wanted.items():
        written = float(f"{value:.6g}") if isinstance(value, float) else value
        if other := [one for one in held.get(name, []) if one != written]:
            raise ParameterError(
                f"{str(table)!r} holds models with {name} = {other[0]}, not {value}; give another table or remove it"
            )
