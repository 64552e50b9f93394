"""Jacobians in closed form against Jacobians from pullbacks: a prompt each way, in turns in one run.

    python -m benchmarks.closed_form --out results/benchmarks/closed_form.json

At the last token a block of GPT-2's or Llama's kind has its Jacobian in closed form: J = A + M + M A, with A that of
attention (others' keys and values held fixed) and M that of the MLP. That takes attention's last layer, the MLP's
last one and M A as products; pulling back takes queries, keys and values instead of M A, each with its weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import coupling_lib as cl
from benchmarks import machine
from benchmarks.shapes import gpt2, jacobian_flop, llama3_8b, model_from, prompt_ids, small_llama
from benchmarks.stages import medians, ours
from coupling_lib import paths
from coupling_lib.blocks.call import BlockCall

_VOCABULARY, _CHUNK = 4096, 1024
SHAPES = {
    "gpt2-small": lambda: gpt2(vocabulary=_VOCABULARY),
    "llama3-8b": lambda: llama3_8b(blocks=2),
    "tiny gpt2": lambda: gpt2(width=96, blocks=3, vocabulary=256, longest=128),
    "small": lambda: small_llama(blocks=2),
}
CASES = ("gpt2-small", "llama3-8b")


class Parts(NamedTuple):
    """A block's layers; weights are (outputs, inputs), and `first` has two where the MLP has a gate."""

    norms: tuple[nn.Module, nn.Module]
    attention: tuple[nn.Module, ...]
    out: nn.Module
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    first: tuple[nn.Module, ...]
    act: nn.Module
    inner: tuple[Tensor, ...]
    last: Tensor


def parts(block: nn.Module) -> Parts:
    """Find the layers of a block by the names of its family."""
    mlp = block.mlp
    if hasattr(block, "self_attn"):
        own, first = block.self_attn, (mlp.gate_proj, mlp.up_proj)
        layers = (own.q_proj, own.k_proj, own.v_proj)
        weights = tuple(layer.weight for layer in (*layers, own.o_proj))
        norms, inner = (block.input_layernorm, block.post_attention_layernorm), tuple(W.weight for W in first)
        return Parts(norms, layers, own.o_proj, weights, first, mlp.act_fn, inner, mlp.down_proj.weight)
    own = block.attn
    weights = (*own.c_attn.weight.T.chunk(3), own.c_proj.weight.T)
    norms, inner = (block.ln_1, block.ln_2), (mlp.c_fc.weight.T,)
    return Parts(norms, (own.c_attn,), own.c_proj, weights, (mlp.c_fc,), mlp.act, inner, mlp.c_proj.weight.T)


def before_norm(W: Tensor, norm: nn.Module, x: Tensor) -> Tensor:
    """Multiply a matrix, in its place, with the Jacobian of a norm at x: a scaling, and a product of two vectors."""
    centred = isinstance(norm, nn.LayerNorm)
    x = x - x.mean() if centred else x
    scale = (x.square().mean() + (norm.eps if centred else norm.variance_epsilon)).sqrt()
    z, W = x / scale, W.mul_(norm.weight / scale)
    W = W.sub_(W.mean(1, keepdim=True)) if centred else W
    return W.addr_(W @ z, z, alpha=-1 / len(z))


def turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate a tensor by rotary angles along its last dimension but one, of the size of a head."""
    low, high = rows.chunk(2, dim=-2)
    return rows * cos + torch.cat([-high, low], dim=-2) * sin


def of_attention(call: BlockCall, own: Parts, n_heads: int, n_shared: int) -> tuple[Tensor, Tensor]:
    """Return the output of attention at the last token (d,), and its Jacobian with the norm before it (d, d)."""
    x, counts = call.input[0], (n_heads, n_shared, n_shared)
    of_tokens = torch.cat([layer(own.norms[0](x)) for layer in own.attention], dim=-1).T
    split = of_tokens.split([len(W) for W in own.weights[:3]])
    q, k, v = (y.reshape(n, -1, len(x)) for y, n in zip(split, counts, strict=True))
    W_q, W_k, W_v = (W.reshape(n, -1, len(W.T)) for W, n in zip(own.weights, counts, strict=False))
    if rotary := call.arguments.get("position_embeddings"):
        angles = [table[0].T for table in rotary]
        last = [table[:, -1:] for table in angles]
        q, k, W_q, W_k = turned(q, *angles), turned(k, *angles), turned(W_q, *last), turned(W_k, *last)
    # Heads that share keys and values stand side by side: (groups, heads of one, size of a head, ...).
    q, W_q = q[..., -1].unflatten(0, (n_shared, -1)), W_q.unflatten(0, (n_shared, -1))
    scale = q.shape[-1] ** -0.5
    a = torch.einsum("ghc,gcn->ghn", q, k).mul(scale).softmax(-1)
    given = torch.einsum("gcn,ghn->ghc", v, a)
    by_score = (v[:, None] - given[..., None]) * a[:, :, None] * scale  # what an output changes by, per score
    P = torch.einsum("ghcn,gen->ghce", by_score, k) @ W_q
    P.addcmul_(by_score[..., -1:], torch.einsum("ghc,gcd->ghd", q, W_k)[:, :, None])
    P.addcmul_(a[..., -1, None, None], W_v[:, None])
    return own.out(given.reshape(1, -1))[0], before_norm(own.weights[3] @ P.flatten(0, 2), own.norms[0], x[-1])


def of_mlp(own: Parts, x: Tensor) -> Tensor:
    """Return the Jacobian (d, d) of the MLP and the norm before it."""
    given = [layer(own.norms[1](x[None]))[0].requires_grad_(True) for layer in own.first]
    with torch.enable_grad():
        inner = own.act(given[0]) * (given[1] if len(given) == 2 else 1)
        slopes = torch.autograd.grad(inner.sum(), given)
    M = x.new_zeros(len(own.last), len(x))
    for rows in torch.arange(len(slopes[0])).split(_CHUNK):  # what is larger is paged in anew each time
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        merged = slopes[0][part, None] * own.inner[0][part]
        for slope, W in zip(slopes[1:], own.inner[1:], strict=True):
            merged.addcmul_(slope[part, None], W[part])
        M.addmm_(own.last[:, part], merged)
    return before_norm(M, own.norms[1], x)


@torch.no_grad()
def jacobians(traced: cl.Trace) -> Tensor:
    """Return the Jacobians (L, d, d) of all blocks at the last token."""
    config, found = traced.model.hf.config, []
    heads = config.num_attention_heads
    for call in traced.calls:
        own = parts(call.block)
        added, A = of_attention(call, own, heads, getattr(config, "num_key_value_heads", heads))
        M = of_mlp(own, call.input[0, -1] + added)
        found.append(torch.addmm(A + M, M, A))
    return torch.stack(found)


def run(shape: str, rounds: int, n: int = 64) -> dict[str, Any]:
    """Measure one shape both ways."""
    model = model_from(SHAPES[shape](), shape)
    ids, taken = prompt_ids(model, n), {"pulled": [], "written": []}
    for _ in range(rounds):
        taken["pulled"].append(found := ours(model, ids))
        taken["written"].append(other := ours(model, ids, jacobians=jacobians))
    both = {way: medians(each) for way, each in taken.items()}
    seconds = {way: {part: each[part] for part in ("jacobians", "total")} for way, each in both.items()}
    own, d = parts(model.blocks.modules[0]), model.d_model
    rows = len(own.weights[0]) + len(own.inner[0]) + d  # of attention's outputs, of the MLP's inner layer, of A
    flop = {"pulled": jacobian_flop(model, n), "written": 2 * d * d * rows}
    return {
        "shape": shape,
        **{"d": d, "L": model.n_blocks, "n": n, "rounds": rounds, "flop": flop, "seconds": seconds},
        "gain": {part: seconds["pulled"][part] / seconds["written"][part] for part in seconds["pulled"]},
        "difference": float((found.J - other.J).norm() / found.J.norm()),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.RESULTS / "benchmarks" / "closed_form.json")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=CASES, help="models that are measured")
    given = parser.parse_args(arguments)
    line = "{shape}: Jacobians {gain[jacobians]:.2f} times as fast, a prompt {gain[total]:.2f}"
    machine.write_each(given.out, (run(shape, given.rounds) for shape in given.shapes), line.format_map)


if __name__ == "__main__":
    main()
