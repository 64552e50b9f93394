"""What a language model is trained with: the recipe, the configuration it stands for, and step 0."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from coupling_lib.errors import ParameterError


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run besides the text; recorded in the model's card."""

    architecture: str
    width: int = 96
    blocks: int = 12
    heads: int = 4
    kv_heads: int = 4
    mlp_width: int = 384
    vocabulary: int = 1536
    context: int = 128
    windows: int = 32
    steps: int = 10_000
    checkpoints: tuple[int, ...] = (10_000,)
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.1
    held_out: float = 0.05
    seed: int = 0


RECIPES = {
    "nano-neox": Recipe("neox", checkpoints=(10, 32, 100, 316, 1_000, 3_162, 10_000)),
    "nano-llama": Recipe("llama", heads=6, kv_heads=2, mlp_width=256),
}


def configuration(recipe: Recipe) -> PreTrainedConfig:
    """Give the Hugging Face configuration of a recipe."""
    common = dict(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        intermediate_size=recipe.mlp_width,
        max_position_embeddings=4 * recipe.context,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    if recipe.architecture == "neox":
        return GPTNeoXConfig(**common)
    if recipe.architecture == "llama":
        return LlamaConfig(**common, num_key_value_heads=recipe.kv_heads)
    raise ParameterError(f"architecture is {recipe.architecture!r}; it must be 'neox' or 'llama'")


def initialise(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Build a causal language model with fresh weights from a seed: step 0 of a run."""
    torch.manual_seed(seed)
    # Plain attention: the fused kernel's backward pass is twice as slow on a CPU at heads this narrow.
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")


def digest(model: PreTrainedModel) -> str:
    """Fingerprint a model's weights, so that a regenerated initialisation can be checked."""
    sha = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        sha.update(parameter.detach().half().numpy().tobytes())
    return sha.hexdigest()


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth of the peak."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))
