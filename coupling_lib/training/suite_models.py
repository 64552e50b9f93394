"""The models of the suite: one base setting, varied one thing at a time, and width crossed with depth.

Every model sees the same held-out split and reads the same tokenizer as `nano-neox`; seeds change the
initialisation and the batches. Three tiny models are trained on the text of `training.grammar`, which needs no
corpus, so that whoever has the library can repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.errors import ParameterError
from coupling_lib.training.recipe import Recipe, configuration, initialise


@dataclass(frozen=True)
class SuiteRecipe(Recipe):
    """A recipe with what the suite varies besides."""

    dropout: float = 0.0
    stochastic_depth: float = 0.0
    corpus: str = "given"
    precision: str = "bfloat16"


_SHORT = dict(vocabulary=1536, context=128, windows=8, warmup=50)
BASE = SuiteRecipe(
    "neox", width=64, blocks=8, heads=2, kv_heads=2, mlp_width=256,
    steps=600, checkpoints=(32, 100, 300, 600), **_SHORT,
)  # fmt: skip
TINY = SuiteRecipe(
    "neox", width=32, blocks=3, heads=2, kv_heads=2, mlp_width=128, vocabulary=320, context=64, windows=8,
    steps=60, checkpoints=(20, 60), learning_rate=3e-3, warmup=10, corpus="grammar", precision="float32",
)  # fmt: skip


def _sized(base: SuiteRecipe, width: int, blocks: int, architecture: str = "neox") -> SuiteRecipe:
    """Change a recipe's size, with an MLP of the architecture's usual width: 4 d, or 8 d / 3 where it is gated."""
    inner = 4 * width if architecture == "neox" else 8 * round(width / 3)
    return replace(base, architecture=architecture, width=width, blocks=blocks, mlp_width=inner)


def _suite() -> dict[str, SuiteRecipe]:
    """All recipes by name, in the order of training: the sooner a run is cut short, the coarser the suite."""
    models = {
        "tiny-neox-w32-d3": TINY,
        "tiny-neox-w48-d4": _sized(TINY, 48, 4),
        "tiny-llama-w32-d3": _sized(TINY, 32, 3, "llama"),
        "neox-w64-d8": BASE,
    }
    grid = [(32, 4), (96, 4), (32, 12), (48, 8), (64, 4), (32, 8), (96, 8), (48, 4), (64, 12), (48, 12), (96, 12)]
    for width, blocks in grid:
        models[f"neox-w{width}-d{blocks}"] = _sized(BASE, width, blocks)
    changes: dict[str, dict] = {
        "seed1": dict(seed=1),
        "sd0.2": dict(stochastic_depth=0.2),
        "wd1": dict(weight_decay=1.0),
        "lr5e-4": dict(learning_rate=5e-4),
        "drop0.1": dict(dropout=0.1),
        "seed2": dict(seed=2),
        "wd0": dict(weight_decay=0.0),
        "sd0.1": dict(stochastic_depth=0.1),
        "lr6e-3": dict(learning_rate=6e-3),
    }
    models |= {f"neox-w64-d8-{name}": replace(BASE, **change) for name, change in changes.items()}
    for width, blocks in [(64, 8), (32, 8), (64, 4), (96, 8)]:
        models[f"llama-w{width}-d{blocks}"] = _sized(BASE, width, blocks, "llama")
    changes = {
        "wd3": dict(weight_decay=3.0),
        "sd0.4": dict(stochastic_depth=0.4),
        "drop0.2": dict(dropout=0.2),
        "lr1e-3": dict(learning_rate=1e-3),
        "seed3": dict(seed=3),
        "sd0.2-wd1": dict(stochastic_depth=0.2, weight_decay=1.0),
        "sd0.2-wd0": dict(stochastic_depth=0.2, weight_decay=0.0),
    }
    models |= {f"neox-w64-d8-{name}": replace(BASE, **change) for name, change in changes.items()}
    return models


SUITE = _suite()
"""Recipes of the models that the suite trains, by name."""

SHIPPED = ("nano-neox", "nano-llama")
"""Embedded models that the suite measures beside its own; their weights come with the project."""


def build(recipe: SuiteRecipe) -> PreTrainedModel:
    """Build a model of the suite at step 0, with its dropout and stochastic depth in place."""
    config = configuration(recipe)
    if recipe.dropout:
        if recipe.architecture != "neox":
            raise ParameterError(f"dropout is {recipe.dropout!r}; the architecture {recipe.architecture!r} has none")
        config.hidden_dropout = config.attention_dropout = recipe.dropout
    model = initialise(config, recipe.seed)
    if recipe.stochastic_depth:
        drop_branches(model, recipe.stochastic_depth)
    return model.train()


def drop_branches(model: PreTrainedModel, probability: float) -> None:
    """Leave out whole residual branches at random while training (Huang et al., 2016)."""
    # A block $x + f(x)$ becomes $x + \frac{b}{1 - p} f(x)$ with $b = 0$ with probability $p$ and 1 otherwise, drawn
    # for each sequence and each block. The factor keeps the mean. In evaluation mode nothing is dropped.
    if not 0 <= probability < 1:
        raise ParameterError(f"stochastic_depth is {probability!r}; expected a probability from 0 to below 1")
    for block in model.base_model.layers:
        block.register_forward_hook(_branch_dropper(probability))


def _branch_dropper(probability: float):
    """Make the forward hook of one block."""

    def drop(block: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor | None:
        if not block.training:
            return None
        stream = arguments[0]
        kept = torch.rand(len(stream), 1, 1, device=stream.device) >= probability
        return stream + (output - stream) * (kept / (1 - probability)).to(stream.dtype)

    return drop
