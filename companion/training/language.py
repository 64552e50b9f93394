"""The recipe of the embedded language models: a causal transformer on any text.

The run folder holds the tokenised corpus, the state of the optimiser (written every few minutes and at every
checkpoint) and the log. Checkpoints lie at logarithmically spaced steps, because coupling emerges early. Step 0 is
never stored: it is the initialisation by the recorded seed.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from companion.training import run_files, text
from coupling_lib.errors import ParameterError

# Separates the random draws of different seeds: a seed's steps never reach the next seed's.
_MIX = 1_000_003


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run besides the text; recorded in the model's card."""

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
    held_out: text.HeldOut = 0.05
    seed: int = 0


RECIPES = {
    "nano-neox": Recipe("neox", checkpoints=(10, 32, 100, 316, 1_000, 3_162, 10_000)),
    "nano-llama": Recipe("llama", heads=6, kv_heads=2, mlp_width=256),
}


def configuration(recipe: Recipe) -> PreTrainedConfig:
    """Return the Hugging Face configuration of a recipe."""
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


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate: linear warm-up, then a cosine to a tenth of the peak."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


def loss(model: PreTrainedModel, ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the mean next-token cross-entropy of a batch."""
    with torch.autocast(ids.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(input_ids=ids, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def evenly_spaced(stream: np.ndarray, context: int, windows: int = 256) -> torch.Tensor:
    """Cut evenly spaced windows out of a text."""
    starts = range(0, len(stream) - context, max(1, (len(stream) - context) // windows))
    return torch.stack([torch.from_numpy(stream[s : s + context].astype("int64")) for s in starts])[:windows]


def train(recipe: Recipe, source: Path, run: Path, every_seconds: float = 120.0) -> Path:
    """Train a model by a recipe; a repeated call resumes."""
    run_files.claim(run, recipe)
    corpus = text.prepare(source, run / "tokens", recipe.vocabulary, recipe.held_out, recipe.seed)
    text.check_length(corpus, recipe.context)
    fit(recipe, initialise(configuration(recipe), recipe.seed), corpus, run, every_seconds)
    return run


def fit(
    recipe: Recipe, model: PreTrainedModel, corpus: text.Corpus, run: Path, every_seconds: float = 120.0,
    objective: Callable[[PreTrainedModel, torch.Tensor, int], torch.Tensor] | None = None,
) -> None:  # fmt: skip
    """Train a freshly initialised model to the end of its recipe, or resume from its run folder."""
    # Batches, and dropout in training, are functions of the recipe's seed and of the step only, so that a
    # resumed run is the uninterrupted one.
    optimiser = run_files.adamw(model, recipe.learning_rate, recipe.weight_decay, betas=(0.9, 0.95))
    state = run / "state.safetensors"
    start = run_files.load_state(state, model, optimiser) if state.exists() else 0
    log = run_files.read_log(run / "log.csv", start) or [_log_row(recipe, corpus, model, 0, float("nan"))]
    saved, running = time.monotonic(), float("nan")
    progress = tqdm(range(start, recipe.steps), initial=start, total=recipe.steps, unit="step", mininterval=5)
    for step in progress:
        torch.manual_seed(_MIX * (recipe.seed + 1) + step)
        ids = text.batch(corpus.train, step, recipe.seed, recipe.windows, recipe.context)
        value = objective(model, ids, step) if objective else loss(model, ids)
        run_files.descend(model, optimiser, value, learning_rate(recipe, step), clip=1.0)
        running = value.item() if math.isnan(running) else 0.98 * running + 0.02 * value.item()
        progress.set_postfix(loss=f"{running:.3f}", refresh=False)
        done = step + 1
        if done in recipe.checkpoints:
            copy.deepcopy(model).half().save_pretrained(run / f"step{done}")
        if done in recipe.checkpoints or done % 500 == 0:
            log.append(_log_row(recipe, corpus, model, done, running))
            run_files.write_log(run / "log.csv", log)
        if done in recipe.checkpoints or time.monotonic() - saved > every_seconds:
            run_files.save_state(state, model, optimiser, done)
            saved = time.monotonic()


@torch.no_grad()
def _log_row(recipe: Recipe, corpus: text.Corpus, model: PreTrainedModel, step: int, train_loss: float) -> dict:
    """Return one row of the log: losses in nats per token and in bits per byte of the held-out text."""
    model.eval()
    ids = evenly_spaced(corpus.validation, recipe.context)
    nats = sum(float(loss(model, part.to(model.device))) * len(part) for part in ids.split(32)) / len(ids)
    model.train()
    bits = nats / math.log(2) * len(corpus.validation) / corpus.validation_bytes
    tokens = step * recipe.windows * recipe.context
    return {"step": step, "tokens": tokens, "train_loss": train_loss, "validation_loss": nats, "bits_per_byte": bits}
