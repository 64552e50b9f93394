r"""Distance of two matrices from sharing their singular vectors, from a few products with random vectors.

**Definition.** Real square matrices have a singular value decomposition in common, $A = U S_A V^\top$ and
$B = U S_B V^\top$ with orthogonal $U$, $V$ and diagonal (perhaps signed) $S_A$, $S_B$, if and only if
$N = A B^\top$ and $M = A^\top B$ are both symmetric (Eckart and Young, 1939); for Jacobians of two blocks this is
coupling, at every K. The distance of a matrix from symmetry is

$$c(N) = \frac{\lVert N - N^\top \rVert_F^2}{4 \lVert N \rVert_F^2}
       = \frac12 \Bigl( 1 - \frac{\mathrm{tr}(N N)}{\lVert N \rVert_F^2} \Bigr) \in [0, 1],$$

0 for a symmetric matrix, 1 for an antisymmetric one, and one half on average where the bases are unrelated,
because $\mathrm{tr}(N N)$ is then as often positive as negative.

**Why vectors suffice.** For independent vectors $y$, $z$ of independent standard normal entries,
$\mathbb E\,(y^\top K z)^2 = \lVert K \rVert_F^2$ for any matrix $K$, and no product of $A$ with $B$ is ever formed:
$y^\top A B^\top z = (A^\top y)^\top (B^\top z)$ and $y^\top A^\top B z = (A y)^\top (B z)$. With p probes all
ordered pairs of them are used, so that p products with each matrix give $p (p - 1)$ samples.
"""

from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import divided, widened


def asymmetry_terms(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return unbiased estimates of the numerator and denominator of $c$, from products with the same probes."""
    # With $G_{ij} = a_i^\top b_j$, that is $z_i^\top N z_j$ for $a_i = A^\top z_i$ and $b_j = B^\top z_j$, they are
    # the means of $\tfrac14 (G_{ij} - G_{ji})^2$ and of $G_{ij}^2$ over $i \ne j$; their expectations over standard
    # normal probes are $\tfrac14 \lVert N - N^\top \rVert_F^2$ and $\lVert N \rVert_F^2$, exactly.
    a, b = widened(a, b)
    if a.shape != b.shape or a.ndim < 2 or a.shape[-2] < 2:
        raise ParameterError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected the same (..., p, d) with p at least 2"
        )
    G = a @ b.mT
    p = G.shape[-1]
    count = p * (p - 1)
    numerator = (G - G.mT).square().sum(dim=(-2, -1)) / (4 * count)
    squares = G.square()
    denominator = (squares.sum(dim=(-2, -1)) - squares.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / count
    return numerator, denominator


def asymmetry(a: Tensor, b: Tensor) -> Tensor:
    """Estimate $c$ of pairs of matrices: the ratio of the estimates, each summed over the samples."""
    # Because $(x - y)^2 \le 2 x^2 + 2 y^2$, the estimate lies in [0, 1] like $c$ itself, for any probes. As a ratio of
    # unbiased estimates it is itself unbiased only in the limit of many probes or samples.
    numerator, denominator = asymmetry_terms(a, b)
    return divided(numerator.sum(), denominator.sum(), "mean square of the products")
