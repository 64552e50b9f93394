r"""What each variant measures when there is no coupling at all.

The null hypothesis: both blocks keep their singular values, but all singular bases $U_1, V_1, U_2, V_2$ are
independent and uniformly (Haar) distributed. A raw value means little without it, because several variants depend on
the width $d$ and on $K$ alone: the `trace`
normalisation of uncoupled Jacobians with flat spectra is about $1/\sqrt K$ at any width.

`random_orthogonal_null` simulates the null of every variant; `closed_form_null` is its root-mean-square value.

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
independent of its direction, so the length wanted is that of $\sigma \circ g$ over that of $g$, and the mean root of a
weighted sum of squares of Gaussians is one integral (`mean_absolute_entry`; exact for any spectrum):

$$\mathbb E \Big(\sum_i \sigma_i^2 g_i^2\Big)^{1/2}
  = \frac1{2\sqrt\pi} \int_0^\infty \Big(1 - \prod_i (1 + 2 t \sigma_i^2)^{-1/2}\Big)\, t^{-3/2}\, dt.$$

For a flat spectrum the length is 1, which gives the rules of thumb (the root of the mean square, accurate where
$d$ is large)

$$\mathbb E\, m^2 = 1 + K/d - 2 e_d \approx 1 + K/d - 1.6/\sqrt d \qquad \text{(exact with } e_d).$$

A spectrum that decays is no small correction to it: $\lVert J_1 \rVert_F^2 / \lVert s_{1,K} \rVert^2$ falls from $d/K$
towards 1, and $\lVert s_{1,K} \rVert_1 / \lVert s_{1,K} \rVert_2$, by which the `trace` forms are smaller, from
$\sqrt K$ towards 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import divided, trustworthy, widened
from coupling_lib.metrics.variants import PairProducts, checked_ks, chosen_variants, evaluated


def random_frame(
    d: int, k: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw orthonormal vectors of width d, uniformly distributed: the first k columns of a Haar orthogonal matrix.

    The Q factor of a Gaussian matrix is Haar only after the signs of R's diagonal are moved into it.

    Args:
        d: Width.
        k: Number of vectors, at most d.
        generator: Source of randomness; None takes torch's global one.
        dtype: Floating type of the result.

    Returns:
        (d, k).
    """
    Q, R = torch.linalg.qr(torch.randn(d, k, generator=generator, dtype=dtype))
    return Q * R.diagonal().sign()


def filled_spectrum(S: Tensor, d: int, frobenius: Tensor) -> Tensor:
    r"""Top singular values completed to full length by a flat tail that keeps $\lVert J \rVert_F$.

    The second moments of the null depend on the spectrum beyond its head through $\lVert J \rVert_F$ alone, so the
    shape of the tail does not matter to them.

    Args:
        S: Top singular values (..., r), strongest first.
        d: Width.
        frobenius: Frobenius norm of the full Jacobian (...).

    Returns:
        (..., d).

    Raises:
        ParameterError: If no tail below the smallest given value has that norm.
    """
    S, frobenius = widened(S, torch.as_tensor(frobenius, device=S.device))
    rest = frobenius**2 - S.square().sum(dim=-1)
    r = S.shape[-1]
    # Rounding may leave a slightly negative rest when S is already the whole spectrum.
    slack = 1e-5 * frobenius**2
    tail = (rest.clamp(min=0) / max(1, d - r)).sqrt()
    if r > d or (rest < -slack).any() or (tail > S[..., -1] + slack.sqrt()).any() or (r == d and (rest > slack).any()):
        raise ParameterError(
            f"no spectrum of width {d!r} has these {r} top singular values and that Frobenius norm; "
            "expected the norm of the same Jacobian"
        )
    return torch.cat([S, tail.unsqueeze(-1).expand(*S.shape[:-1], d - r)], dim=-1)


def random_orthogonal_null(
    S: Tensor,
    d: int,
    ks: Iterable[int],
    n_samples: int = 100,
    generator: torch.Generator | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    r"""Values of every variant for random orthogonal bases with the same singular values.

    One draw serves all spectra and all K: a global rotation makes $U_1$ the identity, $U_2$ and $V_2$ are random
    frames, and $V_1^\top [V_2\, U_2] = H R$ where $R$ comes from the QR decomposition of $[V_2\, U_2]$ and $H$ is
    another random frame. No matrix larger than (d, 2K) is formed. Each value has the exact null distribution of its
    variant; values of different blocks in one sample share their bases and so are not independent.

    Args:
        S: Singular values (L, r), the whole spectrum or its head, in descending order; what is not given counts
            as 0, which lowers the null (see `filled_spectrum`).
        d: Width, at least r.
        ks: Numbers of singular triplets, each at most r.
        n_samples: Number of draws.
        generator: Source of randomness; None takes torch's global one.
        names: Variants to compute; None computes all.

    Returns:
        For each name (n_samples, len(ks), L), one value per draw, K and block.

    Raises:
        ParameterError: If the shapes do not fit together.

    Example:
        >>> import torch
        >>> null = random_orthogonal_null(torch.ones(1, 64), 64, ks=[8], generator=torch.Generator().manual_seed(0))
        >>> bool((null["normalized_miscoupling"].mean() - (1 - 1 / 8) ** 0.5).abs() < 0.01)
        True
    """
    (S,) = widened(S)
    if S.ndim != 2 or S.shape[-1] > d or n_samples < 1:
        raise ParameterError(
            f"S has shape {tuple(S.shape)}, d is {d!r} and n_samples {n_samples!r}; expected S (L, r) with "
            "r at most d, and at least one sample"
        )
    r = S.shape[-1]
    ks = checked_ks(ks, available=r)
    variants = chosen_variants(names)
    samples = [evaluated(variants, _null_products(S, d, max(ks), generator), ks) for _ in range(n_samples)]
    return {v.name: torch.stack([sample[v.name][..., 0] for sample in samples]) for v in variants}


def _null_products(S: Tensor, d: int, k: int, generator: torch.Generator | None) -> PairProducts:
    """Products of blocks with spectra S (L, r) against one random block, as (L, 1, k, k)."""
    frames = [random_frame(d, k, generator, S.dtype).to(S.device) for _ in range(2)]
    V2, U2 = frames
    R = torch.linalg.qr(torch.cat([V2, U2], dim=1)).R
    rotated = random_frame(d, len(R), generator, S.dtype).to(S.device) @ R  # V_1^T [V_2 U_2], V_1 uniform
    V1_V2, V1_U2 = rotated[:, :k], rotated[:, k:]
    r, n_blocks = S.shape[-1], len(S)

    def shared(matrix: Tensor) -> Tensor:
        return matrix.expand(n_blocks, 1, k, k)

    return PairProducts(
        s=S[:, None, :k],
        ujv=((U2[:r].T * S.unsqueeze(-2)) @ V1_V2[:r]).unsqueeze(1),
        vju=((V2[:r].T * S.unsqueeze(-2)) @ V1_U2[:r]).unsqueeze(1),
        uu=shared(U2[:k].T),
        vv=shared(V1_V2[:k]),
        uv=shared(V1_U2[:k].T),
        vu=shared(V2[:k].T),
    )


def closed_form_null(name: str, S: Tensor, d: int, k: int) -> Tensor:
    r"""Root-mean-square value of a variant with no coupling, in closed form (derivation at the top of this module).

    Exact for all mismatches, the unnormalised mis-coupling and the `basis_*` variants, whatever the spectrum. The two
    ratios are approximate: `normalized_miscoupling` is about $\sqrt{1 - 1/K}$ and `old_off_over_diagonal` about
    $1 + (\pi/2 - 1)/K$, as if the entries of the coupling matrix were independent and Gaussian. The width of the
    null's distribution comes from the simulation.

    Args:
        name: Variant, a key of `VARIANTS`.
        S: Singular values (..., r); what is not given counts as 0. A flat spectrum is `torch.ones(d)`.
        d: Width.
        k: Number of singular triplets.

    Returns:
        (...).

    Example:
        >>> import torch
        >>> closed_form_null("released_norm", torch.ones(768), d=768, k=76)
        tensor(1.0205)
    """
    (variant,) = chosen_variants([name])
    (S,) = widened(S)
    checked_ks([k], available=S.shape[-1])
    top = S[..., :k]
    energy = S.square().sum(dim=-1) / d**2  # mean square of one entry of the coupling matrix
    if name == "miscoupling":
        return (k * (k - 1) * energy).sqrt()
    if name == "normalized_miscoupling":
        return torch.full_like(energy, math.sqrt(1 - 1 / k))
    if name == "old_off_over_diagonal":
        return torch.full_like(energy, 1 + (math.pi / 2 - 1) / k)
    if name.startswith("basis_"):
        return torch.full_like(energy, math.sqrt(k**2 / d + k - 2 * k * mean_absolute_coordinate(d)))
    if name == "released_diag":
        ones = torch.ones_like(top)
        return (k**2 * k / d**2 + k - 2 * k * mean_absolute_entry(ones, d).to(top)).sqrt()
    # What is left are mismatches: a matrix with entries of mean square `energy` against the top singular values.
    spectrum = top if name.endswith("_k") else S
    entries = k if name == "old_norm_diagonal" else k**2
    square = entries * spectrum.square().sum(dim=-1) / d**2 + top.square().sum(dim=-1)
    if variant.absolute:
        square = square - 2 * mean_absolute_entry(spectrum, d).to(top) * top.sum(dim=-1)
    normaliser = top.sum(dim=-1) if "trace" in name else torch.linalg.vector_norm(top, dim=-1)
    return divided(square.sqrt(), normaliser, "norm of the singular values")


def mean_absolute_coordinate(d: int) -> float:
    r"""Mean absolute coordinate of a uniform unit vector of width d.

    It is $e_d = \Gamma(\tfrac d2) / (\sqrt\pi\, \Gamma(\tfrac{d+1}2)) \approx \sqrt{2 / \pi d}$, and also the
    mean $|u^\top v|$ of two unrelated unit vectors.

    Args:
        d: Width.

    Returns:
        A number between 0 and 1.

    Example:
        >>> round(mean_absolute_coordinate(2), 4)  # 2 / pi on the circle
        0.6366
    """
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


def mean_absolute_entry(S: Tensor, d: int) -> Tensor:
    r"""Mean absolute entry $\mathbb E |u^\top J v|$ for unit vectors u, v drawn at random, exact for any spectrum.

    It is $e_d\, \mathbb E \lVert \sigma \circ x \rVert_2$ (derivation at the top of this module). The integral in it
    is a trapezoidal sum over $\ln t$, which converges geometrically for such an integrand.

    Args:
        S: Singular values (..., r), not all zero; what is not given counts as 0.
        d: Width.

    Returns:
        (...).

    Example:
        >>> import torch
        >>> f"{mean_absolute_entry(torch.ones(96), d=96):.4f} {mean_absolute_coordinate(96):.4f}"
        '0.0816 0.0816'
    """
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
    r"""Share of the way from no coupling to perfect coupling.

    $$\frac{\text{null} - \text{value}}{\text{null}}$$

    Every variant is 0 at perfect coupling.

    Args:
        value: Measured values of a variant, any shape.
        null: Their values with no coupling, broadcast against them.

    Returns:
        0 at the null, 1 at perfect coupling, negative where the value is worse than the null.

    Example:
        >>> import torch
        >>> relative_to_null(torch.tensor([1.0, 0.25, 0.0]), null=torch.tensor(1.0))
        tensor([-0.0000, 0.7500, 1.0000])
    """
    value, null = widened(value, torch.as_tensor(null))
    return trustworthy(divided(value - null, -null, "distance from the null to perfect coupling"), "coupling")
