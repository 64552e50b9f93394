"""Writes what the explorer shows: a script of data per model, the book's colours, and a table where no script runs.

Browsers refuse to fetch files for a page that was opened from the disk. So the data are classic scripts that set a
global, with arrays in base64, packed by gzip: values as whole numbers of a step, |A| in a few levels with a scale each.
Matrices, by far the most, lie in files per network and part, which are read when they are shown. A *place* is a prompt
and the position of a token in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from packing import in_levels, in_sixteen_bits, packed, script
from template import from_template

import coupling_lib as cl
from companion.figures import depth, style
from companion.tables import origin
from coupling_lib import paths
from coupling_lib.datasets import summaries
from coupling_lib.measures.random_bases import root_mean_square_spectra
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.metrics.subspaces import random_frames
from coupling_lib.models import checkpoints, registry

K = 10
MODELS = {"smollm2-135m": "SmolLM2-135M-Instruct (Q4_1)", "nano-neox": "nano-neox"}
PARTS = {"whole": "whole Jacobians", "shared": "the traceless part alone"}
"""The parts of coupling, and how a reader calls them; the first is shown first."""
READINGS = {
    "normalized_miscoupling": "Normalised mis-coupling (paper)",
    "mismatch": "Mismatch (project page)",
    "released_norm": "Mismatch of |A| (released code)",
}
ROLES = ("page", "text", "faint", "mask", style.TRAINED, style.UNTRAINED, style.NULL)
STOPS = 64
"""Colours that stand for the map of colours, evenly spaced."""
STEP = 0.0002
"""To what a value of a pair is rounded; three digits are shown."""
TOKENS = 8
"""Positions in the first prompt of an embedded model that are shown, evenly spaced; else the last alone."""

OUT = paths.RESULTS / "book" / "explorer"
# Matrices of all prompts are kept apart from what the notebooks measured: theirs has the first prompt's only.
MATRICES = paths.RESULTS / "book" / "matrices"


@dataclass(frozen=True, eq=False)
class State:
    """One network of a model: how it is loaded, and how a reader calls it."""

    name: str
    label: str
    loading: Mapping[str, Any]


@dataclass(eq=False)
class Network:
    """What was measured of a network: all prompts at their last token, and each place alone, in order of prompts."""

    whole: xr.Dataset
    places: list[xr.Dataset]

    @cached_property
    def parts(self) -> dict[str, Network]:
        """What was measured of each of `PARTS`."""
        return {"whole": self, "shared": Network(cl.shared_part(self.whole), list(map(cl.shared_part, self.places)))}

    @cached_property
    def nulls(self) -> np.ndarray:
        """Values of random directions, (place, reading, block); all prompts at their last token come first."""
        datasets = (self.whole, *self.places)
        return np.stack([cl.null_of(ds, list(READINGS))["value"].sel(k=K).values for ds in datasets])


def states_of(name: str) -> list[State]:
    """Return a model's networks in order of training: all steps that are at hand, or untrained and trained."""
    steps = checkpoints.known_steps(name)
    if not steps:
        return [State("untrained", "untrained", {"untrained": True}), State("trained", "trained", {})]
    notes = {steps[0]: " (untrained)", steps[-1]: " (trained)"}
    return [State(f"step{n}", f"step {n:,}{notes.get(n, '')}", {"revision": f"step{n}"}) for n in steps]


def embedded(name: str) -> bool:
    """Return whether a model's weights ship with the project, so that it is measured anew in seconds."""
    entry = registry.lookup(name)
    return entry is not None and entry.embedded


def positions(name: str, number: int, tokens: int) -> list[int]:
    """Return the tokens of a prompt that are shown: several of an embedded model's first prompt, else the last."""
    several = number == 0 and embedded(name)
    return sorted({round(at) for at in np.linspace(0, tokens - 1, TOKENS)}) if several else [tokens - 1]


def pieces(tokenizer: Any, text: str) -> list[str]:
    """Cut a prompt into the texts of its tokens."""
    return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]


def measured(name: str, state: State, texts: Sequence[Any], store: Path | None = None) -> Network:
    """Measure a network as the notebooks do, and its first prompt at further tokens."""
    model = cl.load_model(name, **state.loading)
    whole, places = cl.sweep(cl.measure_depth, model, texts, ks=(K,), variables=depth.DRAWN), []
    for number, text in enumerate(texts):
        *earlier, _ = positions(name, number, len(pieces(model.tokenizer, text.text)))
        places += [cl.sweep(cl.measure_depth, model, [text], ks=(K,), token=token) for token in earlier]
        last = whole.isel(prompt=[number]).drop_vars(["matrix", "shared_matrix"])
        if number == 0 or embedded(name):
            alone = cl.sweep(cl.measure_depth, model, [text], ks=(K,), store=(store or MATRICES) if number else None)
            last = last.assign({matrix: alone[matrix] for matrix in ("matrix", "shared_matrix")})
        places.append(last)
    return Network(whole, places)


def null_matrices(places: Sequence[xr.Dataset], seed: int = 0) -> np.ndarray:
    """Draw coupling matrices of random vectors: one per place and block, with the singular values of its Jacobian."""
    generator = torch.Generator().manual_seed(seed)
    blocks, width = places[0].sizes["block_1"], int(places[0].attrs["width"])
    left, right = (random_frames(blocks, width, K, generator) for _ in range(2))
    spectra = (root_mean_square_spectra(place) for place in places)
    return torch.stack([(left.mT * S.to(left).unsqueeze(-2)) @ right for S in spectra]).numpy()


def data_of(name: str, found: Mapping[State, Network], texts: Sequence[Any], part: str = "whole") -> dict[str, Any]:
    """Collect values for JSON, but for matrices; arrays have the order network, place, block l, block l'."""
    several = list(found.values())
    kept = [number for number, place in enumerate(several[0].places) if "matrix" in place]
    tokenizer = cl.load_model(name, **next(iter(found)).loading).tokenizer
    prompts = []
    for number, text in enumerate(texts):
        cut = pieces(tokenizer, text.text)
        prompts.append({"name": text.id, "text": text.text, "pieces": cut, "tokens": positions(name, number, len(cut))})
    return {
        "label": MODELS.get(name, name),
        "blocks": several[0].whole.sizes["block_1"],
        "k": K,
        "states": [{"name": state.name, "label": state.label} for state in found],
        "prompts": prompts,
        "kept": kept,
        "part": {"name": part, "label": PARTS[part]},
        **_arrays([one.parts[part] for one in several], _between(several)),
        "provenance": origin.line(*(one.whole.attrs for one in several), command="make book"),
    }


def _between(several: Sequence[Network]) -> np.ndarray:
    """Return the least and the greatest value of any network and part at each place, (reading, place, 2)."""
    ends = []
    for one in (part for network in several for part in network.parts.values()):
        for ds, null in zip((one.whole, *one.places), one.nulls, strict=True):
            pairs = ds[list(READINGS)].to_dataarray("reading").sel(k=K).mean("prompt")
            different = summaries.apart(pairs).transpose("reading", ...).values
            both = np.concatenate([different.reshape(len(READINGS), -1), null], axis=1)
            ends.append([np.nanmin(both, axis=1), np.nanmax(both, axis=1)])
    # (part, place, end, reading)
    ends = np.reshape(ends, (-1, 1 + len(several[0].places), 2, len(READINGS)))
    return np.stack([ends[:, :, 0].min(axis=0), ends[:, :, 1].max(axis=0)], axis=-1).swapaxes(0, 1)


def _arrays(several: Sequence[Network], between: np.ndarray) -> dict[str, Any]:
    """Collect the arrays of one part of all networks."""

    def stacked(variable: str, *order: str) -> np.ndarray:
        return np.stack([[place[variable].transpose(*order).values for place in one.places] for one in several])

    nulls, readings = np.stack([one.nulls for one in several]), {}
    for at, (reading, label) in enumerate(READINGS.items()):
        pairs = stacked(reading, "prompt", "k", "block_1", "block_2")
        arrays = {"chance": packed(nulls[:, :, at], "<f4"), "between": packed(between[at], "<f4")}
        readings[reading] = {"label": label, "pairs": in_sixteen_bits(pairs, STEP), **arrays}
    spectra = stacked("singular_values", "prompt", "block_1", "rank")[..., :K]
    return {"readings": readings, "singularValues": in_sixteen_bits(spectra)}


def matrices_of(network: Network, earlier: bool = False) -> dict[str, Any]:
    """Collect matrices of one network and part: at the last tokens of prompts, or at `earlier` ones of the first."""
    # Arrays have the order place, block l, block l', row, column.
    first = len(network.places) - network.whole.sizes["prompt"]
    places = network.places[:first] if earlier else network.places[first:]
    kept = [place for place in places if "matrix" in place]
    measured = np.stack([place["matrix"].transpose("block_1", "block_2", "row", "column").values for place in kept])
    return {"matrices": in_levels(measured), "nulls": in_levels(null_matrices(kept))}


def look(models: Mapping[str, str]) -> dict[str, Any]:
    """Return the models and the colours of both themes: roles, two data sets, `ink` from no coupling to most."""
    found: dict[str, Any] = {"models": list(models.items()), "parts": list(PARTS.items()), "readings": READINGS}
    found["states"] = {name: [(state.name, state.label) for state in states_of(name)] for name in models}
    # What random directions give the first reading, for a file of the reader's own: K decides it.
    found["chance"] = [round(gaussian_miscoupling(k), 5) for k in range(1, 101)]
    for theme in ("light", "dark"):
        with style.theme(theme):
            one: dict[str, Any] = {role: style.colour(role) for role in ROLES}
            one |= {"first": style.dataset_colour("", 0), "second": style.dataset_colour("", 1)}
            shades = np.rint(style.ink()(np.linspace(0, 1, STOPS))[:, :3] * 255).astype(int)
            found[theme] = one | {"ink": ["#{:02x}{:02x}{:02x}".format(*shade) for shade in shades]}
    return found


def element(found: xr.Dataset, label: str) -> str:
    """Write the element of the page that the script fills; until then, the map that is shown first as a table."""
    reading = next(iter(READINGS))
    values = found[reading].sel(k=K).mean("prompt").transpose("block_1", "block_2").values
    given = {"reading": READINGS[reading], "label": label, "prompts": found.sizes["prompt"], "K": K}
    return from_template("explorer.md.jinja", values=values.tolist(), **given)


def write(out: Path, models: Mapping[str, str], n_prompts: int = 12) -> None:
    """Measure the models, from the store where it has them, and write the scripts and the part of the page."""
    folder = out / "explorer-data"
    shutil.rmtree(folder, ignore_errors=True)  # an older build may have written others
    folder.mkdir(parents=True)
    texts = cl.load_prompts(n=n_prompts)
    (folder / "look.js").write_text(script("look", "book", look(models)), encoding="utf-8")
    for number, (name, label) in enumerate(models.items()):
        found = {state: measured(name, state, texts) for state in states_of(name)}
        for part in PARTS:
            file = name if part == "whole" else f"{name}-{part}"
            content: dict[str, tuple[str, Any]] = {file: ("data", data_of(name, found, texts, part))}
            for state, one in found.items():
                content[f"{file}-{state.name}"] = "matrices", matrices_of(one.parts[part])
                if embedded(name):
                    content[f"{file}-{state.name}-earlier"] = "matrices", matrices_of(one.parts[part], earlier=True)
            for written, (kind, values) in content.items():
                (folder / f"{written}.js").write_text(script(kind, written, values), encoding="utf-8")
        if number == 0:
            part = element(list(found.values())[-1].whole, label)
            out.with_suffix(".md").write_text(part, encoding="utf-8")
        print(f"   explorer: {name}", flush=True)


if __name__ == "__main__":
    write(OUT, MODELS)
