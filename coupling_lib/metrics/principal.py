r"""Token trajectories in the plane of their last states: principal components, by scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.decomposition import PCA
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import trustworthy


class PrincipalPaths(NamedTuple):
    """Trajectories seen in the principal components of their last states."""

    coordinates: Tensor
    """(L+1, n, components): where every token is at every depth."""
    share: Tensor
    """(components,): part of the variance of the last states along each component, from 0 to 1."""


def principal_paths(x: Tensor, components: int = 2) -> PrincipalPaths:
    """Project trajectories onto the principal components of their last states."""
    # The components are fitted on $X^L$ alone, the n states that leave the last block, and all states $x_i^l$ are
    # projected onto them after the mean of $X^L$ is taken away. A component has no sign; it is chosen so that the
    # last token ends on the positive side.
    if x.ndim != 3 or not components < x.shape[1] or components > x.shape[2]:
        raise ParameterError(
            f"the states have shape {tuple(x.shape)!r}; {components} principal components need (L+1, n, d) with "
            f"more than {components} tokens and at least {components} dimensions"
        )
    states = trustworthy(x, "states of the trajectories").detach().double().cpu().numpy()
    fitted = PCA(n_components=components, svd_solver="full").fit(states[-1])
    coordinates = fitted.transform(states.reshape(-1, states.shape[-1])).reshape(*states.shape[:2], components)
    sign = torch.from_numpy(coordinates[-1, -1]).sign()
    # A token that ends at the mean gives no sign; any will do.
    sign = torch.where(sign == 0, torch.ones_like(sign), sign)
    return PrincipalPaths(torch.from_numpy(coordinates) * sign, torch.from_numpy(fitted.explained_variance_ratio_))
