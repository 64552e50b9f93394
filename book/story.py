"""Writes the story of the front page: pictures of six moments, which a script makes one that moves, and their data.

The training is read from what the explorer shows of it, and the decoders from the measurements that ship.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import explorer
import numpy as np
import pandas as pd
import xarray as xr
from chapters import display_name
from packing import read, unpacked
from template import from_template

import coupling_lib as cl
from companion.figures import depth, style
from companion.figures import story as figures
from companion.figures.show import show
from companion.notebook.shipped import shipped_networks
from companion.tables import generalization
from companion.tables.statistics import width_curve
from coupling_lib.datasets.summaries import off_diagonal
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.models import checkpoints

MODEL, READING = "nano-neox", "normalized_miscoupling"
PAIR = (7, 5)
"""Blocks of the Jacobian and of the singular vectors of the story's matrix A, counted from 1."""
STOPS = (0, 10, 32, 100, 1000, 10_000)
"""Steps of the training at which the story stops."""
DECODERS = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b")
SHORT = {name: display_name(name) for name in DECODERS}
"""Names of the decoders in the story."""


def training(folder: Path = explorer.OUT / "explorer-data") -> xr.Dataset:
    """Read from the explorer's data each step's coupling of all pairs, matrix A of one pair and of the first prompt."""
    data, steps = read((folder / f"{MODEL}.js").read_text(encoding="utf-8")), checkpoints.known_steps(MODEL)
    blocks, prompts = data["blocks"], len(data["prompts"])
    pairs = data["readings"]["paper"]["pairs"]
    values = pairs["low"] + pairs["step"] * unpacked(pairs["numbers"], "<u2", len(steps), -1, blocks, blocks)
    # The last places are the last tokens of all prompts.
    mean = xr.DataArray(values[:, -prompts:].mean(axis=1), dims=("step", "block_1", "block_2"))
    numbered = {"step": list(steps), "block_1": range(blocks), "block_2": range(blocks)}
    coupling = off_diagonal(mean.assign_coords(numbered))
    losses = checkpoints.progress(MODEL).values
    matrices = np.stack([_matrix(folder / f"{MODEL}-step{step}.js", data["k"], blocks) for step in steps])
    variables = {
        "coupling": coupling.rename(block_1="block_jacobian", block_2="block_vectors"),
        "A": (("step", "row", "column"), matrices),
        "mean_coupling": coupling.mean(["block_1", "block_2"]),
        "loss": ("step", [losses[step] for step in steps]),
    }
    attrs = {"by_chance": 1 - gaussian_miscoupling(data["k"]), "pair": PAIR, "origin": data["provenance"]}
    return xr.Dataset(variables, attrs=attrs)


def _matrix(file: Path, k: int, blocks: int) -> np.ndarray:
    """Read |A| of the pair in the first prompt, as a share of its largest entry."""
    entries = read(file.read_text(encoding="utf-8"))["matrices"]["entries"]
    levels = unpacked(entries, "u1", -1, blocks, blocks, k, k)[0, PAIR[0] - 1, PAIR[1] - 1]
    return levels / levels.max()


def decoders() -> dict[str, xr.DataArray]:
    """Read the coupling of all pairs of blocks of each public decoder, mean over the prompts that ship of it."""
    prompts, found = cl.load_prompts(n=12), {}
    for name in DECODERS:
        trained = shipped_networks(cl.measure_depth, name, prompts, ks=(explorer.K,), token=-1)["trained"]
        couplings = depth.pair_couplings(trained.expand_dims(network=["trained"]), READING, explorer.K)
        found[SHORT[name]] = couplings.isel(network=0, drop=True).mean("prompt")
    return found


def story_part() -> str:
    """Write the six stills, the texts of the acts, and the data of the moving figure."""
    one, maps, points = training(), decoders(), generalization.figure_1a()
    explained = np.corrcoef(points["coupling"], width_curve(points["width"]))[0, 1] ** 2
    picture = show(
        figures.draw_stills,
        figures.take_stills(one, maps, points),
        name="landing-story",
        caption=f"Coupling of all pairs of blocks, |A| of blocks {PAIR[0]} and {PAIR[1]} at the last token of one "
        f"prompt, and the training of {MODEL} at four steps. A is the Jacobian of block {PAIR[0]} in the singular "
        f"vectors of block {PAIR[1]}; each A has a scale of its own. Below, three public decoders, and the models of "
        "the paper's figure 1a. Maps share one scale: rows are blocks of the Jacobian, columns blocks of the "
        "vectors; stronger colours mean more coupling; grey: a block with itself.",
        provenance=one.origin.replace(" · make book", " · data/measurements · data/paper_figures.csv · make book"),
    )
    data = json.dumps(moving(one, maps, points), separators=(",", ":"))
    coupling = {step: float(one.mean_coupling.sel(step=step)) for step in STOPS}
    loss = {step: float(one.loss.sel(step=step)) for step in STOPS}
    means = {name: float(values.mean()) for name, values in maps.items()}
    given = {"coupling": coupling, "loss": loss, "chance": one.by_chance, "pair": PAIR, "decoders": means}
    return from_template("story.html.jinja", picture=picture.data, data=data, explained=explained, **given)


def moving(one: xr.Dataset, maps: Mapping[str, xr.DataArray], points: pd.DataFrame) -> dict[str, Any]:
    """Collect what the script draws: the training by step, the maps of decoders, points, a curve, and colours."""
    steps = one.step.values.tolist()
    places = np.log10(np.maximum(steps, 10 ** (np.log10(steps[1]) - 0.5)))
    widths = np.linspace(points["width"].min(), points["width"].max(), 60).round()
    data: dict[str, Any] = {
        "steps": steps,
        "stops": [steps.index(step) for step in STOPS],
        "places": ((places - places[0]) / (places[-1] - places[0])).round(4).tolist(),
        "pair": PAIR,
        "chance": round(one.by_chance, 4),
        "top": round(figures.highest({MODEL: one, **maps}), 4),
        "maps": [_flat(values) for values in one.coupling.values],
        "matrices": [_flat(values) for values in one.A.values],
        "coupling": one.mean_coupling.values.round(4).tolist(),
        "loss": one.loss.values.tolist(),
        "decoders": [{"name": name, "map": _flat(values.values)} for name, values in maps.items()],
        "points": points[["width", "coupling"]].round(4).to_numpy().tolist(),
        "curve": np.stack([widths, width_curve(widths).round(4)], axis=1).tolist(),
    }
    for theme in ("light", "dark"):
        with style.theme(theme):
            roles = {role: style.colour(role) for role in ("text", "faint", "mask", style.NULL, style.TRAINED)}
            data[theme] = roles | {"ink": figures.shades()}
    return data


def _flat(values: np.ndarray) -> list[float | None]:
    """Write a matrix row after row with three digits, and nothing where a block meets itself."""
    return [None if np.isnan(value) else float(value) for value in values.round(3).ravel()]
