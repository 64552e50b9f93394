"""Coupling across tokens: the Jacobians of one or two blocks at many pairs of token positions.

The output of a block at position t2 responds to its input at position t1 by J^l_{t1 t2}. Three families of these
matrices are compared (paper, section 3.2), the Jacobian from block l, the singular vectors from block l':

- `"self"`: J^l_{t t} with the vectors of J^l'_{t' t'}, the response of each token to itself;
- `"input"`: J^l_{t1 t} with the vectors of J^l'_{t1 t'}, the response of other tokens t, t' to one fixed token t1;
- `"output"`: J^l_{t t2} with the vectors of J^l'_{t' t2}, the response of one fixed token t2 to other tokens t, t'.

The last two are *context* coupling. No skip path runs between different tokens, so the identity is subtracted in J_tt
alone.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from coupling_lib.datasets.parts import VARIANTS_OF_PARTS, prefixed
from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.metrics.coupling import coupling_matrices, miscoupling
from coupling_lib.metrics.surrogates import surrogate_vectors
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive
from coupling_lib.svd.shared import isotropic_part, without_isotropic

# Jacobians whose products with a random direction are smaller may be all rounding, and are checked.
_SMALL = 1e-2
# Rotations over which the conjugated null is averaged, each of every token's vectors.
_DRAWS = 8
KINDS = ("self", "input", "output")
"""The fixed token: none, the one that is varied (t1), or the one that is read (t2)."""


@common.measurement(version=4)
def measure_tokens(
    model: Model,
    prompts: common.Prompts,
    block: int,
    other: int | None = None,
    kind: str = "self",
    fixed: int | None = None,
    k: int = 10,
    tokens: int = 12,
) -> xr.Dataset:
    """Measure coupling across tokens within one block or between two (paper, section 3.2).

    Only the last tokens that qualify are compared, which bounds time and memory: those whose Jacobian with the fixed
    token is neither zero nor lost in rounding, and a warning gives their number. In a causal model these are the tokens
    after a fixed t1 or before a fixed t2.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)` or `pixel_values`, or `Prompt` objects.
        block: the block l whose Jacobians are measured, from 0.
        other: the block l' whose singular vectors are used; None takes the same.
        kind: one of `KINDS`.
        fixed: position of the fixed token; None takes the second for `"input"`, the last for `"output"`.
        k: number of singular vectors K.
        tokens: largest number T of token positions compared, at least 2.

    Returns:
        a dataset with dimensions `prompt`, `token_1` (whose Jacobian) and `token_2` (whose vectors), T each, and
        one variable `(prompt, token_1, token_2)` per variant of `metrics.variants.VARIANTS`;
        `position` and `text` `(prompt, token_1)`, each token's position from 0, and its text if there is a tokenizer;
        `fixed_position` and `fixed_text` `(prompt,)` of the fixed token, -1 and empty for `"self"`;
        `singular_values` `(prompt, token_1, rank)` and `frobenius_norm` `(prompt, token_1)` of each J;
        `residual` `(prompt,)`, the largest of all triplets' residuals;
        `matrix` `(token_1, token_2, row, column)`, the signed A of the first prompt;
        `conjugated` `(prompt, token_1, token_2)`, the null by conjugation: `normalized_miscoupling` where the left and
        right vectors of the second Jacobian are turned by one uniformly random rotation, mean of 8 of them, with
        `conjugated_error` `(prompt,)`, the standard error of its mean over pairs of different tokens;
        `isotropic` `(prompt, token_1)`, tr(J)/d, and with `shared_` before their names the same without it, as in
        `measure_depth`.
        A prompt with fewer tokens is padded with NaN, position -1 and empty texts.

    Raises:
        ParameterError: if a block or token does not exist, K exceeds the width, or fewer than two tokens qualify.
        UntrustworthyResultError: if a Jacobian or a singular triplet fails its check.

    Example:
        >>> import coupling_lib as cl
        >>> model = cl.load_model("nano-neox")
        >>> ds = cl.measure_tokens(model, ["It was the best of times"], block=6, other=7, kind="output", tokens=4)
        >>> dict(ds.normalized_miscoupling.sizes)
        {'prompt': 1, 'token_1': 4, 'token_2': 4}
    """
    given, other = prompt_inputs(prompts, model), block if other is None else other
    common.check_k(model, k)
    for name, index in (("block", block), ("other", other)):
        check_whole(name, index, 0, model.n_blocks - 1, f"{model.name} has {model.n_blocks} blocks, counted from 0")
    if kind not in KINDS:
        raise ParameterError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    check_whole("tokens", tokens, 2, why="a comparison takes 2 at least")

    def each() -> Iterator[xr.Dataset]:
        for prompt, traced in zip(given, common.traces(model, given), strict=True):
            default = 1 if kind == "input" else -1
            anchor = None if kind == "self" else traced.position(default if fixed is None else fixed)
            chosen = chosen_tokens(traced, {block, other}, kind, anchor, tokens)
            pairs = [{"self": (t, t), "input": (anchor, t), "output": (t, anchor)}[kind] for t in chosen]
            variables = _of_pairs(traced, (block, other), pairs, k, common.generator_for(prompt, 0))
            names = traced.tokens or [""] * traced.n_tokens
            ds = common.to_dataset(variables).assign(
                position=("token_1", chosen),
                text=("token_1", [names[token] for token in chosen]),
                fixed_position=-1 if anchor is None else anchor,
                fixed_text="" if anchor is None else names[anchor],
            )
            filling: dict[str, Any] = {name: np.nan for name in ds.data_vars} | {"position": -1, "text": ""}
            missing = (0, tokens - len(chosen))
            yield ds.pad({"token_1": missing, "token_2": missing}, constant_values=filling)

    details = {"block": block, "other": other, "kind": kind, "fixed": fixed, "k": k, "tokens": tokens}
    kept_once = ["matrix", "shared_matrix"]
    return common.concat_prompts(model, given, each(), {}, shared=kept_once, measure="tokens", **details)


def token_comparisons(pair: tuple[int, int], token_in: int, token_out: int) -> dict[str, dict[str, Any]]:
    """List the comparisons of one report: every kind, between two blocks and within the first."""
    fixed: Mapping[str, int | None] = {"self": None, "input": token_in, "output": token_out}
    first, _ = pair
    return {
        f"{kind} {first + 1}-{other + 1}": {"block": first, "other": other, "kind": kind, "fixed": fixed[kind]}
        for other in dict.fromkeys((pair[1], first))
        for kind in KINDS
    }


def token_reports(comparisons: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Split the comparisons of one report into those between two blocks and those within the first."""
    names = list(comparisons)
    return names[: len(KINDS)], names[-len(KINDS) :]


def _of_pairs(
    traced: Trace, blocks: tuple[int, int], pairs: list[tuple[int, int]], k: int, generator: torch.Generator
) -> common.Variables:
    """Measure one prompt's Jacobians of block l against the vectors of block l', and their traceless parts."""
    n, J = len(pairs), torch.cat([block_jacobians(traced, index, pairs) for index in dict.fromkeys(blocks)])
    # The vectors of block l' are the last n, which are the first if l' = l.
    whole = _of_jacobians(J, n, k, None, generator) | {"isotropic": (("token_1",), isotropic_part(J[:n]))}
    rest = _of_jacobians(without_isotropic(J), n, k, VARIANTS_OF_PARTS, generator)
    return whole | prefixed(rest)


def _of_jacobians(
    J: torch.Tensor, n: int, k: int, names: Sequence[str] | None, generator: torch.Generator
) -> common.Variables:
    """Measure the first n Jacobians against the vectors of the last n."""
    found, values = common.couple_pairs(J, [k], names)
    variables: common.Variables = {name: (("token_1", "token_2"), v[0, :n, -n:]) for name, v in values.items()}
    J, U, Vh = J[:n], found.U[-n:], found.Vh[-n:]
    # Each token's left and right vectors are rotated together.
    rotated = (surrogate_vectors(U, Vh.mT, "conjugated", generator) for _ in range(_DRAWS))
    draws = torch.stack([miscoupling(coupling_matrices(J, u, v.mT), normalized=True) for u, v in rotated]).double()
    means = draws[:, ~torch.eye(n, dtype=torch.bool, device=J.device)].mean(dim=-1)
    return variables | {
        "conjugated": (("token_1", "token_2"), draws.mean(dim=0)),
        "conjugated_error": ((), means.std() / _DRAWS**0.5),
        "singular_values": (("token_1", "rank"), found.S[:n]),
        "frobenius_norm": (("token_1",), torch.linalg.matrix_norm(J)),
        "residual": ((), found.residual.max()),
        "matrix": (("token_1", "token_2", "row", "column"), coupling_matrices(J, U, Vh)),
    }


def chosen_tokens(traced: Trace, blocks: Iterable[int], kind: str, fixed: int | None, tokens: int) -> list[int]:
    """Return the last tokens that qualify in all blocks."""
    found, doubtful = torch.ones(traced.n_tokens, dtype=torch.bool), {}
    if fixed is not None:
        found[fixed] = False
        for block in blocks:
            sizes = _responses(traced, block, kind, fixed)
            found &= sizes > 0
            doubtful[block] = set((sizes < _SMALL).nonzero().flatten().tolist())
    chosen, lost = [], 0
    for token in reversed(found.nonzero().flatten().tolist()):
        if len(chosen) == tokens:
            break
        pair = (fixed, token) if kind == "input" else (token, fixed)
        if any(token in few and traced.jacobian(block, *pair).vanishes() for block, few in doubtful.items()):
            lost += 1
        else:
            chosen.insert(0, token)
    if lost:
        warnings.warn(
            f"{traced.model.name}: {lost} of {lost + len(chosen)} tokens were taken as not connected with the fixed "
            f"one, at position {fixed}: their Jacobians are lost in rounding",
            RuntimeWarning,
            stacklevel=2,
        )
    if len(chosen) < 2:
        few = f"{len(chosen)} token" if len(chosen) == 1 else f"{len(chosen)} tokens"
        if fixed is None:
            raise ParameterError(f"this input has {few}; a comparison takes 2 at least, give a longer one")
        what = "reaches" if kind == "input" else "attends to"
        raise ParameterError(
            f"the fixed token, at position {fixed} of {traced.n_tokens}, {what} {few} besides itself; comparing takes "
            "2 at least, fix another token or give a longer input"
        )
    return chosen


@exclusive
def _responses(traced: Trace, block: int, kind: str, fixed: int) -> torch.Tensor:
    """Return the largest entry of each product of a block's Jacobians with the fixed token and a direction, `(n,)`."""
    call, module, row = traced.calls[block], traced.block(block), traced.first + fixed
    direction = torch.randn(traced.d_model, generator=torch.Generator().manual_seed(0)).to(call.input.device)
    with traced.changes.applied(), torch.enable_grad():
        x = call.input.detach().to(traced.dtype).clone().requires_grad_(True)
        y = call.replay(module, x)
        if kind == "output":
            (answer,) = torch.autograd.grad(y[0, row] @ direction.to(y.dtype), x)
        else:
            # u -> J^T u is linear, so its derivative along the direction is J v: no forward mode is needed.
            u = torch.zeros_like(y, requires_grad=True)
            (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
            (answer,) = torch.autograd.grad(pulled[0, row] @ direction.to(y.dtype), u)
    return answer[0, traced.first :][: traced.n_tokens].abs().amax(dim=1).cpu()
