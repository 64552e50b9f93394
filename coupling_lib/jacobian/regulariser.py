r"""Coupling as a training objective: a differentiable loss from a few vector products, with no Jacobian formed.

The loss of two blocks $l$, $l'$ is the distance from symmetry of $J_l J_{l'}^\top$ and $J_l^\top J_{l'}$, symmetric if
and only if the blocks share their singular vectors (`metrics.regulariser`, with the derivation). A product $J z$ is a
backward pass through the backward pass for $J^\top z$. Training differentiates both once more, which PyTorch's fused
layer norm gets wrong: its double backward takes the mean and the standard deviation for constants. Blocks are therefore
run with the norm written out.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.attention import NAME
from coupling_lib.blocks.find import find_blocks
from coupling_lib.blocks.rules import hooked
from coupling_lib.errors import ParameterError, check_whole, is_whole, shown
from coupling_lib.metrics.regulariser import asymmetry
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive


@exclusive
def coupling_loss(
    model: PreTrainedModel | Model,
    input_ids: Tensor,
    blocks: int | Sequence[int] = 2,
    probes: int = 4,
    token: int = -1,
    generator: torch.Generator | None = None,
    shared: bool = False,
) -> Tensor:
    r"""Estimate the distance of blocks from coupling, as a loss to minimise.

    With $J_l = \partial f^l(X)_t / \partial x_t$ the residual Jacobian of block $l$ at token $t$ of one sequence and
    $c(N) = \lVert N - N^\top \rVert_F^2 / 4 \lVert N \rVert_F^2$, the loss is

    $$\mathcal L = \operatorname*{mean}_{l < l'} \tfrac12 \bigl( c(J_l J_{l'}^\top) + c(J_l^\top J_{l'}) \bigr),$$

    each $c$ from products with random normal vectors, pooled over the sequences. It is 0 where the blocks share
    their singular vectors, about one half where they are unrelated, at most 1, and independent of
    the size of the Jacobians. Strong singular directions weigh most, with the product of both blocks' squares.

    The cost is one forward pass and, for each block, 1 + 2 `probes` backward passes through that block alone; no
    d x d matrix is formed. Few and short sequences are enough, since the next step takes others.

    Args:
        model: a causal language model or vision transformer with plain ("eager") attention, or a `Model`.
        input_ids: token ids `(sequences, n)`, int64; for a vision model `pixel_values` `(sequences, c, h, w)`.
        blocks: blocks, from 0, of which all pairs are used; or the number of blocks to draw at random.
        probes: number of random vectors p, at least 2, drawn for each sequence and side.
        token: the position t; -1 is the last.
        generator: source of blocks and vectors, on the CPU; None takes torch's global one.
        shared: whether to take each Jacobian without its isotropic part, J - tr(J) / d I, the trace estimated by the
            same vectors: the isotropic action of blocks is then neither rewarded nor punished.

    Returns:
        the loss, a scalar in [0, 1] with a graph to every weight that it depends on.

    Raises:
        ParameterError: if `model` is of another library, its attention is not eager, or blocks, probes or token do not
            exist.
        UntrustworthyResultError: if a Jacobian is zero.

    Example:
        >>> import torch, coupling_lib as cl
        >>> hf = cl.load_model("nano-neox").hf
        >>> loss = cl.coupling_loss(hf, torch.arange(24).view(2, 12), generator=torch.Generator().manual_seed(0))
        >>> bool(0 <= loss <= 1)
        True
    """
    hf = model.hf if isinstance(model, Model) else model
    if not isinstance(hf, PreTrainedModel) or hf.config.model_type == "plain":
        raise ParameterError(f"model is a {type(hf).__name__}; expected a transformers model, or a `Model` of one")
    attention = hf.config.get_text_config()._attn_implementation
    # The library's own attention, which a measured model carries, is plain attention while it trains.
    if attention not in ("eager", NAME):
        raise ParameterError(
            f"the attention is {attention!r}, whose derivative cannot be differentiated again; "
            "call model.set_attn_implementation('eager') first"
        )
    ndim = 4 if isinstance(input_ids, Tensor) and input_ids.is_floating_point() else 2
    if not isinstance(input_ids, Tensor) or input_ids.ndim != ndim or not input_ids.numel():
        raise ParameterError(f"input_ids is {shown(input_ids, 60)}; expected whole numbers (sequences, n), or pixels")
    pad = getattr(hf.config.get_text_config(), "pad_token_id", None)
    ends = (input_ids[:, :2], input_ids[:, -2:])
    if ndim == 2 and pad is not None and any((end == pad).all(dim=1).any() for end in ends):
        raise ParameterError(f"input_ids holds padding (id {pad}); expected whole sequences, as no mask is passed on")
    if not isinstance(generator, torch.Generator | None):
        raise ParameterError(f"generator is {shown(generator)}; expected torch.Generator().manual_seed(0), or None")
    modules = find_blocks(hf).modules
    chosen = _chosen(blocks, len(modules), generator)
    if not is_whole(probes, 2):
        raise ParameterError(f"probes is {probes!r}; expected a whole number, at least 2")

    streams = _streams(hf, [modules[block] for block in chosen], input_ids)
    n_tokens = streams[0][0].shape[1]
    check_whole("token", token, -n_tokens, n_tokens - 1, f"the sequences have {n_tokens} tokens")
    like = streams[0][0][:, token]
    left, right = (torch.randn(probes, *like.shape, generator=generator).to(like) for _ in range(2))
    products = [_products(entered, left_it, token, left, right) for entered, left_it in streams]
    products = [_without_isotropic(*pair, left, right) for pair in products] if shared else products
    terms = [
        asymmetry(first.transpose(0, 1), second.transpose(0, 1))
        for one, other in combinations(products, 2)
        for first, second in zip(one, other, strict=True)
    ]
    return torch.stack(terms).mean()


def _chosen(blocks: int | Sequence[int], depth: int, generator: torch.Generator | None) -> list[int]:
    """Return the numbers of the blocks: those given, or as many as asked for, drawn without replacement."""
    if is_whole(blocks):
        wanted, chosen = blocks, sorted(torch.randperm(depth, generator=generator)[: max(0, int(blocks))].tolist())
    else:
        wanted, chosen = len(blocks), sorted({block for block in blocks if is_whole(block, 0) and block < depth})
    if len(chosen) != wanted or wanted < 2:
        raise ParameterError(
            f"blocks is {blocks!r}; expected at least two different blocks from 0 to {depth - 1}, or how many to draw"
        )
    return chosen


def _streams(hf: PreTrainedModel, modules: Sequence[nn.Module], inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Record the input and output of each block, `(sequences, n, d)`, with the graph between the two."""
    kept: list[tuple[Tensor, Tensor]] = []

    def differentiable(_: nn.Module, arguments: tuple) -> tuple:
        # With a frozen embedding the first block's input has no graph, and no gradient could reach it.
        stream, *rest = arguments
        return (stream if stream.requires_grad else stream.detach().requires_grad_(), *rest)

    def keep(_: nn.Module, arguments: tuple, output: Tensor | tuple) -> None:
        kept.append((arguments[0], output if isinstance(output, Tensor) else output[0]))

    with ExitStack() as stack, torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
        for module in modules:
            if getattr(module, "gradient_checkpointing", False):  # it would recompute them without the hooks
                stack.callback(setattr, module, "gradient_checkpointing", True)
                module.gradient_checkpointing = False
            stack.enter_context(hooked(module, lambda part: type(part) is nn.LayerNorm, _layer_norm))
            stack.enter_context(module.register_forward_pre_hook(differentiable))
            stack.enter_context(module.register_forward_hook(keep))
        if inputs.is_floating_point():
            hf(pixel_values=inputs)
        else:
            hf.base_model(input_ids=inputs, use_cache=False)
    return kept


def _layer_norm(norm: nn.LayerNorm, given: tuple[Tensor], _: Tensor) -> Tensor:
    """Compute `nn.LayerNorm` from elementary operations, for which derivatives of any order are correct."""
    (x,), axes = given, tuple(range(-len(norm.normalized_shape), 0))
    centred = x - x.mean(dim=axes, keepdim=True)
    scaled = centred * (centred.square().mean(dim=axes, keepdim=True) + norm.eps).rsqrt()
    scaled = scaled if norm.weight is None else scaled * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


def _products(entered: Tensor, left_it: Tensor, token: int, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return products of one block's J^T with `left` and of its J with `right`, `(p, sequences, d)`."""
    branch = left_it - entered

    def at(vector: Tensor) -> Tensor:
        placed = torch.zeros_like(branch)
        placed[:, token] = vector
        return placed

    seed = torch.zeros_like(branch, requires_grad=True)
    # Linear in `seed`, with the Jacobian's transpose as its matrix: its own derivative is the Jacobian.
    (pulled,) = torch.autograd.grad(branch, entered, seed, create_graph=True)
    transposed, straight = [], []
    for back, forth in zip(left, right, strict=True):
        (at_input,) = torch.autograd.grad(branch, entered, at(back), create_graph=True)
        (at_output,) = torch.autograd.grad(pulled, seed, at(forth), create_graph=True)
        transposed.append(at_input[:, token])
        straight.append(at_output[:, token])
    return torch.stack(transposed), torch.stack(straight)


def _without_isotropic(transposed: Tensor, straight: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract tr(J) / d times each vector from its product; the other vectors estimate each sequence's trace."""
    probes = torch.cat([left, right])
    traces = (probes * torch.cat([transposed, straight])).mean(dim=-1, keepdim=True)
    # The estimate from a vector itself would be correlated with that vector's product.
    by_others = (traces.sum(dim=0) - traces) / (len(probes) - 1)
    back, forth = (by_others * probes).chunk(2)
    return transposed - back, straight - forth
