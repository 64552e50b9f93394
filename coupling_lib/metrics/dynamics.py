r"""The residual stream as a linear system: products of $I + J_l$, and growth of directions along them.

The paper reads a network as $x^{l} = (I + J_l)\,x^{l-1}$ (section 6.1; appendix A.5, equations 19 to 24), with $J_l$
the Jacobian of block $l$'s residual branch $f^l$ at the state $x^{l-1}$ that the network itself visits. The first-order
expansion of a block there has a remainder as well, which the paper's equation leaves out:

$$x^l = (I + J_l)\,x^{l-1} + b_l, \qquad b_l = f^l(x^{l-1}) - J_l\,x^{l-1}.$$

A block that reads the stream only through a norm has the same output for $x$ and $2x$: $J_l\,x^{l-1} = 0$ up to the
norm's small constant, and $b_l$ is all of $f^l$.

Tensors: `J` (L, d, d), one residual Jacobian per block, and `x` (L+1, d), the states $x^0 \dots x^L$ of one token.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import divided, trustworthy, widened
from coupling_lib.metrics.subspaces import random_frame


class Agreement(NamedTuple):
    """Agreement of a computed state with the true one; every field has the same shape."""

    cosine: Tensor  #: Cosine of the angle between the two, -1 to 1.
    norm_ratio: Tensor  #: Length of the computed state over that of the true one; 1 is right.
    relative_error: Tensor  #: Length of their difference over that of the true one; 0 is right.


class Growth(NamedTuple):
    """Natural logarithms of growth factors since the embedding, each (L+1, K), 0 at level 0."""

    state: Tensor  #: Of the state's component along a direction, $\ln |u^\top x^l / u^\top x^0|$.
    response: Tensor  #: Of a small change along it, propagated by the product: $\ln |u^\top (I+J_l)\cdots(I+J_1)\,u|$.
    along: Tensor  #: Predicted from each block's action on the direction: $\sum_{j \le l} \ln |1 + u^\top J_j\,u|$.
    #: Predicted from the blocks' singular values, $\sum_{j \le l} \ln(1 + \sigma_k^j)$ (paper, after equation 24).
    singular: Tensor


def agreement(computed: Tensor, true: Tensor) -> Agreement:
    """Compare computed states with true ones: direction, length, and both."""
    computed, true = widened(computed, true)
    length, wanted = torch.linalg.vector_norm(computed, dim=-1), torch.linalg.vector_norm(true, dim=-1)
    error = torch.linalg.vector_norm(computed - true, dim=-1)
    product = length * wanted
    cosine = (computed * true).sum(dim=-1) / torch.where(product == 0, 1, product)
    return Agreement(
        trustworthy(cosine.clamp(-1, 1), "cosine of states"),
        divided(length, wanted, "norm of a state"),
        divided(error, wanted, "norm of a state"),
    )


def carried_states(J: Tensor, x: Tensor) -> Agreement:
    """Compare each state, propagated by products of $I + J_l$, with the states that the network reaches."""
    # For every pair of levels $a \le b$ compares $(I + J_b) \cdots (I + J_{a+1})\,x^a$ with $x^b$. Row 0 starts at
    # the embedding (paper, equations 20 and 21); the last column shows how much of the path to the end is linear.
    J, x = _checked(J, x)
    levels = len(x)
    out = Agreement(*(x.new_full((levels, levels), torch.nan) for _ in Agreement._fields))
    columns = x[:0]
    for level in range(levels):
        if level:
            columns = _step(columns, J[level - 1])
        columns = torch.cat([columns, x[level : level + 1]])
        for target, values in zip(out, agreement(columns, x[level].expand_as(columns)), strict=True):
            target[: level + 1, level] = values
    return out


def linear_part(J: Tensor, x: Tensor) -> Agreement:
    r"""Compare $J_l\,x^{l-1}$, all that one block adds by the paper's equation 23, with the true $f^l(x^{l-1})$."""
    J, x = _checked(J, x)
    return agreement((J @ x[:-1, :, None])[..., 0], x.diff(dim=0))


def contributions(J: Tensor, x: Tensor) -> Tensor:
    """Split the last state into contributions of the embedding and of each block's remainder, all propagated."""
    # Unrolling $x^l = (I + J_l) x^{l-1} + b_l$ gives
    # $$x^L = P_{0}\,x^0 + \sum_{l=1}^{L} P_{l}\,b_l, \qquad P_l = (I + J_L) \cdots (I + J_{l+1}),$$
    # an identity. Each term counts by its component along $x^L$, as a share of $\lVert x^L \rVert$.
    J, x = _checked(J, x)
    remainders = x.diff(dim=0) - (J @ x[:-1, :, None])[..., 0]
    columns = x[:1]
    for matrix, remainder in zip(J, remainders, strict=True):
        columns = torch.cat([_step(columns, matrix), remainder[None]])
    return divided(columns @ x[-1], x[-1] @ x[-1], "norm of the last state")


def growth(J: Tensor, x: Tensor, U: Tensor, S: Tensor) -> Growth:
    """Return growth along given directions through the blocks, beside the prediction of full coupling."""
    # If all blocks shared their singular vectors, with left equal to right, $J_l = U S_l U^\top$, a change along
    # $u_k$ would grow by $\prod_l (1 + \sigma_k^l)$ (paper, equation 24), and `response`, `along` and `singular`
    # would agree; `state` too, if the remainders vanish. A left vector opposite to its right one makes the
    # factor $1 - \sigma_k^l$ instead, which `along` includes and `singular` does not.
    # A component lost in rounding is set to the rounding error: a block that ends in a norm may erase a direction.
    J, x = _checked(J, x)
    U, S = widened(U, S)
    rounding = torch.finfo(x.dtype).eps
    component = torch.maximum((x @ U).abs(), rounding * torch.linalg.vector_norm(x, dim=-1, keepdim=True))
    columns, responses = U.mT, [torch.ones_like(component[0])]
    for matrix in J:
        columns = _step(columns, matrix)
        responses.append((columns * U.mT).sum(dim=-1).abs().clamp(min=rounding))
    factor = (1 + torch.stack([((U.mT @ matrix) * U.mT).sum(dim=-1) for matrix in J])).abs().clamp(min=rounding)
    start = torch.zeros_like(component[:1])
    return Growth(
        trustworthy((component / component[0]).log(), "growth of the state's component"),
        trustworthy(torch.stack(responses).log(), "growth of a carried direction"),
        trustworthy(torch.cat([start, factor.log().cumsum(dim=0)]), "predicted growth"),
        trustworthy(torch.cat([start, S[:, : U.shape[-1]].log1p().cumsum(dim=0)]), "predicted growth"),
    )


def randomised(J: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Replace every block's singular vectors by random ones, and keep its singular values: $Q_l J_l R_l$."""
    (J,) = widened(J)
    d = J.shape[-1]
    rotations = (random_frame(d, d, generator, J.dtype).to(J) for _ in range(2 * len(J)))
    return torch.stack([next(rotations) @ matrix @ next(rotations) for matrix in J])


def random_steps(S: Tensor, start: Tensor, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Propagate vectors through blocks with random singular vectors, without forming a matrix."""
    # A vector $y$ is rotated by $V_l^\top$ into a uniform direction $g$ of its own length, stretched to $S_l\,g$ and
    # rotated by $U_l$ into another uniform direction: $y + \lVert S_l\,g \rVert\,h$ has exactly the distribution of
    # $(I + U_l S_l V_l^\top)\,y$ with uniform, independent $U_l$ and $V_l$.
    S, start = widened(S, start)
    y = start.expand(n_samples, S.shape[-1])
    states = [y]
    for spectrum in S:
        g, h = (normalize(torch.randn(n_samples, len(spectrum), generator=generator), eps=0).to(y) for _ in range(2))
        stretch = torch.linalg.vector_norm(spectrum * g, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
        y = y + stretch[:, None] * h
        states.append(y)
    return torch.stack(states, dim=1)


def _step(rows: Tensor, matrix: Tensor) -> Tensor:
    """Apply I + J to every row."""
    return rows + rows @ matrix.mT


def _checked(J: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    if J.ndim != 3 or x.ndim != 2 or J.shape != (len(x) - 1, x.shape[-1], x.shape[-1]) or not len(J):
        raise ParameterError(
            f"J has shape {tuple(J.shape)} and x {tuple(x.shape)}; expected Jacobians (L, d, d) and states (L+1, d)"
        )
    return widened(J, x)
