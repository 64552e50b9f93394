"""A model's card: the main numbers of its coupling in one record, which others can check and compare with their own.

`make card MODEL=nano-neox` writes one, `make atlas-check` checks it (`companion.tables.card_check`), and
`data/atlas/card.schema.json` defines its contents.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

import coupling_lib as cl
from companion.tables.effects import couplings
from companion.tables.inference import effect_of
from coupling_lib import paths, provenance
from coupling_lib.datasets.summaries import chance
from coupling_lib.errors import ParameterError, UnsupportedModelError, shown
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.measures import common
from coupling_lib.store.key import fingerprint

FORMAT = "coupling-card/1"
FOLDER = paths.DATA / "atlas"
SCHEMA = FOLDER / "card.schema.json"
K, VARIANT = 10, "normalized_miscoupling"
PROMPTS = 24

Card = dict[str, Any]


@cl.measurement(version=1)
def measure_known(model: cl.Model, prompts: common.Prompts, token: int = -1) -> xr.Dataset:
    """Measure the depth from which on the Jacobian lens reads the token that the model itself predicts next."""
    given = prompt_inputs(prompts, model)
    strongest = (cl.lens(traced, token).readout(k=1).ids[:, 0] for traced in common.traces(model, given))
    others = ((ids != ids[-1]).nonzero().flatten().tolist() for ids in strongest)
    each = ({"known": max(depths, default=-1) + 1} for depths in others)
    return common.concat_prompts(model, given, each, {}, measure="known", token=token)


MEASURES = {"depth": cl.measure_depth, "trajectories": cl.measure_trajectories, "known": measure_known}
"""Measures of a card, which records the version of each."""


def card_inputs(model: cl.Model, prompts: int | str, seed: int) -> tuple[list[Any], list[Any], int]:
    """Return the chosen texts or pictures, the model's inputs for them, and the token at which they are measured."""
    if model.hf.main_input_name != "pixel_values":
        chosen = chosen_texts(prompts, seed)
        return chosen, cl.inputs_for(model, chosen, seed=seed), -1
    source, count = source_and_count(prompts)
    chosen = [picture.pixels for picture in cl.load_images(source or "digits", model, count, seed)]
    return chosen, chosen, 0


def chosen_texts(prompts: int | str, seed: int) -> list[str]:
    """Return the texts that a card is measured on."""
    source, count = source_and_count(prompts)
    return [prompt.text for prompt in cl.load_prompts(source or "embedded", n=count, seed=seed)]


def source_and_count(prompts: int | str) -> tuple[str, int]:
    """Parse a number of prompts and their set; the set is empty for the embedded one."""
    if not (found := re.fullmatch(r"(?:([^:]+):)?([1-9]\d{0,5})", str(prompts), re.ASCII)):
        raise ParameterError(f"prompts is {shown(prompts)}; a card takes a number, or a set with one, such as gsm8k:50")
    return found[1] or "", int(found[2])


def measure_card(
    model: cl.Model, prompts: int | str = PROMPTS, seed: int = 0, store: Path | None = None
) -> tuple[Card, dict[str, xr.Dataset]]:
    """Measure a model, and return its card and the measurements."""
    began = time.perf_counter()
    chosen, given, token = card_inputs(model, prompts, seed)
    measured = {}
    for name, measure in MEASURES.items():
        settings = {"ks": (K,)} if name == "depth" else {}
        try:
            measured[name] = cl.sweep(measure, model, given, store=store, token=token, **settings)
        except UnsupportedModelError:
            # Models other than causal decoders have no lens, but all other numbers.
            if name != "known":
                raise
    kind = "texts" if isinstance(chosen[0], str) else "images"
    part = {"kind": kind, "chosen": str(prompts), "seed": seed, "n": len(chosen)}
    part |= {"digest": provenance.prompts_hash(chosen)}
    return _card(model, part, measured, (time.perf_counter() - began) / 3600), measured


def _card(model: cl.Model, prompts: Card, measured: Mapping[str, xr.Dataset], hours: float) -> Card:
    depth, shared, device = measured["depth"], cl.shared_part(measured["depth"]), next(model.hf.parameters()).device
    scores = {name: _summary(measured["trajectories"][name].values) for name in ("line_shape_score", "expodistance")}
    first = {name: float(couplings(ds, VARIANT, K)[0]) for name, ds in (("whole", depth), ("shared", shared))}
    found = {
        "format": FORMAT,
        **provenance.model_identity(model),
        **_folder_identity(Path(model.name)),
        "untrained": bool(model.untrained),
        "weights": fingerprint(model),
        "blocks": model.n_blocks,
        "width": model.d_model,
        "norm": getattr(model.blocks, "norm_position", "pre"),
        "token": int(depth.attrs["token"]),
        "k": K,
        "prompts": prompts,
        "coupling": {"whole": coupling_part(depth), "shared": coupling_part(shared), "first": first},
        "trajectories": scores,
        "spectra": _spectra(depth),
        "known_from": _summary(measured["known"]["known"].values) if "known" in measured else None,
        "measures": {name: MEASURES[name].version for name in measured},
        "versions": depth.attrs["versions"],
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else provenance.processor(),
        "hours": hours,
    }
    return with_digest(rounded(found))


def _folder_identity(folder: Path) -> Card:
    """Return the model's name for a user's folder, whose path means nothing elsewhere; empty for other models."""
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name, flags=re.ASCII).strip("-.")
    return {"model": name, "source": f"folder {name}"} if folder.is_dir() else {}


def coupling_part(ds: xr.Dataset) -> Card:
    """Summarise coupling: over all pairs of different blocks, neighbours, by distance, and of random bases."""
    summary = cl.depth_summary(ds, VARIANT).sel(k=K)
    null = chance(cl.null_of(ds, VARIANT))
    away = 1 - ds["by_distance"].sel(variant=VARIANT, k=K).mean("prompt").values[1:]
    ends = {name: {end: float(summary[end].sel(pairs=pairs)) for end in ("mean", "low", "high")}
            for name, pairs in (("all", "all pairs"), ("neighbours", "neighbours"))}  # fmt: skip
    return ends | {"by_distance": away.tolist(), "null": {"mean": 1 - float(null), "error": null.error}}


def _spectra(ds: xr.Dataset) -> list[Card]:
    """Return the first and the K-th singular value and the stable rank of each block, means over prompts."""
    S, norm = (ds[name].transpose("prompt", "block_1", ...).values for name in ("singular_values", "frobenius_norm"))
    rank = (norm / S[..., 0]) ** 2
    return [
        {"s_1": float(S[:, block, 0].mean()), "s_10": float(S[:, block, K - 1].mean()), "rank": float(of_rank)}
        for block, of_rank in enumerate(rank.mean(axis=0))
    ]


def _summary(values: np.ndarray) -> Card | None:
    """Return the median of one value per prompt with its interval; None if no prompt has one."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    effect = effect_of(finite, "median")
    return {"median": effect.value, "low": effect.low, "high": effect.high, "n": effect.n}


def rounded(part: Any) -> Any:
    """Round every number to six digits; NaN and infinity become None, because JSON has no word for them."""
    if isinstance(part, Mapping):
        return {name: rounded(value) for name, value in part.items()}
    if isinstance(part, list):
        return [rounded(value) for value in part]
    if isinstance(part, float):
        return float(f"{part:.6g}") if np.isfinite(part) else None
    return part


def digest_of(card: Mapping[str, Any]) -> str:
    """Return the digest of a card without its digest."""
    rest = {name: value for name, value in card.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def with_digest(card: Card) -> Card:
    """Return a card with its digest."""
    return card | {"digest": digest_of(card)}


def name_of(card: Mapping[str, Any]) -> str:
    """Return the name of a card, which is the name of its file."""
    precision = "" if card["precision"] == "float32" else card["precision"]
    parts = (card["model"], card["revision"], "untrained" if card["untrained"] else "", precision)
    return "-".join(re.sub(r"[^\w.-]+", "-", part, flags=re.ASCII) for part in parts if part)


def write_card(card: Mapping[str, Any], out: str | Path = "") -> Path:
    """Write a card to a file or folder, by default into `results/atlas`."""
    target = Path(out) if out else paths.RESULTS / "atlas"
    if not out or target.is_dir():
        target /= f"{name_of(card)}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    paths.write_text(target, json.dumps(card, indent=1) + "\n")
    return target


def table_of(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of the numbers of a card that describe the whole model, with their intervals."""
    rows = {"by chance": card["coupling"]["whole"]["null"]}
    for part in ("whole", "shared"):
        rows |= {part: card["coupling"][part]["all"], f"{part} neighbours": card["coupling"][part]["neighbours"]}
    rows |= {name.replace("_", " "): found for name, found in card["trajectories"].items()}
    rows |= {"known from": card["known_from"]}
    return pd.DataFrame(
        {name: {"value": row.get("mean", row.get("median")), "low": row.get("low"), "high": row.get("high")}
         for name, row in rows.items() if row}, dtype=float
    ).T  # fmt: skip


def atlas(folder: Path = FOLDER) -> Sequence[Card]:
    """Read all cards that ship, in order of their names."""
    files = sorted(file for file in folder.glob("*.json") if file.name != SCHEMA.name)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
