r"""Every published reading of "coupling", each under its own name.

The paper's text, its project page, the released code, the pre-release code and an older version of it compute
different numbers from the same pair of Jacobians. `VARIANTS` lists them; none is blended with another, and every
figure names the one it shows. With $l$ the block whose Jacobian is measured and $l'$ the block whose singular vectors
are used, all of them are read off six small matrices:

$$U_{l'}^\top J_l V_{l'}, \quad V_{l'}^\top J_l U_{l'}, \quad
  U_{l'}^\top U_l, \quad V_l^\top V_{l'}, \quad U_{l'}^\top V_l, \quad V_{l'}^\top U_l,$$

each with the top $K$ vectors only. `measure_variants` forms each once, for all pairs of blocks and the largest $K$,
and takes its leading blocks for the smaller ones.

Every variant is a distance: 0 for perfect coupling. What the paper plots as *coupling* is one of `TRANSFORMS` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import divided, miscoupling, mismatch, overlap_all_pairs, project_all_pairs, widened

# Entries of the largest intermediate product: 32 MB in float32. Blocks are taken in groups that stay below it.
_MAX_ENTRIES = 2**23


@dataclass(frozen=True)
class PairProducts:
    """The small matrices that all variants are read off, for L1 Jacobians and the vectors of L2 blocks."""

    # A product that no requested variant needs is None. `top(k)` gives the same for a smaller number of vectors.

    s: Tensor
    r"""Top singular values of block $l$ (L1, 1, K): of the Jacobian, not of the vectors' block."""
    ujv: Tensor | None = None
    r"""$U_{l'}^\top J_l V_{l'}$ (L1, L2, K, K)."""
    vju: Tensor | None = None
    r"""$V_{l'}^\top J_l U_{l'}$ (L1, L2, K, K)."""
    uu: Tensor | None = None
    r"""$U_{l'}^\top U_l$ (L1, L2, K, K)."""
    vv: Tensor | None = None
    r"""$V_l^\top V_{l'}$ (L1, L2, K, K)."""
    uv: Tensor | None = None
    r"""$U_{l'}^\top V_l$ (L1, L2, K, K)."""
    vu: Tensor | None = None
    r"""$V_{l'}^\top U_l$ (L1, L2, K, K)."""

    def top(self, k: int) -> PairProducts:
        """Products of the k strongest vectors alone."""
        blocks = {name: getattr(self, name) for name in PRODUCTS}
        return PairProducts(
            s=self.s[..., :k], **{name: None if m is None else m[..., :k, :k] for name, m in blocks.items()}
        )


PRODUCTS = ("ujv", "vju", "uu", "vv", "uv", "vu")


@dataclass(frozen=True)
class Variant:
    """One reading of coupling, 0 when the two blocks are perfectly coupled."""

    name: str
    """Name in `VARIANTS`, in data sets and in captions."""
    formula: str
    """Definition in LaTeX; subscript 1 is the Jacobian's block, 2 the vectors' block, all cut to the top K."""
    source: str
    """Where it stands: "paper text", "project page", "released code", "pre-release code" or "old code"."""
    absolute: bool
    """Whether the entries' absolute values are taken; a signed variant sees the sign of the diagonal."""
    needs: tuple[str, ...]
    """Fields of `PairProducts` that it is read off."""
    function: Callable[[PairProducts], Tensor]
    """Products (L1, L2, K, K) to values (L1, L2); K is that of the products."""


def _rank_k(p: PairProducts) -> Tensor:
    return (p.uu * p.s.unsqueeze(-2)) @ p.vv


def _from_identity(M: Tensor) -> Tensor:
    return mismatch(M, torch.ones_like(M[..., 0]), absolute=True, norm=2) * M.shape[-1] ** 0.5


def _diagonal_only(p: PairProducts) -> Tensor:
    diagonal = p.ujv.diagonal(dim1=-2, dim2=-1).abs()
    distance = torch.linalg.vector_norm(diagonal - p.s, dim=-1)
    return divided(distance, torch.linalg.vector_norm(p.s, dim=-1), "norm of the singular values")


def _off_over_diagonal(p: PairProducts) -> Tensor:
    size = p.ujv.abs()
    k = size.shape[-1]
    if k == 1:
        raise ParameterError(
            "k is 1; old_off_over_diagonal needs off-diagonal entries: k of at least 2, or other names"
        )
    diagonal = size.diagonal(dim1=-2, dim2=-1)
    off_diagonal = size - torch.diag_embed(diagonal)
    return divided(off_diagonal.sum(dim=(-2, -1)) / (k * (k - 1)), diagonal.mean(dim=-1), "mean diagonal")


_TEXT, _PAGE, _RELEASE, _PRE, _OLD = "paper text", "project page", "released code", "pre-release code", "old code"
_A, _M_UJV, _M_VJU = r"U_2^\top J_1 V_2", r"|U_2^\top J_1 V_2|", r"|V_2^\top J_1 U_2|"
_M_RANK_K = r"|U_2^\top U_1 S_1 V_1^\top V_2|"


def _norm(matrix: str, p: int) -> str:
    return rf"\lVert {matrix} - S_1 \rVert_F \,/\, \lVert s_1 \rVert_{p}"


def _identity(matrix: str) -> str:
    return rf"\lVert |{matrix}| - I \rVert_F"


_TABLE = (
    Variant(
        "miscoupling", r"\lVert A - \mathrm{Diag} A \rVert_F,\; A = " + _A, _TEXT, False, ("ujv",),
        lambda p: miscoupling(p.ujv),
    ),
    Variant(
        "normalized_miscoupling", r"\lVert A - \mathrm{Diag} A \rVert_F \,/\, \lVert A \rVert_F", _TEXT, False,
        ("ujv",), lambda p: miscoupling(p.ujv, normalized=True),
    ),
    Variant("mismatch", _norm(_A, 2), _PAGE, False, ("ujv",), lambda p: mismatch(p.ujv, p.s)),
    Variant("mismatch_trace", _norm(_A, 1), _PAGE, False, ("ujv",), lambda p: mismatch(p.ujv, p.s, norm="trace")),
    Variant("released_norm", _norm(_M_UJV, 2), _RELEASE, True, ("ujv",), lambda p: mismatch(p.ujv, p.s, absolute=True)),
    Variant(
        "released_trace", _norm(_M_UJV, 1), _RELEASE, True, ("ujv",),
        lambda p: mismatch(p.ujv, p.s, absolute=True, norm="trace"),
    ),
    Variant(
        "released_norm_vju", _norm(_M_VJU, 2), _RELEASE, True, ("vju",), lambda p: mismatch(p.vju, p.s, absolute=True)
    ),
    Variant(
        "released_trace_vju", _norm(_M_VJU, 1), _RELEASE, True, ("vju",),
        lambda p: mismatch(p.vju, p.s, absolute=True, norm="trace"),
    ),
    Variant(
        "released_norm_k", _norm(_M_RANK_K, 2), _PRE, True, ("uu", "vv"),
        lambda p: mismatch(_rank_k(p), p.s, absolute=True),
    ),
    Variant(
        "released_trace_k", _norm(_M_RANK_K, 1), _PRE, True, ("uu", "vv"),
        lambda p: mismatch(_rank_k(p), p.s, absolute=True, norm="trace"),
    ),
    Variant(
        "released_diag", _identity(r"U_2^\top U_1 V_1^\top V_2"), _PRE, True, ("uu", "vv"),
        lambda p: _from_identity(p.uu @ p.vv),
    ),
    Variant(
        "old_norm_diagonal", r"\lVert\, |\mathrm{diag} A| - s_1 \rVert_2 \,/\, \lVert s_1 \rVert_2", _OLD, True,
        ("ujv",), _diagonal_only,
    ),
    Variant(
        "old_off_over_diagonal", r"\mathrm{mean}_{i \ne j} |a_{ij}| \,/\, \mathrm{mean}_i |a_{ii}|", _OLD, True,
        ("ujv",), _off_over_diagonal,
    ),
    Variant("basis_uu", _identity(r"U_2^\top U_1"), _OLD, True, ("uu",), lambda p: _from_identity(p.uu)),
    Variant("basis_vv", _identity(r"V_2^\top V_1"), _OLD, True, ("vv",), lambda p: _from_identity(p.vv)),
    Variant("basis_uv", _identity(r"U_2^\top V_1"), _OLD, True, ("uv",), lambda p: _from_identity(p.uv)),
    Variant("basis_vu", _identity(r"V_2^\top U_1"), _OLD, True, ("vu",), lambda p: _from_identity(p.vu)),
)  # fmt: skip

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _TABLE}
"""All variants by name, each 0 at perfect coupling: `vju`, `uv` and `vu` ones if left and right vectors agree, too."""

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda m: -m,
    "one_minus": lambda m: 1 - m,
    "one_minus_square": lambda m: 1 - m**2,
}
"""Ways to turn a distance $m$ into a coupling: $-m$ (text), $1 - m$ (figures, inferred), $1 - m^2$ (demo notebook)."""


def chosen_variants(names: Iterable[str] | None) -> list[Variant]:
    """Variants of the given names, in the order given."""
    names = list(VARIANTS) if names is None else names
    if isinstance(names, str):
        raise ParameterError(f"names is {names!r}; expected a list of names, for example [{names!r}]")
    names = list(names)
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise ParameterError(f"the variant {unknown[0]!r} is unknown; choose from {', '.join(VARIANTS)}")
    return [VARIANTS[name] for name in names]


def evaluated(variants: Iterable[Variant], products: PairProducts, ks: Sequence[int]) -> dict[str, Tensor]:
    """Values of some variants at several numbers of singular vectors."""
    tops = [products.top(k) for k in ks]
    return {variant.name: torch.stack([variant.function(top) for top in tops]) for variant in variants}


def checked_ks(ks: Iterable[int], available: int) -> list[int]:
    """Numbers of singular triplets as a list, once they are known to make sense."""
    ks = list(ks) if isinstance(ks, Iterable) else [ks]
    wrong = [k for k in ks if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= available]
    if wrong or not ks:
        raise ParameterError(
            f"ks is {ks!r}; expected whole numbers from 1 to {available}, the singular triplets at hand"
        )
    return ks


def measure_variants(
    J: Tensor | Sequence[Any],
    U: Tensor,
    S: Tensor,
    Vh: Tensor,
    ks: Iterable[int],
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    r"""Every variant for all pairs of blocks and several K, from shared products.

    Each Jacobian is applied once to all singular vectors side by side; each of the six products is formed
    once, for the largest $K$. Blocks are taken in groups so that no intermediate result exceeds 32 MB in float32.

    Args:
        J: Residual Jacobians (L, d, d), or a sequence of L operators that answer `J_l @ V`.
        U: Left singular vectors as columns (L, d, K).
        S: Singular values (L, at least the largest of `ks`), strongest first.
        Vh: Right singular vectors as rows (L, K, d).
        ks: Numbers of singular triplets, each at most K.
        names: Variants to compute, keys of `VARIANTS`; None computes all.

    Returns:
        For each name a tensor (len(ks), L, L); index [., l, l'] holds the Jacobian of block l against the
        vectors of block l', both counted from 0.

    Raises:
        ParameterError: If the shapes do not fit together.

    Example:
        >>> import torch
        >>> J = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> values = measure_variants(J, *torch.linalg.svd(J), ks=(2, 4), names=["normalized_miscoupling"])
        >>> values["normalized_miscoupling"].shape
        torch.Size([2, 3, 3])
    """
    J, U, S, Vh = widened(J, U, S, Vh)
    n_blocks = len(J)
    if U.ndim != 3 or Vh.ndim != 3 or S.ndim != 2 or {len(U), len(S), len(Vh)} != {n_blocks}:
        raise ParameterError(
            f"U, S, Vh have shapes {tuple(U.shape)}, {tuple(S.shape)}, {tuple(Vh.shape)} for {n_blocks} Jacobians; "
            "expected (L, d, K), (L, K), (L, K, d)"
        )
    ks = checked_ks(ks, available=min(U.shape[-1], S.shape[-1], Vh.shape[-2]))
    variants = chosen_variants(names)
    needed = {product for variant in variants for product in variant.needs}
    k, d = max(ks), U.shape[1]
    U, S, V = U[..., :k], S[..., :k], Vh[:, :k].mT
    group = max(1, _MAX_ENTRIES // (n_blocks * k * max(d, k)))
    parts = [
        evaluated(variants, _products(J[i : i + group], U, S, V, slice(i, i + group), needed), ks)
        for i in range(0, n_blocks, group)
    ]
    return {variant.name: torch.cat([part[variant.name] for part in parts], dim=1) for variant in variants}


def _products(
    J: Tensor | Sequence[Any], U: Tensor, S: Tensor, V: Tensor, rows: slice, needed: set[str]
) -> PairProducts:
    """The products of the Jacobians `J` of blocks `rows` with the vectors of all blocks, those needed only."""
    formulas: dict[str, Callable[[], Tensor]] = {
        "ujv": lambda: project_all_pairs(J, left=U, right=V),
        "vju": lambda: project_all_pairs(J, left=V, right=U),
        "uu": lambda: overlap_all_pairs(U, U[rows]),
        "vv": lambda: overlap_all_pairs(V, V[rows]).mT,
        "uv": lambda: overlap_all_pairs(U, V[rows]),
        "vu": lambda: overlap_all_pairs(V, U[rows]),
    }
    return PairProducts(s=S[rows, None], **{name: formulas[name]() for name in PRODUCTS if name in needed})


def locality(values: Tensor) -> Tensor:
    r"""Mean over all pairs of blocks at the same distance, $|l - l'| = \delta$.

    Args:
        values: One value per pair (..., L, L), coupling or mismatch.

    Returns:
        (..., L), entry $\delta$ for $\delta = 0, \dots, L - 1$ blocks apart; pairs in both orders are averaged.

    Raises:
        ParameterError: If `values` does not hold one value per pair.

    Example:
        >>> import torch
        >>> locality(torch.tensor([[1.0, 0.5], [0.3, 1.0]]))
        tensor([1.0000, 0.4000])
    """
    (values,) = widened(values)
    n_blocks = values.shape[-1]
    if values.ndim < 2 or values.shape[-2] != n_blocks:
        raise ParameterError(
            f"values have shape {tuple(values.shape)}; expected one value per pair of blocks, (..., L, L)"
        )
    index = torch.arange(n_blocks, device=values.device)
    distance = (index[:, None] - index).abs()
    return torch.stack([values[..., distance == delta].mean(dim=-1) for delta in range(n_blocks)], dim=-1)
