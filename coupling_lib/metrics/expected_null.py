"""What each variant is in the mean under the null of `coupling_lib.metrics.nulls`, and draws of it."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import widened
from coupling_lib.metrics.nulls import DRAWS, closed_form_null
from coupling_lib.metrics.subspaces import FramePairs, frame_pairs
from coupling_lib.metrics.variants import PairProducts, Variant, checked_ks, chosen_variants, cyclic_mean, evaluated

_CYCLIC = "old_off_over_diagonal"
_TWINS = {"released_norm_vju": "released_norm", "released_trace_vju": "released_trace"}
_TWINS |= {f"basis_{sides}": "basis_uu" for sides in ("vv", "uv", "vu")}
# Draws below which a standard error is not believed, and the relative error from which on a mean needs no more of them.
_FEWEST, _SETTLED = 200, 5e-6
# Entries of the largest intermediate product, and bytes of frames that are kept for the next prompt.
_MAX_ENTRIES, _MOST_KEPT = 2**21, 2**25


def random_orthogonal_null(
    S: Tensor,
    d: int,
    ks: Iterable[int],
    n_samples: int = DRAWS,
    generator: torch.Generator | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Draw values of every variant for random orthogonal bases with the same singular values."""
    # One draw serves all spectra and all K. No matrix larger than (r, K) is drawn, with r the number of singular
    # values before the last run of equal ones (`coupling_lib.metrics.subspaces`). Each value has the exact null
    # distribution of its variant; values of different blocks in one sample share their bases and so are not
    # independent.
    S, ks = _checked(S, d, ks, n_samples)
    variants = chosen_variants(names)
    parts = [evaluated(variants, products, ks) for products in _null_products(S, d, ks, n_samples, generator, variants)]
    joined = {v.name: torch.cat([part[v.name] for part in parts], dim=-1) for v in variants}
    return {name: value.expand(-1, len(S), -1).permute(2, 0, 1) for name, value in joined.items()}


class Expectation(NamedTuple):
    """A mean under the null hypothesis, and how well it is known; tensors (len(ks), L)."""

    # All blocks share the draws, so that the error of a mean over blocks is at most the mean of theirs.

    value: Tensor  #: The mean.
    error: Tensor  #: Its standard error.
    mean_square: Tensor  #: The exact mean of the square; not a number where it is not known.
    draws: int  #: Number of draws, at the K that took most.


def expected_null(
    S: Tensor, d: int, ks: Iterable[int], names: Iterable[str] | None = None, n_samples: int = DRAWS, seed: int = 0
) -> dict[str, Expectation]:
    """Mean of every variant for random orthogonal bases with the same singular values, with its standard error."""
    # Draws alone would leave an error of the single value's spread over $\sqrt n$. But the mean square $q^2$ of all
    # variants but one is known exactly (`closed_form_null`), and $m - (m^2 - q^2) / 2q = q - (m - q)^2 / 2q$ has the
    # same mean as $m$ and hardly varies: 3,000 draws give it to about 1e-5. The mean of the one variant that is left,
    # `old_off_over_diagonal`, does not change when the columns of A are permuted; so each draw counts with all K
    # cyclic orders of them, whose fluctuations cancel to first order.
    # Variants of the same distribution (`released_norm_vju` and `released_norm`, all `basis_*`) get the same value.
    S, ks = _checked(S.double(), d, ks, n_samples)
    variants = chosen_variants(names, ks)
    drawn = chosen_variants(dict.fromkeys(_TWINS.get(v.name, v.name) for v in variants))
    # Each K has draws of its own, so that a value does not depend on which other K are asked for.
    each, draws = zip(*(_expected(S, d, k, drawn, n_samples, seed) for k in ks), strict=True)
    means = {v.name: torch.stack([found[v.name] for found in each], dim=1) for v in drawn}
    most = {v.name: max(of_one_k[v.name] for of_one_k in draws) for v in drawn}
    twins = {v.name: _TWINS.get(v.name, v.name) for v in variants}
    return {name: Expectation(*means[twin], most[twin]) for name, twin in twins.items()}


def _expected(
    S: Tensor, d: int, k: int, variants: Sequence[Variant], n_samples: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Mean, its error and the mean square of variants at one K, each (3, L); and the number of draws of each."""
    known = {v.name: closed_form_null(v.name, S, d, k) for v in variants if v.name != _CYCLIC}
    sums, draws, waiting = {v.name: S.new_zeros(2, len(S)) for v in variants}, {v.name: 0 for v in variants}, variants
    for products in _null_products(S, d, [k], n_samples, seed, variants):
        found = evaluated([v for v in waiting if v.name in known], products, [k])
        # Half the square of the distance from the known root mean square.
        found = {name: (v[0] - known[name].unsqueeze(-1)).square() / 2 for name, v in found.items()}
        if _CYCLIC in sums:
            found[_CYCLIC] = cyclic_mean(products.ujv)
        for name, values in found.items():
            sums[name] += torch.stack([values.sum(dim=-1), values.square().sum(dim=-1)])
            draws[name] += values.shape[-1]
        errors = {name: _error(total, draws[name]) for name, total in sums.items()}
        settled = {name for name, q in known.items() if bool((errors[name] <= _SETTLED * q.square()).all())}
        waiting = [v for v in waiting if draws[v.name] < _FEWEST or v.name not in settled]
        if not waiting:
            break
    means = {}
    for name, total in sums.items():
        mean, error = total[0] / draws[name], _error(total, draws[name])
        square = torch.full_like(mean, torch.nan)
        if name in known:
            q = known[name]
            scale = torch.where(q > 0, q, 1)
            mean, error, square = q - mean / scale, error / scale, q.square()
        means[name] = torch.stack([mean, error, square])
    return means, draws


def _checked(S: Tensor, d: int, ks: Iterable[int], n_samples: int) -> tuple[Tensor, list[int]]:
    (S,) = widened(S)
    if S.ndim != 2 or S.shape[-1] > d or n_samples < 1:
        seen = f"S has shape {tuple(S.shape)}, d is {d!r} and n_samples {n_samples!r}"
        raise ParameterError(f"{seen}; expected S (L, r) with r at most d, and at least one sample")
    return S, checked_ks(ks, available=S.shape[-1])


def _error(total: Tensor, n: int) -> Tensor:
    """Standard error of a mean from the sums of n values and of their squares."""
    return ((total[1] / n - (total[0] / n).square()).clamp(min=0) / max(1, n - 1)).sqrt()


def _null_products(
    S: Tensor,
    d: int,
    ks: Sequence[int],
    n_samples: int,
    source: torch.Generator | int | None,
    variants: Sequence[Variant],
) -> Iterator[PairProducts]:
    """Products of blocks with spectra S (L, r) against random blocks, as (L, n, k, k), some n at a time."""
    k, wanted = max(ks), {product for variant in variants for product in variant.needs}
    full = torch.cat([S, S.new_zeros(len(S), d - S.shape[-1])], dim=-1)
    # Coordinates from the last change in any spectrum on are alike to all blocks.
    changes = (full[:, 1:] != full[:, :-1]).any(dim=0).nonzero()
    r = max(k, int(changes.max()) + 1 if len(changes) else 0)
    head, flat = full[:, None, :r], full[:, -1, None, None, None] if r < d else 0
    group = max(1, min(1000, _MAX_ENTRIES // (len(S) * k * r)))
    # The second pair stands for U_1' V_2 and V_1' U_2; no variant sees both pairs.
    kinds = [kind for kind in (("ujv", "uu", "vv"), ("vju", "vu", "uv")) if wanted & set(kind)]
    for pairs in _frames(source, len(kinds), n_samples, group, d, r, k):
        products = {}
        for (ujv, u, v), pair in zip(kinds, pairs, strict=True):
            left, right, tail = (x.to(S) for x in pair)
            if ujv in wanted:
                # One product a draw, for all blocks at once.
                projected = (left.mT.unsqueeze(1) * head).flatten(1, 2) @ right
                products[ujv] = projected.unflatten(1, (len(S), k)).transpose(0, 1) + flat * tail
            products[u] = left[:, :k].mT.unsqueeze(0)
            products[v] = right[:, :k].unsqueeze(0) if v == "vv" else right[:, :k].mT.unsqueeze(0)
        yield PairProducts(s=S[:, None, :k], **products)


def _frames(
    source: torch.Generator | int | None, kinds: int, n_samples: int, group: int, d: int, r: int, k: int
) -> Iterator[list[FramePairs]]:
    """Pairs of frames, some draws at a time; those of a seed serve every prompt, and are kept if they are few."""
    sizes = (kinds, n_samples, group, d, r, k)
    if not isinstance(source, int) or 8 * kinds * n_samples * k * (2 * r + k) > _MOST_KEPT:
        yield from _drawn(source, *sizes)
        return
    kept, rest = _of_seed(source, *sizes)
    for number in range(-(-n_samples // group)):
        if number == len(kept):
            kept.append(next(rest))
        yield kept[number]


@lru_cache(maxsize=8)
def _of_seed(seed: int, *sizes: int) -> tuple[list[list[FramePairs]], Iterator[list[FramePairs]]]:
    """What was drawn of a seed, and what draws more of it."""
    return [], _drawn(seed, *sizes)


def _drawn(
    source: torch.Generator | int | None, kinds: int, n_samples: int, group: int, d: int, r: int, k: int
) -> Iterator[list[FramePairs]]:
    generator = torch.Generator().manual_seed(source) if isinstance(source, int) else source
    for first in range(0, n_samples, group):
        yield [frame_pairs(min(group, n_samples - first), d, r, k, generator) for _ in range(kinds)]
