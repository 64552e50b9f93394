"""Models of real shapes with random weights, built from configurations without any download, and the embedded ones.

What a measurement costs depends on a model's shape and not on its weights. Values are compared as well, and random
weights flatter that comparison (all blocks are far from coupled), which is why the trained embedded models are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig

import coupling_lib as cl


@dataclass(frozen=True)
class Shape:
    """A model's shape."""

    name: str
    config: Callable[[], PreTrainedConfig] | None = None

    def build(self) -> cl.Model:
        """Build the model, in float32 on the CPU."""
        if self.config is None:
            return cl.load_model(self.name, device="cpu")
        return model_from(self.config(), self.name)


def model_from(
    config: PreTrainedConfig, name: str, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> cl.Model:
    """Build a model with random weights."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return cl.wrap_model(hf, name=name)


def gpt2(width: int = 768, blocks: int = 12, vocabulary: int = 50257, longest: int = 1024) -> GPT2Config:
    """Return a configuration like GPT-2's, by default that of its small size."""
    heads = width // (64 if width % 64 == 0 else 32)
    sizes = dict(n_embd=width, n_layer=blocks, n_head=heads, vocab_size=vocabulary, n_positions=longest)
    return GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)


def _pythia_410m() -> GPTNeoXConfig:
    heads = dict(num_attention_heads=16, rotary_pct=0.25, max_position_embeddings=2048)
    return GPTNeoXConfig(hidden_size=1024, num_hidden_layers=24, intermediate_size=4096, vocab_size=50304, **heads)


def _llama(width: int, inner: int, blocks: int, heads: int, shared: int, **more: float) -> LlamaConfig:
    """Return the configuration of a Llama of which some heads share keys and values."""
    heads = dict(num_attention_heads=heads, num_key_value_heads=shared)
    return LlamaConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=blocks, **heads, **more)


def llama3_8b(blocks: int = 32) -> LlamaConfig:
    """Return the configuration of Llama-3-8B."""
    more = dict(vocab_size=128256, rms_norm_eps=1e-5, max_position_embeddings=8192)
    return _llama(4096, 14336, blocks, 32, 8, **more)


def llama32_1b() -> LlamaConfig:
    """Return the configuration of Llama-3.2-1B's blocks."""
    return _llama(2048, 8192, 16, 32, 8)


def small_llama(blocks: int = 6) -> LlamaConfig:
    """Return a Llama small enough to rehearse the GPU benchmark on a CPU."""
    return _llama(256, 896, blocks, 8, 2, vocab_size=1024)


_CONFIGS = {
    "tiny": lambda: gpt2(width=96, blocks=4, vocabulary=256, longest=128),
    "gpt2-small": gpt2,
    "pythia-410m": _pythia_410m,
    "nano-neox": None,
    "nano-llama": None,
}
SHAPES = {name: Shape(name, config) for name, config in _CONFIGS.items()}


def prompt_ids(model: cl.Model, n_tokens: int) -> torch.Tensor:
    """Draw a prompt of a given length."""
    vocabulary = model.hf.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (1, n_tokens), generator=generator).to(model.device)


def jacobian_flop(model: cl.Model, n_tokens: int) -> int:
    """Count the floating-point operations of the matrix products that one Jacobian takes, as they are done."""
    traced, last = cl.trace(model, prompt_ids(model, n_tokens)), n_tokens - 1
    with FlopCounterMode(display=False) as counter:
        cl.block_jacobians(traced, model.n_blocks // 2, [(last, last)])
    return counter.get_total_flops()


def complete_flop(model: cl.Model) -> int:
    """Count the operations of one Jacobian's matrix products with all of a block's weights, unit vectors or not."""
    weights = sum(weight.numel() for weight in model.blocks.modules[0].parameters() if weight.ndim == 2)
    return 2 * model.d_model * weights
