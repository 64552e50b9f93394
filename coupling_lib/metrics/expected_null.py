"""Expectation of each variant under the null of `coupling_lib.metrics.nulls`, and draws of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.metrics.coupling import widened
from coupling_lib.metrics.nulls import DRAWS
from coupling_lib.metrics.subspaces import FramePairs, frames_in_two_bases
from coupling_lib.metrics.variants import Products, Variant, checked_ks, chosen_variants, evaluate_variants

# Fewest draws for a standard error, and the relative error below which a mean needs no further draws.
_FEWEST, _SETTLED = 200, 2e-5
# Entries of the largest intermediate product.
_MAX_ENTRIES = 2**21


def random_orthogonal_null(
    S: Tensor,
    d: int,
    ks: Iterable[int],
    n_samples: int = DRAWS,
    generator: torch.Generator | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Draw values of every variant for random orthogonal bases with the same singular values, (n_samples, K, L)."""
    # One draw serves all spectra, all K and all variants: the products that a variant needs have their joint
    # distribution. No matrix larger than (r, 2 K) is drawn, with r the number of singular values before the last run of
    # equal ones (`coupling_lib.metrics.subspaces`). Values of different blocks in one sample are not independent.
    S, ks = _checked(S, d, ks, n_samples)
    variants = chosen_variants(names)
    draw = partial(frames_in_two_bases, generator=generator)
    parts = [evaluate_variants(variants, *drawn, ks) for (drawn,) in _null_products([S], d, ks, n_samples, draw)]
    joined = {v.name: torch.cat([part[v.name] for part in parts], dim=-1) for v in variants}
    return {name: value.expand(-1, len(S), -1).permute(2, 0, 1) for name, value in joined.items()}


class Expectation(NamedTuple):
    """A mean under the null hypothesis, with its standard error; tensors (len(ks), L)."""

    # All blocks share the draws, so that the error of a mean over blocks is at most the mean of theirs.

    value: Tensor  #: The mean.
    error: Tensor  #: Its standard error.
    mean_square: Tensor  #: The exact mean of the square; not a number where it is not known.


def expected_null(
    S: Tensor, d: int, ks: Iterable[int], names: Iterable[str] | None = None, n_samples: int = DRAWS, seed: int = 0
) -> dict[str, Expectation]:
    """Return the mean of every variant for random orthogonal bases with the same singular values, and its error."""
    return expected_nulls([S], d, ks, names, n_samples, seed)[0]


def expected_nulls(
    networks: Sequence[Tensor], d: int, ks: Iterable[int], names: Iterable[str] | None = None, n_samples: int = DRAWS,
    seed: int = 0,
) -> list[dict[str, Expectation]]:  # fmt: skip
    """Return `expected_null` of several networks with equal numbers of blocks, which share the draws."""
    check_whole("n_samples", n_samples, 2, why="a standard error takes 2 draws")
    networks, (ks, *_) = zip(*(_checked(S.double(), d, ks) for S in networks), strict=True)
    variants = chosen_variants(names, ks)
    # Each K has draws of its own, so that a value does not depend on which other K are asked for.
    by_k = zip(*(_expected(networks, d, k, variants, n_samples, seed) for k in ks), strict=True)
    return [
        {v.name: Expectation(*torch.stack([found[v.name] for found in each], dim=1)) for v in variants} for each in by_k
    ]


def _expected(
    networks: Sequence[Tensor], d: int, k: int, variants: Sequence[Variant], n_samples: int, seed: int
) -> list[dict[str, Tensor]]:
    """Return mean, standard error and mean square of variants at one K, (3, L) each, for each network."""
    found: list[dict[str, Tensor]] = [{} for _ in networks]
    drawn = [{v.name: S.new_empty(len(S), 0) for v in variants} for S in networks]
    squares = [{v.name: mean_square(v, S, d, k) for v in variants} for S in networks]
    for group in _null_products(networks, d, [k], n_samples, _draws_from(seed)):
        for settled, values, square, (s, products) in zip(found, drawn, squares, group, strict=True):
            waiting = [v for v in variants if v.name not in settled]
            for name, value in evaluate_variants(waiting, s, products, [k]).items():
                values[name] = torch.cat([values[name], value[0].expand(len(s), -1)], dim=-1)
            for v in waiting:
                m, q = values[v.name], square[v.name].sqrt().unsqueeze(-1)
                # $m - (m^2 - q^2) / 2q$ has the mean of $m$ and a much smaller variance.
                m = m if v.null is None else torch.where(q > 0, q - (m - q).square() / (2 * q), m)
                mean, n = m.mean(dim=-1), m.shape[-1]
                error = m.std(dim=-1) / n**0.5
                if n == n_samples or (n >= _FEWEST and bool((error <= _SETTLED * mean).all())):
                    settled[v.name] = torch.stack([mean, error, square[v.name]])
        if all(len(settled) == len(variants) for settled in found):
            break
    return found


def seeded(seed: int) -> torch.Generator:
    """Return a generator seeded by a number."""
    return torch.Generator().manual_seed(check_whole("seed", seed, 0, 2**63 - 1))


def _draws_from(seed: int) -> Callable[..., FramePairs]:
    """Return a function that draws frames from a seed in sequence; repeated sequences are cached."""
    state = seeded(seed).get_state().numpy().tobytes()

    def draw(*sizes: int) -> FramePairs:
        nonlocal state
        pairs, state = _cached_draw(state, *sizes)
        return pairs

    return draw


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _cached_draw(state: bytes, *sizes: int) -> tuple[FramePairs, bytes]:
    """Draw frames from a generator in a given state, and return the state after that."""
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return frames_in_two_bases(*sizes, generator), generator.get_state().numpy().tobytes()


def mean_square(variant: Variant, S: Tensor, d: int, k: int) -> Tensor:
    """Return the exact mean square of a variant with random bases, (...) for spectra (..., r); NaN if unknown."""
    S, _ = _checked(torch.atleast_2d(S), d, [k])
    return torch.full_like(S[..., 0], torch.nan) if variant.null is None else variant.null(S, d, k)


def _checked(S: Tensor, d: int, ks: Iterable[int], n_samples: int = 1) -> tuple[Tensor, list[int]]:
    (S,) = widened(S)
    if S.ndim != 2 or S.shape[-1] > d or n_samples < 1:
        seen = f"S has shape {tuple(S.shape)}, d is {d!r} and n_samples {n_samples!r}"
        raise ParameterError(f"{seen}; expected S (L, r) with r at most d, and at least one sample")
    return S, checked_ks(ks, available=S.shape[-1])


def _null_products(
    networks: Sequence[Tensor], d: int, ks: Sequence[int], n_samples: int, draw: Callable[..., FramePairs]
) -> Iterator[list[tuple[Tensor, Products]]]:
    """Iterate over groups of draws: of each network, spectra (L, 1, k) and products (L, n, k, k) with random blocks."""
    k, n_blocks = max(ks), len(networks[0])
    full = torch.stack([torch.cat([S, S.new_zeros(len(S), d - S.shape[-1])], dim=-1) for S in networks])
    # Coordinates after the last change in any spectrum are equivalent for all blocks.
    changes = (full[..., 1:] != full[..., :-1]).flatten(0, 1).any(dim=0).nonzero()
    r = max(k, int(changes.max()) + 1 if len(changes) else 0)
    group = max(1, min(500, _MAX_ENTRIES // (n_blocks * k * r)))
    for first in range(0, n_samples, group):
        pairs = [x.to(full) for x in draw(min(group, n_samples - first), d, r, k)]
        yield [
            (S[:, None, :k], _products(*pairs, S[:, None, :r], S[:, -1, None, None, None] if r < d else 0))
            for S in full
        ]


def _products(left: Tensor, right: Tensor, tail: Tensor, head: Tensor, flat: Tensor | int) -> Products:
    """Return functions for the products of U_2 and V_2 in the bases U_1 and V_1, each evaluated on demand."""
    n_blocks, k = len(head), tail.shape[-1] // 2
    u, v = slice(0, k), slice(k, 2 * k)

    def projected(one: slice, other: slice) -> Tensor:
        # One product per draw, for all blocks at once.
        product = (left[..., one].mT.contiguous().unsqueeze(1) * head).flatten(1, 2) @ right[..., other]
        return product.unflatten(1, (n_blocks, k)).transpose(0, 1) + flat * tail[..., one, other]

    return {
        "ujv": lambda: projected(u, v),
        "vju": lambda: projected(v, u),
        "uu": lambda: left[:, :k, u].mT.unsqueeze(0),
        "vv": lambda: right[:, :k, v].unsqueeze(0),
        "uv": lambda: right[:, :k, u].mT.unsqueeze(0),
        "vu": lambda: left[:, :k, v].mT.unsqueeze(0),
    }
