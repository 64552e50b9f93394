r"""The shape of a token's path through the residual stream: how straight, how evenly and how exponentially spaced.

A trajectory is the sequence of states $x^0, x^1, \dots, x^L$ of one token: $x^0$ enters the first block and $x^l$
leaves block $l$. Every function takes `x` (L+1, d) or (L+1, n, d), depth first and width last, and returns one value
per token.

The paper's formulas leave open which states form a trajectory, and its text does not always describe its formulas.
`STATES` names the choices of states, `FORMULAS` the choices of formula, and `score_all` evaluates every combination.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from coupling_lib.errors import ParameterError, UntrustworthyResultError, check_whole, is_whole, shown
from coupling_lib.metrics.coupling import check_real, divided, trustworthy, widened


def norms(x: Tensor) -> Tensor:
    r"""Compute the norm of the state at each depth, $\lVert x^l \rVert_2$."""
    return trustworthy(torch.linalg.vector_norm(_states(x), dim=-1), "norm of the states")


def step_lengths(x: Tensor) -> Tensor:
    r"""Compute the length of each block's step, $\lVert x^l - x^{l-1} \rVert_2$."""
    return trustworthy(torch.linalg.vector_norm(_states(x).diff(dim=0), dim=-1), "length of the steps")


def line_shape_score(x: Tensor) -> Tensor:
    r"""Compute the line-shape score, a distance from a straight line (paper, equations 15 and 16; Gai and Zhang, 2021).

    Each step is normalised to length 1 and the steps are summed:

    $$\mathrm{LSS} = L \,\Big/\, \Bigl\lVert \sum_{l=1}^{L} \frac{\delta^l}{\lVert \delta^l \rVert_2} \Bigr\rVert_2,
      \qquad \delta^l = x^l - x^{l-1}.$$

    It is 1 for a straight line, about $\sqrt L$ for steps in unrelated directions, and larger for a path that turns
    back. $L$ is the number of steps in `x`, so that a part of a path is measured on the same scale.

    Args:
        x: States (L+1, d) or (L+1, n, d).

    Returns:
        A scalar, or one value per token (n,).

    Raises:
        UntrustworthyResultError: If a step has no direction (two equal states in a row) or the directions cancel.

    Example:
        >>> line_shape_score(torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]]))  # straight on
        tensor(1.)
        >>> line_shape_score(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 9.0]]))  # one right angle
        tensor(1.4142)
    """
    x = _states(x)
    steps, lengths = x.diff(dim=0), step_lengths(x)
    still = (lengths == 0).nonzero()
    if len(still):
        raise UntrustworthyResultError(
            f"step {int(still[0, 0]) + 1} of a trajectory has length 0, so it has no direction; "
            "a block that adds nothing cannot be scored"
        )
    travelled = torch.linalg.vector_norm((steps / lengths.unsqueeze(-1)).sum(dim=0), dim=-1)
    n_steps = len(steps)
    # Directions that cancel exactly leave rounding errors, about one unit in the last place per step.
    if (travelled <= n_steps * torch.finfo(travelled.dtype).eps).any():
        raise UntrustworthyResultError(
            f"the {n_steps} step directions of a trajectory cancel, so its line-shape score is infinite; "
            "expected states that move somewhere"
        )
    return trustworthy(n_steps / travelled, "line-shape score")


def expodistance(x: Tensor, correction: int = 0) -> Tensor:
    r"""Compute the expodistance, the deviation of norm growth from exponential (paper, equations 17 and 18).

    $$\mathrm{ED} = \frac{\mathrm{Var}_l\, \alpha^l}{(\mathrm{Mean}_l\, \alpha^l)^2}, \qquad
      \alpha^l = \ln \frac{\lVert x^l \rVert_2}{\lVert x^{l-1} \rVert_2}, \quad l = 1, \dots, L.$$

    It is 0 for exact exponential growth, and grows without bound as the mean growth approaches 0. It is the *square* of
    a coefficient of variation, with the population variance: the $L$ steps are the whole path and no sample of it.

    Args:
        x: States (L+1, d) or (L+1, n, d).
        correction: 0 for the population variance, 1 for the sample variance, which is larger by $L / (L - 1)$.

    Returns:
        A scalar, or one value per token (n,).

    Raises:
        UntrustworthyResultError: If a state is zero, the norm ends where it began (mean growth 0), or a sample
            variance is asked for of a single step.

    Example:
        >>> expodistance(torch.tensor([[1.0], [2.0], [4.0], [8.0]]))  # doubles at each block
        tensor(0.)
        >>> expodistance(torch.tensor([[1.0], [1.0], [4.0]]))  # stands, then grows fourfold
        tensor(1.)
    """
    lengths = norms(x)
    if (lengths == 0).any():
        raise UntrustworthyResultError("a state of the trajectory is all zero, so its growth has no logarithm")
    growth = _spread(lengths.log().diff(dim=0), correction)
    mean = growth.mean(dim=0)
    # A path whose norm returns to its start telescopes to 0 up to rounding in the two logarithms.
    rounding = 4 * torch.finfo(growth.dtype).eps * lengths.log().abs().amax(dim=0).clamp(min=1)
    if (mean.abs() * len(growth) <= rounding).any():
        raise UntrustworthyResultError(
            "the norm of a trajectory ends where it began, so its mean growth is 0 and the expodistance is infinite"
        )
    return divided(growth.var(dim=0, correction=correction), mean**2, "squared mean growth")


def equidistance(x: Tensor, correction: int = 0) -> Tensor:
    r"""Compute the unevenness of the spacing: coefficient of variation of the step lengths over depth.

    $$\mathrm{CoV} = \frac{\sqrt{\mathrm{Var}_l\, \delta^l}}{\mathrm{Mean}_l\, \delta^l}, \qquad
      \delta^l = \lVert x^l - x^{l-1} \rVert_2,$$

    with the population variance. It is 0 when all steps are equally long. The paper names it without a formula.

    Args:
        x: States (L+1, d) or (L+1, n, d).
        correction: 0 for the population variance, 1 for the sample variance, which is larger by $L / (L - 1)$.

    Returns:
        A scalar, or one value per token (n,).

    Raises:
        UntrustworthyResultError: If no step has any length, or a sample variance is asked for of a single step.

    Example:
        >>> equidistance(torch.tensor([[0.0], [1.0], [4.0]]))  # steps of 1 and 3
        tensor(0.5000)
    """
    lengths = _spread(step_lengths(x), correction)
    return divided(lengths.std(dim=0, correction=correction), lengths.mean(dim=0), "mean step length")


def window_width(n_blocks: int, wanted: int = 0) -> int:
    """Return the number of blocks in a window of a trajectory."""
    # The paper takes 11 blocks of models with 32 and more. A shallower model gets the largest odd number that is at
    # most half of its depth, so that several windows fit.
    if is_whole(wanted) and wanted == 0:
        half = (n_blocks + 1) // 2
        return min(n_blocks, max(3, min(11, half - (half + 1) % 2)))
    if not is_whole(wanted) or wanted < 3 or wanted % 2 == 0 or wanted > n_blocks:
        raise ParameterError(
            f"window is {shown(wanted)}; expected an odd number of blocks from 3 to {n_blocks} (the depth), "
            "or 0 to choose by depth"
        )
    return int(wanted)


def block_windows(x: Tensor, width: int) -> Tensor:
    """Return every run of neighbouring blocks of a trajectory, each to be scored on its own."""
    # Window number s holds the blocks s to s + width - 1, from 0, and the states at their ends.
    return x.unfold(0, width + 1, 1).movedim(-1, 1)


def logit_entropy(logits: Tensor) -> Tensor:
    r"""Compute the entropy of the next-token distribution, $-\sum_w p_w \ln p_w$ with $p$ the softmax of the logits."""
    (logits,) = widened(logits)
    return trustworthy(torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1), "entropy of the logits")


def _states(x: Tensor) -> Tensor:
    check_real("the trajectory", x, 2, 3)
    if len(x) < 2:
        raise ParameterError(
            f"the trajectory has shape {tuple(x.shape)!r}; expected (L+1, d) or (L+1, n, d) with at least two depths"
        )
    (x,) = widened(x)
    return x


def _spread(values: Tensor, correction: int) -> Tensor:
    check_whole("correction", correction, 0, 1)
    if len(values) <= correction:
        raise UntrustworthyResultError(f"a path of {len(values)} step has no sample variance; take the population's")
    return values


class PrincipalPaths(NamedTuple):
    """Trajectories in the principal components of their last states."""

    coordinates: Tensor  #: (L+1, n, components): position of every token at every depth.
    share: Tensor  #: (components,): part of the variance of the last states along each component, from 0 to 1.


def principal_paths(x: Tensor, components: int = 2) -> PrincipalPaths:
    """Project trajectories onto the principal components of their last states."""
    # The components are fitted on $X^L$ alone, the n states that leave the last block, and all states $x_i^l$ are
    # projected onto them after the mean of $X^L$ is subtracted. A component has no sign; it is chosen so that the
    # last token ends on the positive side.
    if x.ndim != 3 or not components < x.shape[1] or components > x.shape[2]:
        raise ParameterError(
            f"the states have shape {tuple(x.shape)!r}; {components} principal components need (L+1, n, d) with "
            f"more than {components} tokens and at least {components} dimensions"
        )
    states = trustworthy(x, "states of the trajectories").detach().double().cpu().numpy()
    fitted = PCA(n_components=components, svd_solver="full").fit(states[-1])
    coordinates = fitted.transform(states.reshape(-1, states.shape[-1])).reshape(*states.shape[:2], components)
    # A token that ends at the mean determines no sign.
    sign = np.where(coordinates[-1, -1] < 0, -1.0, 1.0)
    return PrincipalPaths(torch.from_numpy(coordinates * sign), torch.from_numpy(fitted.explained_variance_ratio_))


STATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "default": lambda x, normed: x,
    "without embedding": lambda x, normed: x[1:],
    "normed end": lambda x, normed: torch.cat([x[:-1], normed[None]]),
    "both": lambda x, normed: torch.cat([x[1:-1], normed[None]]),
}
r"""Choices of the states of a trajectory, from $x^0 .. x^L$ and the last state after the final norm, with which Hugging
Face's `hidden_states`, and so the released code, end."""

FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "line_shape_score": line_shape_score,
    "expodistance": expodistance,
    "expodistance_sample": partial(expodistance, correction=1),
    "expodistance_root": lambda x: expodistance(x).sqrt(),
    "equidistance": equidistance,
    "equidistance_sample": partial(equidistance, correction=1),
    "equidistance_squared": lambda x: equidistance(x) ** 2,
}
r"""Formulas by name: `expodistance_root` is the coefficient of variation that the paper's text calls expodistance;
`_sample` takes the sample variance."""


def score_or_nan(score: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the score of a trajectory; NaN where it does not exist."""
    # A part of a trajectory may have no net growth, or too few steps for a sample variance. Such a part is left out
    # of medians; one among thousands must not end a measurement. States that contain NaN are refused.
    if len(x) < 2:
        return float("nan")
    norms(x)
    try:
        return float(score(x))
    except UntrustworthyResultError:
        return float("nan")


def score_all(x: Tensor, normed: Tensor | None) -> Tensor:
    """Return the scores of one trajectory by every formula on every choice of states."""
    rows = []
    for name, choose in STATES.items():
        known = normed is not None or name in ("default", "without embedding")
        path = choose(x, x[-1] if normed is None else normed)
        rows.append([score_or_nan(score, path) if known else float("nan") for score in FORMULAS.values()])
    return torch.tensor(rows, dtype=torch.float64)
