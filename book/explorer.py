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
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from packing import in_levels, in_sixteen_bits, packed, script
from public_decoders import NAMES
from template import from_template

import coupling_lib as cl
from companion.figures import depth, story, style
from companion.notebook.shipped import shipped_networks
from companion.tables import origin
from coupling_lib import paths
from coupling_lib.datasets import summaries
from coupling_lib.measures.random_bases import root_mean_square_spectra
from coupling_lib.metrics.expected_null import expected_null
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.metrics.subspaces import random_frames
from coupling_lib.models import checkpoints, registry
from coupling_lib.models.packages import GGUF_FILES

K = 10
MODELS = {"nano-neox": "nano-neox", **NAMES}
"""Models and their names for readers; the first is shown first, at its most coupled step."""
PARTS = {"whole": "whole Jacobians", "shared": "the traceless part alone"}
"""The parts of coupling, and how a reader calls them; the first is shown first."""


class Reading(NamedTuple):
    """A reading of coupling: 1 minus a variant, what that is called, and where it stands."""

    variant: str
    label: str
    source: str


READINGS = {
    "paper": Reading("normalized_miscoupling", "Coupling", "the paper"),
    "project": Reading("mismatch", "1 − mismatch", "the project page"),
    "released": Reading("released_norm", "1 − mismatch of |A|", "the released code"),
}
VARIANTS = [reading.variant for reading in READINGS.values()]
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
_MATRICES = ["matrix", "shared_matrix"]


@dataclass(frozen=True, eq=False)
class State:
    """A network of a model: its loader, and its name for readers."""

    name: str
    label: str
    loading: Mapping[str, Any]


@dataclass(eq=False)
class Network:
    """Measurements of a network: all prompts at their last token, and each place alone, in order of prompts."""

    whole: xr.Dataset
    places: list[xr.Dataset]

    @cached_property
    def parts(self) -> dict[str, Network]:
        """Measurements of each of `PARTS`."""
        return {"whole": self, "shared": Network(cl.shared_part(self.whole), list(map(cl.shared_part, self.places)))}

    @cached_property
    def nulls(self) -> np.ndarray:
        """Couplings by chance, (place, reading, block); all prompts at their last token come first."""
        datasets = (self.whole, *self.places)
        spectra = torch.cat([root_mean_square_spectra(ds) for ds in datasets])
        # All at once: what takes time are the draws, which they share.
        found = expected_null(spectra, int(self.whole.attrs["width"]), [K], VARIANTS)
        return np.stack([1 - found[name].value.reshape(len(datasets), -1) for name in VARIANTS], axis=1)


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
        last = _alone(whole, number)
        if number == 0 or embedded(name):
            alone = cl.sweep(cl.measure_depth, model, [text], ks=(K,), store=(store or MATRICES) if number else None)
            last = last.assign({matrix: alone[matrix] for matrix in _MATRICES})
        places.append(last)
    return Network(whole, places)


def networks(name: str, texts: Sequence[Any]) -> dict[State, Network]:
    """Measure the networks of a model, or read what ships of one whose weights do not, which may be nothing."""
    if name not in GGUF_FILES:
        return {state: measured(name, state, texts) for state in states_of(name)}
    shipped = shipped_networks(cl.measure_depth, name, texts, ks=(K,), token=-1)
    found = {}
    for state in states_of(name) if shipped else ():
        whole = shipped[state.name]
        places = [whole.isel(prompt=[0]), *(_alone(whole, number) for number in range(1, len(texts)))]
        found[state] = Network(whole, places)
    return found


def _alone(whole: xr.Dataset, number: int) -> xr.Dataset:
    """Select one prompt, without the matrices, which are those of the first."""
    return whole.isel(prompt=[number]).drop_vars(_MATRICES)


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
    couplings = [float(summaries.mean_couplings(one.whole, VARIANTS[0], K).mean()) for one in several]
    return {
        "label": MODELS.get(name, name),
        "blocks": several[0].whole.sizes["block_1"],
        "k": K,
        "states": [{"name": state.name, "label": state.label} for state in found],
        "opens": int(np.argmax(couplings)),
        "prompts": prompts_of(name, texts),
        "kept": kept,
        "part": {"name": part, "label": PARTS[part]},
        **_arrays([one.parts[part] for one in several]),
        "provenance": origin.line(*(one.whole.attrs for one in several), command="make book"),
    }


def prompts_of(name: str, texts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the prompts with the positions of their shown tokens, and cut into pieces if the tokenizer is here."""
    prompts: list[dict[str, Any]] = [{"name": text.id, "text": text.text, "tokens": [0]} for text in texts]
    if name not in GGUF_FILES:
        tokenizer = cl.load_model(name).tokenizer
        for number, prompt in enumerate(prompts):
            prompt["pieces"] = pieces(tokenizer, prompt["text"])
            prompt["tokens"] = positions(name, number, len(prompt["pieces"]))
    return prompts


def _arrays(several: Sequence[Network]) -> dict[str, Any]:
    """Collect the arrays of one part of all networks."""

    def stacked(variable: str, *order: str) -> np.ndarray:
        return np.stack([[place[variable].transpose(*order).values for place in one.places] for one in several])

    nulls, readings = np.stack([one.nulls for one in several]), {}
    for at, (name, reading) in enumerate(READINGS.items()):
        pairs = 1 - stacked(reading.variant, "prompt", "k", "block_1", "block_2")
        arrays = {"pairs": in_sixteen_bits(pairs, STEP), "chance": packed(nulls[:, :, at], "<f4")}
        readings[name] = {"label": reading.label, **arrays}
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


def settings(models: Mapping[str, str], states: Mapping[str, Sequence[State]]) -> dict[str, Any]:
    """Return models, their states (none where nothing was measured) and the colours of both themes."""
    found: dict[str, Any] = {"models": list(models.items()), "parts": list(PARTS.items())}
    found["readings"] = {name: reading._asdict() for name, reading in READINGS.items()}
    found["states"] = {name: [(state.name, state.label) for state in states[name]] for name in models}
    # Coupling by chance of the first reading, for a file of the reader's own: K decides it.
    found["chance"] = [round(1 - gaussian_miscoupling(k), 5) for k in range(1, 101)]
    for theme in ("light", "dark"):
        with style.theme(theme):
            one: dict[str, Any] = {role: style.colour(role) for role in ROLES}
            one |= {"first": style.dataset_colour("", 0), "second": style.dataset_colour("", 1)}
            # From no coupling to the most.
            found[theme] = one | {"ink": ["#{:02x}{:02x}{:02x}".format(*shade) for shade in story.shades(STOPS)]}
    return found


def element(found: xr.Dataset, label: str) -> str:
    """Write the element of the page that the script fills; until then, the map that is shown first as a table."""
    coupling = summaries.pair_couplings(found, VARIANTS[0], K).mean("prompt").transpose("block_1", "block_2")
    chance = 1 - float(cl.null_of(found, VARIANTS[0])["value"].sel(k=K).mean())
    given = {"label": label, "prompts": found.sizes["prompt"], "K": K, "chance": chance}
    return from_template("explorer.md.jinja", values=coupling.values.tolist(), **given)


def write(out: Path, models: Mapping[str, str], n_prompts: int = 12) -> None:
    """Measure the models, from the store where it has them, and write the scripts and the part of the page."""
    folder = out / "explorer-data"
    shutil.rmtree(folder, ignore_errors=True)  # an older build may have written others
    folder.mkdir(parents=True)
    texts = cl.load_prompts(n=n_prompts)
    states: dict[str, list[State]] = {}
    for name, label in models.items():
        found = networks(name, texts)
        states[name] = list(found)
        for part in PARTS if found else ():
            file = name if part == "whole" else f"{name}-{part}"
            data = data_of(name, found, texts, part)
            content: dict[str, tuple[str, Any]] = {file: ("data", data)}
            for state, one in found.items():
                content[f"{file}-{state.name}"] = "matrices", matrices_of(one.parts[part])
                if embedded(name):
                    content[f"{file}-{state.name}-earlier"] = "matrices", matrices_of(one.parts[part], earlier=True)
            for written, (kind, values) in content.items():
                (folder / f"{written}.js").write_text(script(kind, written, values), encoding="utf-8")
            if len(states) == 1 and part == "whole":
                state, one = list(found.items())[data["opens"]]
                out.with_suffix(".md").write_text(element(one.whole, f"{label}, {state.label}"), encoding="utf-8")
        print(f"   explorer: {name}{'' if found else ' is not measured here'}", flush=True)
    (folder / "settings.js").write_text(script("settings", "book", settings(models, states)), encoding="utf-8")


if __name__ == "__main__":
    write(OUT, MODELS)
