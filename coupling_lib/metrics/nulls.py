r"""Values of each variant without any coupling.

The null hypothesis: both blocks keep their singular values, but all singular bases $U_1, V_1, U_2, V_2$ are
independent and uniformly (Haar) distributed. Raw values mean little without it, because several variants depend on
the width $d$ and on $K$ alone. Measured values are means over pairs, so they are compared with the *mean* of a variant
under the null, `coupling_lib.metrics.expected_null`; which uses the exact mean square, derived here. Each entry of
`coupling_lib.metrics.variants.VARIANTS` refers to its own function of this module, or none.

**Derivation.** With $x = V_1^\top v$ and $y = U_1^\top u$ independent and uniform on the sphere, an entry of the
coupling matrix is $a = u^\top J_1 v = \sum_i \sigma_i y_i x_i$. The signs are symmetric and
$\mathbb E\, x_i^2 = 1/d$, so

$$\mathbb E\, a = 0, \qquad
  \mathbb E\, a^2 = \sum_i \sigma_i^2 / d^2 = \lVert J_1 \rVert_F^2 / d^2 \quad \text{(exact)},$$

and by linearity, exactly, for the squares of the signed variants

$$\mathbb E \lVert A \rVert_F^2 = K^2 \frac{\lVert J_1 \rVert_F^2}{d^2}, \quad
  \mathbb E \lVert A - \mathrm{Diag} A \rVert_F^2 = K (K-1) \frac{\lVert J_1 \rVert_F^2}{d^2}, \quad
  \mathbb E\, m_K^2 = 1 + \frac{K^2 \lVert J_1 \rVert_F^2}{d^2 \lVert s_{1,K} \rVert_2^2}.$$

Absolute values add to $\lVert A - S_1 \rVert_F^2$ the cross term $-2\, \mathbb E|a| \sum_{i \le K} \sigma_i$.
Given $x$, $a$ is the product of $y$ with a vector of length $\lVert \sigma \circ x \rVert_2$, so
$\mathbb E|a| = e_d\, \mathbb E \lVert \sigma \circ x \rVert_2$ with
$e_d = \mathbb E |y_1| = \Gamma(\tfrac d2) / (\sqrt\pi\, \Gamma(\tfrac{d+1}2))$. A Gaussian vector has a length that is
independent of its direction, so the mean length is that of $\sigma \circ g$ over that of $g$, and the mean root of a
weighted sum of squares of Gaussians is one integral (`mean_absolute_entry`; exact for any spectrum):

$$\mathbb E \Big(\sum_i \sigma_i^2 g_i^2\Big)^{1/2}
  = \frac1{2\sqrt\pi} \int_0^\infty \Big(1 - \prod_i (1 + 2 t \sigma_i^2)^{-1/2}\Big)\, t^{-3/2}\, dt.$$

For a flat spectrum the length is 1, which gives the rules of thumb (the root of the mean square, accurate where
$d$ is large)

$$\mathbb E\, m^2 = 1 + K/d - 2 e_d \approx 1 + K/d - 1.6/\sqrt d \qquad \text{(exact with } e_d).$$

A decaying spectrum is no small correction to it: $\lVert J_1 \rVert_F^2 / \lVert s_{1,K} \rVert^2$ falls from $d/K$
towards 1, and $\lVert s_{1,K} \rVert_1 / \lVert s_{1,K} \rVert_2$, by which the `trace` forms are smaller, from
$\sqrt K$ towards 1.

**The normalised mis-coupling.** Here $K$ decides, and spectrum and width hardly matter. With $U_2, V_2$ uniform,
$A$ has the distribution of $O_1 \Lambda O_2$, with $\Lambda$ its singular values and $O_1, O_2$ independent uniform
orthogonal matrices. So its entries can be exchanged, each carries the share $1/K^2$ of $\lVert A \rVert_F^2$ in the
mean, and the diagonal's share $D = \sum_i a_{ii}^2 / \lVert A \rVert_F^2$ and $\tilde m^2 = 1 - D$ have

$$\mathbb E\, D = 1/K, \qquad \mathbb E\, \tilde m^2 = 1 - 1/K \qquad \text{(exact for every spectrum and width)}.$$

Given $\Lambda$, $\mathbb E\, D^2$ is a polynomial of degree four in it that no rotation changes, over
$\lVert A \rVert_F^4$. There are two such polynomials, $(\mathrm{tr} A^\top A)^2$ and $\mathrm{tr} (A^\top A)^2$,
so it is linear in the *purity* $p = \mathrm{tr} (A^\top A)^2 / (\mathrm{tr} A^\top A)^2$, which lies between $1/K$
(all singular values of A equal) and 1 (a single one). Two cases fix the line (`diagonal_share_variance`):

- rank one, $p = 1$: $a_{ij} = x_i y_j$ with unit vectors, whose coordinates have $\mathbb E\, x_i^4 = 3 / K(K+2)$ and
  $\mathbb E\, x_i^2 x_j^2 = 1 / K(K+2)$, so $\mathbb E\, D^2 = (K + 8) / K (K+2)^2$;
- independent Gaussian entries (flat spectrum, $K \ll d$): $D$ is Beta-distributed with parameters $K/2$ and
  $K(K-1)/2$, so $\mathbb E\, D^2 = (K+2) / K (K^2+2)$, at a mean purity of $(2K+1) / (K^2+2)$.

The mean of $\tilde m$ lies below its root mean square, by about $\mathrm{Var} D / 8 (1 - 1/K)^{3/2}$. In the Gaussian
case it is exactly $\Gamma(a + \tfrac12)\, \Gamma(n) / \Gamma(a)\, \Gamma(n + \tfrac12)$ with $a = K(K-1)/2$ and
$n = K^2/2$ (`gaussian_miscoupling`). At $K = 10$ this is a coupling $1 - \tilde m$ of 0.0516 where the root mean square
gives 0.0513; a Jacobian of rank one, the other extreme, has 0.0517
(`coupling_lib.measures.nulls.null_by_spectrum`).
"""

import math

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import divided, trustworthy, widened

DRAWS = 3000
"""Number of random draws of a null."""


def filled_spectrum(S: Tensor, d: int, frobenius: Tensor) -> Tensor:
    r"""Extend the top singular values to full length by a flat tail that keeps $\lVert J \rVert_F$."""
    # The second moments of the null depend on the spectrum beyond its head only through $\lVert J \rVert_F$, not
    # through the shape of the tail.
    S, frobenius = widened(S, torch.as_tensor(frobenius, device=S.device))
    rest = frobenius**2 - S.square().sum(dim=-1)
    r = S.shape[-1]
    # Rounding may make the rest slightly negative when S is already the whole spectrum.
    slack = 1e-5 * frobenius**2
    tail = (rest.clamp(min=0) / max(1, d - r)).sqrt()
    if r > d or (rest < -slack).any() or (tail > S[..., -1] + slack.sqrt()).any() or (r == d and (rest > slack).any()):
        raise ParameterError(
            f"no spectrum of width {d!r} has these {r} top singular values and that Frobenius norm; "
            "expected the norm of the same Jacobian"
        )
    return torch.cat([S, tail.unsqueeze(-1).expand(*S.shape[:-1], d - r)], dim=-1)


def raw_square(S: Tensor, d: int, k: int) -> Tensor:
    r"""Return the mean square of $m$, the off-diagonal norm: exact for every spectrum."""
    return k * (k - 1) * S.square().sum(dim=-1) / d**2


def normalised_square(S: Tensor, d: int, k: int) -> Tensor:
    r"""Return the mean square of $\tilde m$: $1 - 1/K$, exact for every spectrum and width."""
    return torch.full_like(S[..., 0], 1 - 1 / k)


def mismatch_square(
    S: Tensor, d: int, k: int, *, absolute: bool = True, p: float = 2, cut: bool = False, diagonal: bool = False
) -> Tensor:
    r"""Return the mean square of $\lVert A - S_{1,K} \rVert_F / \lVert s_{1,K} \rVert_p$: exact for every spectrum."""
    # `cut`: of the rank-K part of J_1 alone. `diagonal`: only the diagonal of A enters.
    top = S[..., :k]
    spectrum = top if cut else S
    square = (k if diagonal else k**2) * spectrum.square().sum(dim=-1) / d**2 + top.square().sum(dim=-1)
    if absolute:
        square = square - 2 * mean_absolute_entry(spectrum, d).to(top) * top.sum(dim=-1)
    return divided(square, torch.linalg.vector_norm(top, ord=p, dim=-1) ** 2, "norm of the singular values")


def bases_square(S: Tensor, d: int, k: int, *, products: int = 1) -> Tensor:
    r"""Return the mean square of $\lVert |X^\top Y| - I \rVert_F$ for two frames, or a product of two such: exact."""
    # The product U_2' U_1 V_1' V_2 is the coupling matrix of K singular values that are all 1.
    size = mean_absolute_coordinate(d) if products == 1 else float(mean_absolute_entry(S.new_ones(k), d))
    return torch.full_like(S[..., 0], k**2 * (k / d) ** (products - 1) / d + k - 2 * k * size)


def diagonal_share_variance(k: int, purity: float) -> float:
    r"""Return the variance of the diagonal's share $D = 1 - \tilde m^2$ without coupling (derived above)."""
    if k == 1:
        return 0.0
    gaussian, middle = (k + 2) / (k * (k**2 + 2)), (2 * k + 1) / (k**2 + 2)
    single = (k + 8) / (k * (k + 2) ** 2)
    return single + (gaussian - single) * (1 - purity) / (1 - middle) - 1 / k**2


def gaussian_miscoupling(k: int) -> float:
    r"""Return the mean $\tilde m$ of independent Gaussian entries: no coupling, flat spectrum, $K \ll d$."""
    if k == 1:
        return 0.0
    a, n = k * (k - 1) / 2, k**2 / 2
    return math.exp(math.lgamma(a + 0.5) + math.lgamma(n) - math.lgamma(a) - math.lgamma(n + 0.5))


def mean_absolute_coordinate(d: int) -> float:
    """Return the mean absolute coordinate of a uniform unit vector of width d."""
    # It is $e_d \approx \sqrt{2 / \pi d}$ of the derivation, and also the mean $|u^\top v|$ of unrelated unit vectors.
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


def mean_absolute_entry(S: Tensor, d: int) -> Tensor:
    r"""Return the mean absolute entry $\mathbb E |u^\top J v|$ for random unit vectors u, v, for any spectrum."""
    # The integral of the derivation is a trapezoidal sum over $\ln t$, which converges geometrically.
    S = S.double()
    energy = S.square().sum(dim=-1, keepdim=True)
    shares = (S.square() / energy).unsqueeze(-2)
    # The integrand falls like exp(-|ln t| / 2) on both sides: beyond 80 nothing is left in double precision, and with
    # steps of 1 the sum is right to 1e-8.
    log_t = torch.arange(-80, 81, dtype=torch.float64, device=S.device)
    survival = -torch.expm1(-0.5 * torch.log1p(2 * log_t.exp().unsqueeze(-1) * shares).sum(dim=-1))
    mean_root = (survival * (-log_t / 2).exp()).sum(dim=-1) / (2 * math.sqrt(math.pi))
    gaussian_length = math.sqrt(2 / math.pi) / mean_absolute_coordinate(d)
    return mean_absolute_coordinate(d) * mean_root * energy.squeeze(-1).sqrt() / gaussian_length


def relative_to_null(value: Tensor, null: Tensor) -> Tensor:
    """Return a value's share of the distance from no coupling to perfect coupling."""
    # Every variant is 0 at perfect coupling.
    value, null = widened(value, torch.as_tensor(null))
    return trustworthy(divided(value - null, -null, "distance from the null to perfect coupling"), "coupling")
