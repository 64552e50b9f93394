"""Writes what the explorer shows: a script of data per model, the book's colours, and a table where no script runs.

Browsers refuse to fetch files for a page that was opened from the disk. So the data are classic scripts that set a
global, with arrays in base64: values of pairs in 16 bits, one scale per reading; matrices in 8 bits, a scale each.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import coupling_lib as cl
from coupling_lib import paths, provenance
from coupling_lib.figures import style
from coupling_lib.measures.random_bases import root_mean_square_spectra
from coupling_lib.metrics.subspaces import random_frames
from coupling_lib.models import checkpoints, registry

K = 10
MODELS = {"smollm2-135m": "SmolLM2-135M", "nano-neox": "nano-neox"}
READINGS = {
    "normalized_miscoupling": "Normalised mis-coupling (paper)",
    "mismatch": "Mismatch (project page)",
    "released_norm": "Mismatch of |A| (released code)",
}
ROLES = ("page", "text", "faint", "mask", style.TRAINED, style.UNTRAINED, style.NULL)
STOPS = 64
"""Colours that stand for the map of colours, evenly spaced."""

OUT = paths.RESULTS / "book" / "explorer"
# Matrices of all prompts are kept apart from what the notebooks measured: theirs has the first prompt's only.
MATRICES = paths.RESULTS / "book" / "matrices"


@dataclass(frozen=True, eq=False)
class State:
    """One network of a model: how it is loaded, and how a reader calls it."""

    name: str
    label: str
    loading: Mapping[str, Any]


def states_of(name: str) -> list[State]:
    """Gives a model's networks in order of training: all steps that are at hand, or untrained and trained."""
    steps = checkpoints.known_steps(name)
    if not steps:
        return [State("untrained", "untrained", {"untrained": True}), State("trained", "trained", {})]
    notes = {steps[0]: " (untrained)", steps[-1]: " (trained)"}
    return [State(f"step{n}", f"step {n:,}{notes.get(n, '')}", {"revision": f"step{n}"}) for n in steps]


def measured(name: str, state: State, texts: Sequence[Any], store: Path | None = None) -> xr.Dataset:
    """Measures a network as the notebooks do, with the matrices of every prompt or of the first.

    Args:
        name: the model.
        state: one of its networks.
        texts: the prompts.
        store: where matrices of further prompts are kept; None for `MATRICES`.

    Returns:
        a dataset of `measure_depth`, whose `matrix` has the dimension `matrix_prompt`. Further prompts have theirs
        where the model ships with the project, since measuring one takes a tenth of a second.
    """
    model = cl.load_model(name, **state.loading)
    ds = cl.sweep(cl.measure_depth, model, texts, ks=(K,))
    each = [ds["matrix"]]
    entry = registry.lookup(name)
    if entry is not None and entry.embedded:
        alone = (cl.sweep(cl.measure_depth, model, [text], ks=(K,), store=store or MATRICES) for text in texts[1:])
        each += [one["matrix"] for one in alone]
    return ds.assign(matrix=xr.concat(each, dim="matrix_prompt"))


def null_matrices(ds: xr.Dataset, seed: int = 0) -> np.ndarray:
    """Draws coupling matrices of random vectors: one per prompt and block, with the singular values of its Jacobian.

    Args:
        ds: a dataset of `measured`.
        seed: seed of the directions, which are the same for all prompts.

    Returns:
        (prompts that have matrices, L, K, K).
    """
    generator = torch.Generator().manual_seed(seed)
    left, right = (random_frames(ds.sizes["block_1"], int(ds.attrs["width"]), K, generator) for _ in range(2))
    found = []
    for prompt in range(ds.sizes["matrix_prompt"]):
        S = root_mean_square_spectra(ds.isel(prompt=[prompt]))
        found.append((left.mT * S.to(left).unsqueeze(-2)) @ right)
    return torch.stack(found).numpy()


def packed(values: np.ndarray, dtype: str) -> str:
    """Writes an array as base64, little end first."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def in_eight_bits(matrices: np.ndarray) -> dict[str, str]:
    """Rounds matrices (..., K, K) to signed bytes: an entry is its byte times the matrix's `scale`."""
    scale = np.abs(matrices).max(axis=(-2, -1)).astype("<f4") / np.float32(127)
    steps = np.rint(matrices / np.where(scale > 0, scale, 1)[..., None, None])
    return {"scale": packed(scale, "<f4"), "entries": packed(steps, "i1")}


def in_sixteen_bits(values: np.ndarray) -> dict[str, Any]:
    """Rounds values to 16 bits on one scale: a value is `low` plus its number times `step`."""
    low = float(values.min())
    step = (float(values.max()) - low) / 65535 or 1.0
    return {"low": low, "step": step, "numbers": packed(np.rint((values - low) / step), "<u2")}


def data_of(name: str, found: Mapping[State, xr.Dataset], texts: Sequence[Any]) -> dict[str, Any]:
    """Collects what the explorer shows of a model.

    Args:
        name: the model.
        found: what `measured` gave for its networks.
        texts: the prompts.

    Returns:
        plain values for JSON. Arrays have the order network, prompt, block l (whose Jacobian), block l' (whose
        vectors), row, column, as far as they have these.
    """
    several = list(found.values())
    nulls = [cl.null_of(ds, list(READINGS))["value"].sel(k=K) for ds in several]
    readings = {}
    for reading, label in READINGS.items():
        pairs = np.stack([ds[reading].sel(k=K).transpose("prompt", "block_1", "block_2").values for ds in several])
        chance = np.stack([null.sel(variant=reading).values for null in nulls])
        readings[reading] = {"label": label, "pairs": in_sixteen_bits(pairs), "chance": chance.round(6).tolist()}
    order = ("matrix_prompt", "block_1", "block_2", "row", "column")
    matrices = np.stack([ds["matrix"].transpose(*order).values for ds in several])
    values = np.stack([ds["singular_values"].transpose("prompt", "block_1", "rank").values[..., :K] for ds in several])
    return {
        "label": MODELS.get(name, name),
        "blocks": several[0].sizes["block_1"],
        "k": K,
        "states": [{"name": state.name, "label": state.label} for state in found],
        "prompts": [{"name": text.id, "text": text.text} for text in texts],
        "matrixPrompts": matrices.shape[1],
        "readings": readings,
        "singularValues": packed(values, "<f4"),
        "matrices": in_eight_bits(matrices),
        "nulls": in_eight_bits(np.stack([null_matrices(ds) for ds in several])),
        "provenance": provenance.line(*(ds.attrs for ds in several), command="make book"),
    }


def script(kind: str, name: str, content: Any) -> str:
    """Writes a classic script that adds an entry to the explorer's global."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'((window.couplingExplorer ??= {{}}).{kind} ??= {{}})["{name}"] = {text};\n'


def read(text: str) -> Any:
    """Reads the content of a `script` again."""
    return json.loads(text.partition(" = ")[2].rstrip().removesuffix(";"))


def look() -> dict[str, Any]:
    """Gives the book's colours in both themes: roles, two data sets, and `ink`, from no coupling to most."""
    found = {}
    for theme in ("light", "dark"):
        with style.theme(theme):
            one: dict[str, Any] = {role: style.colour(role) for role in ROLES}
            one |= {"first": style.dataset_colour("", 0), "second": style.dataset_colour("", 1)}
            shades = np.rint(style.ink()(np.linspace(0, 1, STOPS))[:, :3] * 255).astype(int)
            found[theme] = one | {"ink": ["#{:02x}{:02x}{:02x}".format(*shade) for shade in shades]}
    return found


def table(label: str, values: np.ndarray) -> str:
    """Sets the numbers of a map as HTML, for readers without script."""
    blocks = range(1, len(values) + 1)
    head = "".join(f'<th scope="col">{block}</th>' for block in blocks)
    rows = "".join(
        f'<tr><th scope="row">{block}</th>{"".join(f"<td>{value:.3f}</td>" for value in row)}</tr>'
        for block, row in zip(blocks, values, strict=True)
    )
    caption = f"{label}. Rows: the block whose Jacobian it is. Columns: the block whose singular vectors are used."
    return f"<table><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def element(found: xr.Dataset, models: Mapping[str, str]) -> str:
    """Writes the element of the page that the script fills; until then, the map that is shown first as a table.

    Args:
        found: what `measured` gave for the network that is shown first.
        models: aliases, and how each is called; the first is that network's.

    Returns:
        HTML in Markdown.
    """
    reading, (label, *_) = next(iter(READINGS)), models.values()
    values = found[reading].sel(k=K).mean("prompt").transpose("block_1", "block_2").values
    inside = table(f"{READINGS[reading]} of {label}, mean over {found.sizes['prompt']} prompts, K = {K}", values)
    told = "<p>The explorer needs JavaScript. Here are the numbers of its first map.</p>"
    listed = html.escape(json.dumps(list(models.items())))
    scrolled = f'<div class="cx-scroll" tabindex="0" role="region" aria-label="Numbers of the map">{inside}</div>'
    return f'```{{raw}} html\n<div id="coupling-explorer" data-models="{listed}">{told}{scrolled}</div>\n```\n'


def write(out: Path, models: Mapping[str, str], n_prompts: int = 12) -> None:
    """Measures the models, from the store where it has them, and writes the scripts and the part of the page.

    Args:
        out: folder of the scripts, which the book adds to its own static files; the part of the page lies beside it.
        models: aliases, and how each is called; the first is the one that the part of the page shows.
        n_prompts: number of embedded prompts.
    """
    folder = out / "explorer-data"
    folder.mkdir(parents=True, exist_ok=True)
    texts = cl.load_prompts(n=n_prompts)
    (folder / "look.js").write_text(script("look", "book", look()), encoding="utf-8")
    for number, name in enumerate(models):
        found = {state: measured(name, state, texts) for state in states_of(name)}
        (folder / f"{name}.js").write_text(script("data", name, data_of(name, found, texts)), encoding="utf-8")
        if number == 0:
            part = element(list(found.values())[-1], models)
            out.with_suffix(".md").write_text(part, encoding="utf-8")
        print(f"   explorer: {name}", flush=True)


if __name__ == "__main__":
    write(OUT, MODELS)
