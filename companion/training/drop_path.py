r"""Stochastic depth (Huang et al., 2016): branches or whole blocks dropped at random in training, as hooks.

A transformer block has two residual branches, attention and MLP. With stochastic depth (drop path) each branch of
each image is dropped with probability $p_l$, and multiplied by $1/(1-p_l)$ where it survives:

$$x \leftarrow x + \frac{b}{1-p_l}\,f(x), \qquad b \sim \mathrm{Bernoulli}(1-p_l).$$

As in DeiT, $p_l$ grows linearly with depth, from 0 at the first block to the *rate* at the last. A Jacobian is taken of
the block in evaluation mode, where nothing is dropped; `measure_drop_path` measures the difference otherwise.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import xarray as xr
from torch import nn

from coupling_lib.errors import ParameterError, UnsupportedModelError, check_whole, shown
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.inputs.traced import trace
from coupling_lib.measures import common
from coupling_lib.metrics.variants import chosen_variants, different_pairs
from coupling_lib.models.model import Model

BRANCHES = ("attention", "mlp")
"""Names of a block's submodules whose outputs are added to the residual stream."""


def depth_rates(rate: float, n_blocks: int) -> list[float]:
    """Return each block's probability of dropping a branch."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ParameterError(f"rate is {shown(rate)}; a rate of stochastic depth is from 0 to below 1")
    return [round(rate * block / max(1, n_blocks - 1), 12) for block in range(n_blocks)]


@contextmanager
def fixed_gates(blocks: Sequence[nn.Module], gates: torch.Tensor) -> Generator[None]:
    """Multiply residual branches by given factors, in training and in evaluation mode."""
    if gates.shape != (len(blocks), 2):
        raise ParameterError(f"gates has shape {tuple(gates.shape)}; ({len(blocks)}, 2) is expected")
    with ExitStack() as hooks:
        for block, row in zip(blocks, gates, strict=True):
            for branch, factor in zip(branches(block), row, strict=True):
                if factor != 1:
                    hooks.enter_context(branch.register_forward_hook(partial(scaled, factor=float(factor))))
        yield


def draw_gates(rate: float, n_blocks: int, generator: torch.Generator) -> torch.Tensor:
    """Draw the factors of the branches of one image, as in training mode."""
    # A block both of whose branches are dropped has the Jacobian 0 and no singular vectors; such draws are repeated.
    p = torch.tensor(depth_rates(rate, n_blocks))[:, None]
    while True:
        kept = torch.rand(n_blocks, 2, generator=generator) >= p
        if kept.any(dim=1).all():
            return kept / (1 - p)


def branches(block: nn.Module) -> list[nn.Module]:
    """Return the two residual branches of a block."""
    children = dict(block.named_children())
    if not set(BRANCHES) <= children.keys():
        message = f"{type(block).__name__} has no branches named {' and '.join(BRANCHES)}"
        raise UnsupportedModelError(f"{message}; stochastic depth is known for Hugging Face's ViT")
    return [children[name] for name in BRANCHES]


def scaled(module: nn.Module, args: tuple, output: Any, factor: torch.Tensor | float) -> Any:
    """Multiply the residual stream in a branch's output."""
    return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor


def _factors(stream: torch.Tensor, p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw 0 with probability p, and 1 / (1 - p) otherwise, which keeps the mean, for each sequence or image."""
    # Drawn on the CPU, so that a run repeats on any device.
    return ((torch.rand(len(stream), 1, 1, generator=generator) >= p) / (1 - p)).to(stream)


class DropPath:
    """Stochastic depth of each block's two branches, with a probability that grows with depth (DeiT)."""

    def __init__(self, blocks: Sequence[nn.Module], rate: float):
        self.rates = depth_rates(rate, len(blocks))
        self.generator = torch.Generator()
        self._handles = [
            branch.register_forward_hook(partial(self._drop, p))
            for block, p in zip(blocks, self.rates, strict=True)
            for branch in branches(block)
            if p > 0
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _drop(self, p: float, module: nn.Module, args: tuple, output: Any) -> Any:
        if not module.training:
            return output
        stream = output[0] if isinstance(output, tuple) else output
        return scaled(module, args, output, _factors(stream, p, self.generator))


def drop_blocks(blocks: Sequence[nn.Module], p: float) -> None:
    """Drop the contributions of whole blocks to the stream, all with one probability."""
    if not 0 <= p < 1:
        raise ParameterError(f"stochastic_depth is {p!r}; expected a probability from 0 to below 1")

    def drop(block: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor | None:
        stream = arguments[0]
        return stream + (output - stream) * _factors(stream, p) if block.training else None

    for block in blocks:
        block.register_forward_hook(drop)


@common.measurement(version=2)
def measure_drop_path(
    model: Model,
    prompts: torch.Tensor | Iterable[torch.Tensor],
    rate: float = 0.3,
    draws: int = 4,
    k: int = 10,
    token: int = 0,
    seed: int = 0,
    variant: str = "normalized_miscoupling",
) -> xr.Dataset:
    """Measure coupling with stochastic depth off, as in all other measurements, and left on, as in training mode."""
    given, modules = prompt_inputs(prompts, model), model.blocks.modules
    common.check_k(model, k)
    check_whole("draws", draws, 1)
    depth_rates(rate, len(modules))
    chosen_variants([variant])

    def measured(image: torch.Tensor) -> float:
        values = common.couple_pairs(common.depth_jacobians(trace(model, image), token), [k], [variant])[1][variant][0]
        return float(different_pairs(values).mean())

    def of_one_prompt(image: torch.Tensor) -> common.Variables:
        generator, off, on = common.generator_for(image, seed), measured(image), []
        for _ in range(draws):
            with fixed_gates(modules, draw_gates(rate, len(modules), generator)):
                on.append(measured(image))
        return {"off": off, "on": ("draw", on)}

    details = {"rate": rate, "draws": draws, "k": k, "token": token, "variant": variant}
    return common.concat_prompts(model, given, map(of_one_prompt, given), {}, measure="drop_path", **details)
