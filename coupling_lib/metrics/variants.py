r"""Every published variant of "coupling", each under its own name.

The paper's text, its project page, the released code, the pre-release code and an older version of it compute
different numbers from the same pair of Jacobians. `VARIANTS` lists them. With $l$ the block whose Jacobian is measured
and $l'$ the block whose singular vectors are used, all derive from six small matrices of the top $K$ vectors, `ujv`,
`vju`, `uu`, `vv`, `uv` and `vu`:

$$U_{l'}^\top J_l V_{l'}, \quad V_{l'}^\top J_l U_{l'}, \quad
  U_{l'}^\top U_l, \quad V_l^\top V_{l'}, \quad U_{l'}^\top V_l, \quad V_{l'}^\top U_l.$$

Every variant is a distance: 0 for perfect coupling. What the paper plots as *coupling* is one of `TRANSFORMS` of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from coupling_lib.errors import ParameterError, is_whole, shown
from coupling_lib.metrics.coupling import (
    check_jacobians,
    check_real,
    divided,
    miscoupling,
    mismatch,
    overlap_all_pairs,
    project_all_pairs,
    trustworthy,
    widened,
)
from coupling_lib.metrics.nulls import bases_square, mismatch_square, normalised_square, raw_square

# Maximum entries of an intermediate product: 32 MB in float32. Blocks are processed in groups within this limit.
_MAX_ENTRIES = 2**23

Formula = Callable[..., Tensor]
# Functions that form the products of two blocks' vectors and Jacobians, by name.
Products = Mapping[str, Callable[[], Tensor]]
_Array = TypeVar("_Array", Tensor, np.ndarray)


class Variant(NamedTuple):
    """One variant of coupling, 0 when the two blocks are perfectly coupled."""

    name: str  #: In `VARIANTS`, in data sets and in captions.
    source: str  #: Its source: "paper text", "project page", "released code", "pre-release code" or "old code".
    formula: str  #: In LaTeX; subscript 1 is the Jacobian's block, 2 the vectors' block, all cut to the top K.
    needs: tuple[str, ...]  #: Matrices that it is computed from.
    value: Formula  #: Of the Jacobian's singular values and those matrices (L1, L2, K, K), values (L1, L2).
    absolute: bool = True  #: Whether absolute values are used; a signed variant depends on the diagonal's sign.
    #: Exact mean square with random bases, from spectra (L, r), width and K; None if unknown.
    null: Callable[[Tensor, int, int], Tensor] | None = None


def _from_identity(M: Tensor) -> Tensor:
    return mismatch(M, torch.ones_like(M[..., 0]), absolute=True, norm=2) * M.shape[-1] ** 0.5


def _diagonal_only(s: Tensor, A: Tensor) -> Tensor:
    distance = torch.linalg.vector_norm(A.diagonal(dim1=-2, dim2=-1).abs() - s, dim=-1)
    return divided(distance, torch.linalg.vector_norm(s, dim=-1), "norm of the singular values")


def _off_over_diagonal(s: Tensor, A: Tensor) -> Tensor:
    if (k := A.shape[-1]) == 1:
        raise ParameterError(
            "k is 1; old_off_over_diagonal needs off-diagonal entries: k of at least 2, or other names"
        )
    size = A.abs()
    diagonal = size.diagonal(dim1=-2, dim2=-1)
    off_diagonal = size - torch.diag_embed(diagonal)
    return divided(off_diagonal.sum(dim=(-2, -1)) / (k * (k - 1)), diagonal.mean(dim=-1), "mean diagonal")


def _two_normalisations(
    names: str, source: str, matrix: str, *needs: str, absolute: bool = True, formed: Formula = lambda s, M: M
) -> list[Variant]:
    """Return the distance of a product from the singular values in two normalisations: Frobenius norm and trace."""

    def value(s: Tensor, *M: Tensor, p: int) -> Tensor:
        return mismatch(formed(s, *M), s, absolute, p)

    found = []
    for name, p in zip(names.split(), (2, 1), strict=True):
        formula = rf"\lVert {matrix} - S_1 \rVert_F \,/\, \lVert s_1 \rVert_{p}"
        null = partial(mismatch_square, absolute=absolute, p=p, cut=len(needs) > 1)
        found.append(Variant(name, source, formula, needs, partial(value, p=p), absolute, null))
    return found


_TEXT, _PAGE, _RELEASE, _PRE, _OLD = "paper text", "project page", "released code", "pre-release code", "old code"
_A = r"U_2^\top J_1 V_2"
_OFF = r"\lVert A - \mathrm{Diag} A \rVert_F"
_SHARE = r"\mathrm{mean}_{i \ne j} |a_{ij}| \,/\, \mathrm{mean}_i |a_{ii}|"
_DIAGONAL = r"\lVert\, |\mathrm{diag} A| - s_1 \rVert_2 \,/\, \lVert s_1 \rVert_2"

_TABLE = (
    Variant(
        "miscoupling", _TEXT, rf"{_OFF},\; A = {_A}", ("ujv",),
        lambda s, A: miscoupling(A), absolute=False, null=raw_square,
    ),
    Variant(
        "normalized_miscoupling", _TEXT, rf"{_OFF} \,/\, \lVert A \rVert_F", ("ujv",),
        lambda s, A: miscoupling(A, normalized=True), absolute=False, null=normalised_square,
    ),
    *_two_normalisations("mismatch mismatch_trace", _PAGE, _A, "ujv", absolute=False),
    *_two_normalisations("released_norm released_trace", _RELEASE, f"|{_A}|", "ujv"),
    *_two_normalisations("released_norm_vju released_trace_vju", _RELEASE, r"|V_2^\top J_1 U_2|", "vju"),
    *_two_normalisations(
        "released_norm_k released_trace_k", _PRE, r"|U_2^\top U_1 S_1 V_1^\top V_2|", "uu", "vv",
        formed=lambda s, uu, vv: (uu * s.unsqueeze(-2)) @ vv,
    ),
    Variant(
        "released_diag", _PRE, r"\lVert |U_2^\top U_1 V_1^\top V_2| - I \rVert_F", ("uu", "vv"),
        lambda s, uu, vv: _from_identity(uu @ vv), null=partial(bases_square, products=2),
    ),
    Variant(
        "old_norm_diagonal", _OLD, _DIAGONAL, ("ujv",), _diagonal_only, null=partial(mismatch_square, diagonal=True)
    ),
    Variant("old_off_over_diagonal", _OLD, _SHARE, ("ujv",), _off_over_diagonal),
    *(
        Variant(
            f"basis_{sides}", _OLD, rf"\lVert |{formula}| - I \rVert_F", (sides,),
            lambda s, M: _from_identity(M), null=bases_square,
        )
        for sides, formula in (
            ("uu", r"U_2^\top U_1"), ("vv", r"V_2^\top V_1"), ("uv", r"U_2^\top V_1"), ("vu", r"V_2^\top U_1")
        )
    ),
)  # fmt: skip

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _TABLE}
"""All variants by name, each 0 at perfect coupling: `vju`, `uv` and `vu` ones if left and right vectors agree, too."""

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda m: -m,
    "one_minus": lambda m: 1 - m,
    "one_minus_square": lambda m: 1 - m**2,
}
"""Ways to turn a distance $m$ into a coupling: $-m$ (text), $1 - m$ (figures, inferred), $1 - m^2$ (demo notebook)."""


def names_at(ks: Iterable[int]) -> list[str]:
    """Return the names of all variants that exist at these K."""
    # With one singular vector there are no off-diagonal entries to compare with the diagonal.
    return [name for name in VARIANTS if 1 not in ks or name != "old_off_over_diagonal"]


def chosen_variants(names: Iterable[str] | None, ks: Iterable[int] = ()) -> list[Variant]:
    """Return the variants of the given names, in that order; without names all that exist at these K."""
    if isinstance(names, str):
        raise ParameterError(f"names is {names!r}; expected a list of names, for example [{names!r}]")
    if not isinstance(names, Iterable | None):
        raise ParameterError(f"names is {shown(names)}; expected a list of names, or None for all")
    names = names_at(ks) if names is None else list(names)
    if unknown := [name for name in names if not isinstance(name, str) or name not in VARIANTS]:
        raise ParameterError(f"the variant {shown(unknown[0])} is unknown; choose from {', '.join(VARIANTS)}")
    return [VARIANTS[name] for name in names]


def evaluate_variants(
    variants: Sequence[Variant], s: Tensor, products: Products, ks: Sequence[int]
) -> dict[str, Tensor]:
    """Evaluate variants at several K, from the Jacobians' singular values (L1, 1, K) and products (L1, L2, K, K)."""
    # Each product is formed once, and only if a variant needs it.
    formed = {name: products[name]() for name in {name for v in variants for name in v.needs}}

    def at(v: Variant, k: int) -> Tensor:
        return v.value(s[..., :k], *(formed[name][..., :k, :k] for name in v.needs))

    return {v.name: torch.stack([at(v, k) for k in ks]) for v in variants}


def checked_ks(ks: Iterable[int], available: int) -> list[int]:
    """Return numbers of singular triplets as a list, and refuse invalid ones."""
    ks = list(ks) if isinstance(ks, Iterable) else [ks]
    wrong = [k for k in ks if not is_whole(k) or not 1 <= k <= available]
    if wrong or not ks:
        raise ParameterError(
            f"ks is {ks!r}; expected whole numbers from 1 to {available}, the singular triplets at hand"
        )
    return [int(k) for k in ks]


def measure_variants(
    J: Tensor | Sequence[Any],
    U: Tensor,
    S: Tensor,
    Vh: Tensor,
    ks: Iterable[int],
    names: Iterable[str] | None = None,
    A: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute every variant for all pairs of blocks and several K, from products formed once, for the largest K.

    Args:
        J: Residual Jacobians (L, d, d), or a sequence of L operators that support `J_l @ V`.
        U: Left singular vectors as columns (L, d, K).
        S: Singular values (L, at least the largest of `ks`), strongest first.
        Vh: Right singular vectors as rows (L, K, d).
        ks: Numbers of singular triplets, each at most K.
        names: Variants to compute, keys of `VARIANTS`; None computes all.
        A: `coupling_matrices(J, U, Vh)`, if available.

    Returns:
        For each name a tensor (len(ks), L, L); index [., l, l'] holds the Jacobian of block l against the
        vectors of block l', both counted from 0.

    Raises:
        ParameterError: If the shapes do not fit together.

    Example:
        >>> J = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> values = measure_variants(J, *torch.linalg.svd(J), ks=(2, 4), names=["normalized_miscoupling"])
        >>> values["normalized_miscoupling"].shape
        torch.Size([2, 3, 3])
    """
    for name, part, least in (("U", U, 3), ("S", S, 2), ("Vh", Vh, 3)):
        check_real(name, part, least, least)
    n_blocks, d, _ = U.shape
    check_jacobians(J, width=d)
    if {len(J), len(S), len(Vh)} != {n_blocks} or Vh.shape[-1] != d:
        raise ParameterError(
            f"U, S, Vh have shapes {tuple(U.shape)}, {tuple(S.shape)}, {tuple(Vh.shape)} for {len(J)} Jacobians; "
            "expected (L, d, K), (L, K), (L, K, d)"
        )
    ks = checked_ks(ks, available=min(U.shape[-1], S.shape[-1], Vh.shape[-2]))
    if A is not None:
        check_real("A", A, 4, 4)
        if A.shape[:2] != (n_blocks, n_blocks) or min(A.shape[2:]) < max(ks):
            raise ParameterError(f"A has shape {tuple(A.shape)}; expected {(n_blocks, n_blocks, max(ks), max(ks))}")
    U, S, V = U[..., : max(ks)], S[..., : max(ks)], Vh[:, : max(ks)].mT
    return values_of_pairs(J, U, S, V, U, V, ks, names, A)


def values_of_pairs(
    J: Tensor | Sequence[Any],
    U: Tensor,
    S: Tensor,
    V: Tensor,
    U2: Tensor,
    V2: Tensor,
    ks: Iterable[int],
    names: Iterable[str] | None,
    A: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute variants (K, L, L) for all pairs of blocks, with the other block's vectors given separately."""
    J, U, S, V, U2, V2 = widened(J, U, S, V, U2, V2)
    n_blocks, d, k = U.shape
    ks, variants = checked_ks(ks, available=k), chosen_variants(names)
    formulas: dict[str, Callable[[slice], Tensor]] = {
        "ujv": lambda rows: project_all_pairs(J[rows], left=U2, right=V2) if A is None else A[rows],
        "vju": lambda rows: project_all_pairs(J[rows], left=V2, right=U2),
        "uu": lambda rows: overlap_all_pairs(U2, U[rows]),
        "vv": lambda rows: overlap_all_pairs(V2, V[rows]).mT,
        "uv": lambda rows: overlap_all_pairs(U2, V[rows]),
        "vu": lambda rows: overlap_all_pairs(V2, U[rows]),
    }
    group, parts = max(1, _MAX_ENTRIES // (n_blocks * k * max(d, k))), []
    for first in range(0, n_blocks, group):
        rows = slice(first, first + group)
        products = {name: partial(formula, rows) for name, formula in formulas.items()}
        parts.append(evaluate_variants(variants, S[rows, None], products, ks))
    return {v.name: torch.cat([part[v.name] for part in parts], dim=1) for v in variants}


def different_pairs(values: _Array) -> _Array:
    """Return the entries `(..., L, L)` at ordered pairs of different blocks, `(..., L (L - 1))`."""
    # After the first entry, the diagonal is every (L + 1)-th.
    *before, length, _ = values.shape
    rows = values.reshape(*before, length**2)[..., 1:].reshape(*before, length - 1, length + 1)
    return rows[..., :-1].reshape(*before, (length - 1) * length)


def locality(values: Tensor) -> Tensor:
    r"""Compute the mean over all pairs of blocks at the same distance, $|l - l'| = \delta$."""
    check_real("values", values, 2)
    (values,) = widened(values)
    n_blocks = values.shape[-1]
    if values.shape[-2] != n_blocks or not n_blocks:
        raise ParameterError(
            f"values have shape {tuple(values.shape)}; expected one value per pair of blocks, (..., L, L)"
        )
    index = torch.arange(n_blocks, device=values.device)
    distance = (index[:, None] - index).abs()
    means = torch.stack([values[..., distance == delta].mean(dim=-1) for delta in index], dim=-1)
    return trustworthy(means, "mean by distance")
