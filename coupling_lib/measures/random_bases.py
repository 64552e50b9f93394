"""The null beside every measured coupling: what it is where blocks share no direction.

One rule for all measurements. `null_of` takes the singular values out of a dataset and gives the expectation of a
reading for uniformly random singular vectors, with its standard error, block by block and for every K.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.expected_null import expected_null, random_orthogonal_null
from coupling_lib.metrics.nulls import DRAWS, filled_spectrum
from coupling_lib.metrics.variants import VARIANTS

# A comparison of tokens has a Jacobian per token and prompt; this many of them stand for all.
_MOST_SPECTRA = 64


class Chance(float):
    """A value without coupling; a plain number in all arithmetic, which knows its standard error."""

    error: float
    """Standard error, 0 in closed form."""

    def __new__(cls, value: float, error: float) -> Chance:
        """Join a value and its standard error."""
        made = super().__new__(cls, value)
        made.error = float(error)
        return made


def null_of(
    ds: xr.Dataset, variant: str | Sequence[str] | None = None, n_samples: int = DRAWS, seed: int = 0
) -> xr.Dataset:
    r"""Give what a reading is when blocks share no directions but keep their singular values, and how well it is known.

    Both blocks' singular vectors are independent, uniformly random orthonormal frames; the singular values are those
    of each Jacobian (root mean square over prompts), with the unmeasured tail filled so that its Frobenius norm is
    kept. A measured coupling is a mean over pairs of blocks, and so it is to be set against the *mean* of the null.
    That has no closed form, but the mean square does (`coupling_lib.metrics.nulls`), and only the small difference
    between the two is taken from random draws. The normalised mis-coupling comes out with an error of about 1e-5;
    $K$ decides its value, $\sqrt{1 - 1/K}$ less about 0.0003 at $K = 10$, and no spectrum or width moves it by more
    than 0.0003 there.

    Args:
        ds: A dataset of `measure_depth`, `measure_relations` or `measure_tokens`.
        variant: A name of `VARIANTS`; or several; or None for all that were measured.
        n_samples: Number of draws; fewer are made where the error falls below 1e-6 before.
        seed: Seed of the draws.

    Returns:
        `value`, `error`, its standard error, and `mean_square`, the exact mean of the square (not a number for
        `old_off_over_diagonal`): dimensions `(k, block_1)`, `(relation, block_1)` or `(jacobian,)`, after `variant`
        unless a single name was given. All blocks share the draws, so that the error of a mean over
        blocks is the mean of the errors. Attributes: `draws`, and `note`, which says how the value was obtained.

    Raises:
        ParameterError: If the dataset has no singular values, or a name is unknown.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> null = cl.null_of(ds, "normalized_miscoupling").mean()
        >>> print(f"coupling of random bases {1 - null.value:.4f}", bool(null.error < 1e-4))
        coupling of random bases 0.0516 True
    """
    single = isinstance(variant, str)
    names = [variant] if single else [name for name in VARIANTS if name in ds] if variant is None else list(variant)
    S, width, ks, dims, coords = _spectra(ds)
    found = expected_null(S.flatten(0, -2), width, ks, names, n_samples, seed)
    shape = S.shape[:-1] if "k" not in dims else (len(ks), *S.shape[:-1])
    parts = {
        part: np.stack([getattr(found[name], part).numpy().reshape(shape) for name in names])
        for part in ("value", "error", "mean_square")
    }
    null = xr.Dataset({part: (("variant", *dims), x) for part, x in parts.items()}, {"variant": names, **coords})
    draws = found[names[0]].draws
    note = f"closed form of the mean square and {draws:,} draws"
    return (null.isel(variant=0, drop=True) if single else null).assign_attrs(draws=draws, seed=seed, note=note)


def chance(null: xr.Dataset) -> Chance:
    """Average a null over all that is in it, for instance the blocks."""
    return Chance(float(null["value"].mean()), float(null["error"].mean()))


def null_draws(ds: xr.Dataset, variant: str, n_samples: int = DRAWS, seed: int = 0) -> xr.DataArray:
    """Draw what a reading is for single pairs of blocks that share no directions: the spread, not the mean."""
    S, width, ks, dims, coords = _spectra(ds)
    generator = torch.Generator().manual_seed(seed)
    values = random_orthogonal_null(S.flatten(0, -2), width, ks, n_samples, generator, [variant])[variant]
    shape = S.shape[:-1] if "k" not in dims else (len(ks), *S.shape[:-1])
    return xr.DataArray(values.numpy().reshape(n_samples, *shape), dims=("sample", *dims), coords=coords)


def root_mean_square_spectra(ds: xr.Dataset) -> torch.Tensor:
    """Give the singular values of each block, root mean square over prompts, with the tail filled."""
    # Root mean squares keep the energy of the head and the whole consistent, so that a tail exists.
    S, frobenius = (
        torch.tensor(ds[name].transpose("prompt", ...).values, dtype=torch.float64).square().mean(0).sqrt()
        for name in ("singular_values", "frobenius_norm")
    )
    width = int(ds.attrs["width"])
    return S if S.shape[-1] == width else filled_spectrum(S, width, frobenius)


def _spectra(ds: xr.Dataset) -> tuple[torch.Tensor, int, list[int], tuple[str, ...], dict[str, np.ndarray]]:
    """Spectra of a dataset, its width and numbers of vectors, and the dimensions of its null."""
    if "singular_values" not in ds or "frobenius_norm" not in ds:
        raise ParameterError(
            "the dataset has no singular_values and frobenius_norm; expected one of measure_depth, measure_relations "
            "or measure_tokens"
        )
    width = int(ds.attrs["width"])
    if "token_1" in ds["frobenius_norm"].dims:
        frobenius = torch.tensor(ds["frobenius_norm"].values, dtype=torch.float64).flatten()
        S = torch.tensor(ds["singular_values"].values, dtype=torch.float64).flatten(0, 1)
        at_hand = torch.isfinite(frobenius).nonzero().flatten()
        some = at_hand[torch.linspace(0, len(at_hand) - 1, min(len(at_hand), _MOST_SPECTRA)).round().long()]
        S = S[some] if S.shape[1] == width else filled_spectrum(S[some], width, frobenius[some])
        return S, width, [int(ds.attrs["k"])], ("jacobian",), {}
    dims = tuple(name for name in ds["frobenius_norm"].dims if name != "prompt")
    S = root_mean_square_spectra(ds[["singular_values", "frobenius_norm"]].transpose("prompt", *dims, ...))
    coords = {name: ds[name].values for name in dims if name in ds.coords}
    if "k" not in ds.dims:
        return S, width, [int(ds.attrs["k"])], dims, coords
    return S, width, ds["k"].values.tolist(), ("k", *dims), {"k": ds["k"].values, **coords}
