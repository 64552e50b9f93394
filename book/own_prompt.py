"""Writes what the tab on one's own prompt runs in the browser: the tokenizer, and the weights of three training steps.

All of it is made of the checkpoints that ship with the project. A step takes 2 MB as a script, since its matrices are
rounded to 8 bits with one scale a row; what the rounding changes is measured here and stated on the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import explorer
import numpy as np
import packing
import torch
import xarray as xr
from template import from_template

import coupling_lib as cl
from coupling_lib.datasets import summaries
from coupling_lib.measures.depth import coupling_of_blocks
from coupling_lib.metrics import nulls
from coupling_lib.metrics.subspaces import random_frames
from coupling_lib.models import checkpoints
from coupling_lib.models.model import Model

MODEL, K = "nano-neox", explorer.K
START = "It was a dark and stormy night, and"
GALLERY = 8
"""Prompts that are offered."""
OUT = explorer.OUT / "own-prompt-data"
script = partial(packing.script, page="ownPrompt")


def rounded(weights: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to scales and signed bytes: an entry is its byte times the scale of its row."""
    wide = weights.double().numpy()
    scales = (np.abs(wide).max(axis=1) / 127).astype("<f4")
    bytes_ = np.rint(wide / np.where(scales > 0, scales, 1)[:, None].astype(float))
    return scales, bytes_.astype("i1")


def as_in_the_page(model: Model) -> Model:
    """Round a model's matrices as the page has them, in float64, in which every rounded weight is exact."""
    hf = model.hf.double()
    for weights in hf.parameters():
        if weights.ndim == 2:
            scales, bytes_ = rounded(weights)
            weights.data = torch.from_numpy(bytes_ * scales[:, None].astype(float))
    return cl.wrap_model(hf, model.tokenizer, name=model.name)


def tensors(model: Model) -> list[tuple[str, int, int]]:
    """List the model's weights with rows and columns, 0 columns for a vector, in the order of the scripts."""
    return [(name, len(x), x.shape[1] if x.ndim == 2 else 0) for name, x in model.hf.named_parameters()]


def weights_of(model: Model) -> dict[str, str]:
    """Pack a model's weights: all scales, all bytes, all vectors, each one after the other."""
    matrices = [rounded(x) for x in model.hf.parameters() if x.ndim == 2]
    vectors = [x.numpy() for x in model.hf.parameters() if x.ndim == 1]
    return {
        "scales": packing.packed(np.concatenate([scales for scales, _ in matrices]), "<f4"),
        "entries": packing.packed(np.concatenate([bytes_.ravel() for _, bytes_ in matrices]), "i1"),
        "vectors": packing.packed(np.concatenate(vectors), "<f4"),
    }


def tokenizer_of(model: Model) -> dict[str, Any]:
    """Return what byte-level BPE needs: token texts by id, merges in order, tokens taken as they are."""
    content = json.loads(model.tokenizer.backend_tokenizer.to_str())
    vocabulary = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    return {"vocabulary": vocabulary, "merges": merges, "special": [t["content"] for t in content["added_tokens"]]}


def shape_of(model: Model) -> dict[str, Any]:
    """Return the numbers that the forward pass needs."""
    config = model.hf.config
    rope = config.rope_parameters
    return {
        "blocks": model.n_blocks,
        "width": model.d_model,
        "heads": config.num_attention_heads,
        "middle": config.intermediate_size,
        "rotary": int(config.hidden_size // config.num_attention_heads * rope["partial_rotary_factor"]),
        "base": rope["rope_theta"],
        "epsilon": config.layer_norm_eps,
        "vocabularySize": config.vocab_size,
        "longest": config.max_position_embeddings,
        "tensors": tensors(model),
    }


def measured_steps(texts: list[Any]) -> dict[int, xr.Dataset]:
    """Measure each step of the training, from the store where the notebooks left it."""
    steps = checkpoints.known_steps(MODEL)
    each = (cl.load_model(MODEL, revision=f"step{step}") for step in steps)
    return {step: cl.sweep(cl.measure_depth, model, texts, ks=(K,)) for step, model in zip(steps, each, strict=True)}


def highest(datasets: Iterable[xr.Dataset]) -> float:
    """Return the end of the map's colours with the most ink: the greatest coupling of two blocks, rounded up."""
    return math.ceil(10 * max(float(summaries.pair_couplings(ds).max()) for ds in datasets)) / 10


def gallery(found: xr.Dataset) -> list[int]:
    """Choose prompts, by number, whose maps differ the most."""
    # The first map lies farthest from the mean of all, each further one farthest from all before it. A distance is the
    # root mean square over pairs of different blocks.
    pairs = summaries.pair_couplings(found.isel(k=-1)).transpose("prompt", "block_1", "block_2").values
    maps = pairs[:, ~np.eye(pairs.shape[-1], dtype=bool)]
    nearest, chosen = ((maps - maps.mean(axis=0)) ** 2).mean(axis=1), []
    while len(chosen) < min(GALLERY, len(maps)):
        farthest = int(nearest.argmax())
        away = ((maps - maps[farthest]) ** 2).mean(axis=1)
        nearest = np.minimum(nearest, away) if chosen else away
        nearest[farthest] = -1
        chosen.append(farthest)
    return chosen


def offered(found: xr.Dataset, texts: list[Any], most: float) -> list[dict[str, Any]]:
    """Return the prompts of the gallery with their maps, as shares of the colours from no ink to most."""
    each = []
    for number in gallery(found):
        values = summaries.pair_couplings(found.isel(k=-1, prompt=number)).transpose("block_1", "block_2").values
        shares = np.clip(np.nan_to_num(values) / most, 0, 1)
        each.append({"text": texts[number].text, "map": packing.packed(np.rint(255 * shares), "u1")})
    return each


def frames(width: int, seed: int = 0) -> np.ndarray:
    """Draw the directions of the matrix that has none in common: left and right vectors `(2, width, K)`."""
    return random_frames(2, width, K, torch.Generator().manual_seed(seed)).numpy()


def chosen_steps(coupling: Mapping[int, xr.DataArray]) -> dict[int, str]:
    """Choose the first step, the most coupled one and the last, and state how each is called."""
    first, *_, last = coupling
    peak = max(coupling, key=lambda step: float(coupling[step].mean()))
    return {first: "untrained", peak: f"step {peak:,}", last: f"step {last:,} (trained)"}


def parts_of(
    rows: Mapping[str, float], chance: float, changes: Mapping[str, float], steps: Sequence[int], prompts: int
) -> dict[str, str]:
    """Write the parts of the page: without script, what rounding changes, a step's command, the gallery's rule."""
    _, peak, last = steps
    given = {"model": MODEL, "prompt": START, "K": K, "peak": peak, "last": last, "most": max(changes.values())}
    given |= {"rows": {**rows, "by chance": chance}, "prompts": prompts, "gallery": GALLERY}
    names = ("own-prompt", "own-prompt-rounding", "own-prompt-command", "own-prompt-gallery")
    return {name: from_template(f"{name}.md.jinja", **given) for name in names}


def write(out: Path, n_prompts: int = 12, n_gallery: int = 48) -> None:
    """Write the scripts and the parts of the page."""
    out.mkdir(parents=True, exist_ok=True)
    texts = cl.load_prompts(n=n_prompts)
    datasets = measured_steps(texts)
    coupling = {step: coupling_of_blocks(ds) for step, ds in datasets.items()}
    steps = chosen_steps(coupling)
    rows, changes = {}, {}
    for step, label in steps.items():
        model = cl.load_model(MODEL, revision=f"step{step}")
        (out / f"step{step}.js").write_text(script("weights", f"step{step}", weights_of(model)), encoding="utf-8")
        tokenizer, shape = tokenizer_of(model), shape_of(model)
        shown = as_in_the_page(model)
        after = coupling_of_blocks(cl.measure_depth(shown, texts, ks=(K,)))
        changes[label] = float(abs(after - coupling[step].values).max())
        rows[label] = float(coupling_of_blocks(cl.measure_depth(shown, [START], ks=(K,))).mean())
    chance, most = 1 - nulls.gaussian_miscoupling(K), highest(datasets.values())
    # Where training has ended, prompts differ the most.
    last, every = max(steps), cl.load_prompts(n=n_gallery)
    many = cl.sweep(cl.measure_depth, cl.load_model(MODEL, revision=f"step{last}"), every, ks=(K,))
    content = {
        "label": MODEL,
        "steps": [{"name": f"step{step}", "label": label} for step, label in steps.items()],
        "opens": f"step{list(steps)[1]}",
        "start": START,
        "gallery": offered(many, every, most),
        "k": K,
        "chance": chance,
        "highest": most,
        "frames": packing.packed(frames(shape["width"]), "<f4"),
        "tokenizer": tokenizer,
        **shape,
    }
    (out / "model.js").write_text(script("models", MODEL, content), encoding="utf-8")
    for name, part in parts_of(rows, chance, changes, list(steps), len(every)).items():
        (out.parent.parent / f"{name}.md").write_text(part, encoding="utf-8")
    print(f"   own prompt: {MODEL} at steps {', '.join(map(str, steps))}", flush=True)


if __name__ == "__main__":
    write(OUT)
