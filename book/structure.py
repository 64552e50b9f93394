"""Measures the effects of a block's norms alone, for the Gotchas: post-norm blocks, and the state as an eigenvector."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from markdown_table import table
from transformers import BertConfig, BertModel

import coupling_lib
from companion.figures import postnorm
from companion.figures.show import show
from companion.tables import origin
from coupling_lib.errors import ModelUnavailableError, PostNormWarning
from coupling_lib.measures.common import traced_jacobians
from coupling_lib.models.model import Model

# The warning case: a real encoder, from a package that `make` installs.
ALIAS = "minilm-l6"
# Its shape, and the vocabulary that its embedding is drawn for.
SHAPE = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522)
NETWORKS = ("untrained", "trained")
K, READING, PROMPTS, SEED = 10, "normalized_miscoupling", 12, 0


def untrained_encoder(seed: int = SEED, **shape: int) -> Model:
    """Draw a BERT with random weights, as transformers initialises it."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", PostNormWarning)
        torch.manual_seed(seed)
        model = coupling_lib.wrap_model(BertModel(BertConfig(**SHAPE | shape)), name="BERT of MiniLM's shape")
    return replace(model, untrained=True, seed=seed)


def encoders() -> tuple[dict[str, Model], str]:
    """Load MiniLM trained and untrained by name; where its package is absent, return why and how to get it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PostNormWarning)
        try:
            networks = {name: coupling_lib.load_model(ALIAS, untrained=name == "untrained") for name in NETWORKS}
        except ModelUnavailableError as problem:
            return {"untrained": untrained_encoder()}, f"The real MiniLM was not measured here: {problem}"
    return networks, ""


def coupling_table(models: dict[str, Model], prompts: Iterable[Any]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Measure coupling under both maps with its interval over prompts and chance; and the record of each row."""
    rows, records = [], []
    for name, model in models.items():
        given = coupling_lib.inputs_for(model, prompts, seed=SEED)
        for boundary in postnorm.MAPS:
            ds = coupling_lib.sweep(coupling_lib.measure_depth, model, given, ks=(K,), boundary=boundary)
            found = coupling_lib.depth_summary(ds, READING).sel(pairs="all pairs", k=K)
            chance = 1 - coupling_lib.null_of(ds, READING)["value"].mean().item()
            rows.append((name, boundary, *(found[part].item() for part in ("mean", "low", "high")), chance))
            records.append(ds.attrs)
    return pd.DataFrame(rows, columns=["network", "map", "coupling", "low", "high", "chance"]), records


def postnorm_page() -> str:
    """Write the coupling of the blocks of MiniLM, untrained and, where it is installed, trained."""
    models, absent = encoders()
    found, records = coupling_table(models, coupling_lib.load_prompts(n=PROMPTS))
    figure = show(
        postnorm.draw_maps,
        found,
        name="coupling-of-post-norm-blocks",
        caption="Coupling of post-norm blocks under the two maps that can be differentiated, in networks of MiniLM's "
        f"shape: {SHAPE['num_hidden_layers']} blocks of width {SHAPE['hidden_size']}, K = {K}. Bars are 95 % intervals "
        "over prompts; dashed: by chance.",
        provenance=origin.line(*records[::2], command="make book"),
    )
    rows = []
    for row in found.itertuples():
        numbers = (f"{row.coupling:.3f}", f"{row.low:.3f} to {row.high:.3f}", f"{row.chance:.3f}")
        rows.append((row.network, postnorm.MAPS[row.map], *numbers))
    shown = table(("network", "map", "coupling", "95 % interval", "by chance"), rows, align="llrlr")
    return f"```{{raw}} html\n{figure.data}\n```\n\n{shown}\n{absent}\n"


def answers_to_the_state(model: Model, prompts: Iterable[Any], token: int = -1) -> tuple[np.ndarray, np.ndarray]:
    r"""Return $|J x| / (\sigma_1 |x|)$ by prompt and block, and its root mean square over random directions."""
    along, random = [], []
    for traced, J in traced_jacobians(model, coupling_lib.inputs_for(model, prompts), token):
        x = traced.hidden[:-1, token]
        largest = torch.linalg.matrix_norm(J, ord=2)
        along.append(torch.einsum("lij,lj->li", J, x).norm(dim=1) / (largest * x.norm(dim=1)))
        random.append(torch.linalg.matrix_norm(J) / (traced.d_model**0.5 * largest))
    return torch.stack(along).cpu().numpy(), torch.stack(random).cpu().numpy()


def homogeneous_page() -> str:
    """Write the response of the shipped language models to a perturbation along the state."""
    prompts = coupling_lib.load_prompts(n=PROMPTS)
    rows = []
    for name, kind in (("nano-neox", "attention and MLP side by side"), ("nano-llama", "attention, then MLP")):
        along, random = (np.median(part) for part in answers_to_the_state(coupling_lib.load_model(name), prompts))
        rows.append((f"`{name}`", kind, _scientific(along), f"{random:.2f}"))
    head = ("model", "its blocks", "along the state", "along a random direction")
    counted = f"Medians over all blocks and {len(prompts)} prompts, at the last token."
    return f"{table(head, rows, align='llr')}\n{counted}\n"


def _scientific(value: float) -> str:
    """Format a number: decimals, or a power of ten where they would be zeros."""
    if value >= 0.001:
        return f"{value:.3f}"
    digits, power = f"{value:.1e}".split("e")
    return rf"${digits} \times 10^{{{int(power)}}}$"
