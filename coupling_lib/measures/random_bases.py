"""The null of every measured coupling: its value for blocks that share no directions but keep their singular values.

`null_of` returns the expectation, the reference of a mean over pairs; `drawn_null` draws single pairs, with spread.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.metrics import nulls
from coupling_lib.metrics.expected_null import expected_nulls, random_orthogonal_null
from coupling_lib.metrics.nulls import DRAWS, diagonal_share_variance, filled_spectrum
from coupling_lib.metrics.spectrum import exchanged_null
from coupling_lib.metrics.subspaces import random_frames
from coupling_lib.metrics.variants import VARIANTS, chosen_variants, different_pairs, measure_variants

# A comparison of tokens has a Jacobian per token and prompt; this many of them represent all.
_MOST_SPECTRA = 64
# Simulated networks for the spread of the null, which they determine to 5 per cent.
_NETWORKS, _MAIN = 200, "normalized_miscoupling"


def null_of(
    ds: xr.Dataset, variant: str | Sequence[str] | None = None, n_samples: int = DRAWS, seed: int = 0
) -> xr.Dataset:
    r"""Return a variant's mean for blocks that share no directions but keep their singular values, with its error.

    Both blocks' singular vectors are independent, uniformly random orthonormal frames; the singular values are those
    of each Jacobian (root mean square over prompts), with the unmeasured tail filled so that its Frobenius norm is
    kept. Where an entry of `VARIANTS` has a closed form of the mean square, its `null`, only the small difference from
    there to the mean is drawn; of any other, a user's included, the mean of plain draws is returned with its error.
    The normalised mis-coupling has an error of about 2e-5: $K$ determines it, $\sqrt{1 - 1/K}$ less about
    0.0003 at $K = 10$, and no spectrum or width changes it by more than 0.0003 there.

    A real network keeps more than its singular values: `cl.coupling` and the surrogate `conjugated`
    of `measure_nulls` keep each block's own alignment of left and right vectors as well.

    Args:
        ds: A dataset of `measure_depth`, `measure_relations` or `measure_tokens`; several networks along `network` have
            the nulls that each has alone, and share the draws.
        variant: A name of `VARIANTS`; or several; or None for all that were measured.
        n_samples: Number of draws; fewer for a variant whose relative error is below 2e-5.
        seed: Seed of the draws.

    Returns:
        `value`, `error`, its standard error, and `mean_square`, the exact mean of the square (not a number where
        none exists): dimensions `(k, block_1)`, `(relation, block_1)` or `(jacobian,)`, after `variant`
        unless a single name was given. All blocks share the draws, so that the error of a mean over blocks is the mean
        of the errors. Attributes: `draws`, the maximum number used, `note`, the method,
        and `variant`, where a single name was given.

    Raises:
        ParameterError: If the dataset has no singular values, a name is unknown, or fewer than 2 draws are asked for.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> null = cl.null_of(ds, "normalized_miscoupling").mean()
        >>> print(f"coupling of random bases {1 - null.value:.4f}", bool(null.error < 1e-4))
        coupling of random bases 0.0516 True
    """
    single = isinstance(variant, str)
    names = [variant] if single else [name for name in VARIANTS if name in ds] if variant is None else variant
    names = [named.name for named in chosen_variants(names)]
    networks = [ds.sel(network=name, drop=True) for name in ds["network"].values] if "network" in ds.dims else [ds]
    spectra, (width, *_), (ks, *_), (blank, *_) = zip(*map(_null_arguments, networks), strict=True)
    each = [xr.Dataset(coords={"variant": names, **blank.coords}) for _ in networks]
    for null, found in zip(each, expected_nulls(spectra, width, ks, names, n_samples, seed), strict=True):
        for part in ("value", "error", "mean_square"):
            values = [getattr(found[name], part).numpy().reshape(blank.shape) for name in names]
            null[part] = (("variant", *blank.dims), np.stack(values))
    null = xr.concat(each, ds["network"]) if "network" in ds.dims else each[0]
    note = f"closed form of the mean square, where there is one, and up to {n_samples:,} draws"
    null = null.isel(variant=0, drop=True).assign_attrs(variant=variant) if single else null
    return null.assign_attrs(draws=n_samples, seed=seed, note=note)


def drawn_null(ds: xr.Dataset, variant: str, n_samples: int = DRAWS, seed: int = 0) -> xr.DataArray:
    """Draw values of a variant by chance for single pairs, of blocks or of tokens."""
    S, width, ks, blank = _null_arguments(ds)
    generator = torch.Generator().manual_seed(seed)
    values = random_orthogonal_null(S, width, ks, n_samples, generator, [variant])[variant].numpy()
    drawn = xr.DataArray(values.reshape(n_samples, *blank.shape), blank.coords, ("sample", *blank.dims))
    return drawn.transpose("relation", ..., missing_dims="ignore")


@cache
def null_spreads(k: int, blocks: int) -> dict[str, float]:
    """Simulate the standard deviation by chance of both means of `depth_summary`, for one network."""
    # A network is one draw of bases, whatever the number of prompts. Width and spectrum hardly matter: from a flat
    # spectrum to 1 / i the spread of 12 blocks grows from .0019 to .0021, so that the latter is used for all.
    if k == 1 or blocks < 2:
        return {"all pairs": 0.0, "neighbours": 0.0}
    width, generator = max(64, 2 * k), torch.Generator().manual_seed(0)
    S = 1 / torch.arange(1, width + 1, dtype=torch.float64)
    drawn = []
    for _ in range(_NETWORKS):
        U, V = (random_frames(blocks, width, width, generator) for _ in range(2))
        drawn.append(measure_variants((U * S) @ V.mT, U, S.expand(blocks, -1), V.mT, [k], [_MAIN])[_MAIN][0])
    values = torch.stack(drawn)
    near = torch.cat([values.diagonal(offset, -2, -1) for offset in (1, -1)], dim=-1)
    means = {"all pairs": different_pairs(values), "neighbours": near}
    return {name: float(some.mean(dim=-1).std()) for name, some in means.items()}


def pair_spread(k: int) -> float:
    """Return the standard deviation of one pair's coupling by chance, for a flat spectrum and K far below the width."""
    share = diagonal_share_variance(k, purity=(2 * k + 1) / (k**2 + 2))
    return 0.0 if k == 1 else float(np.sqrt(share / (4 * (1 - 1 / k))))


def null_with_draws(ds: xr.Dataset, seed: int = 0) -> xr.Dataset:
    """Return `null_of` for the normalised mis-coupling, with `draws` of single pairs beside it."""
    return null_of(ds, _MAIN, seed=seed).assign(draws=drawn_null(ds, _MAIN, seed=seed))


def spectra_null(ds: xr.Dataset, n_samples: int = DRAWS, seed: int = 0) -> xr.Dataset:
    """Return the agreement of random left and right vectors with the same singular values."""
    width, k = int(ds.attrs["width"]), ds.sizes["rank"]
    values = exchanged_null(root_mean_square_spectra(ds), k, n_samples, torch.Generator().manual_seed(seed))
    exchanged = xr.DataArray(values.numpy(), {"block": ds.block}, ("sample", "block"))
    return xr.Dataset(
        {"left_right_alignment": nulls.mean_absolute_coordinate(width), "exchanged_miscoupling": exchanged}
    )


def root_mean_square_spectra(ds: xr.Dataset) -> torch.Tensor:
    """Return the singular values of each block, root mean square over prompts, with the tail filled."""
    # Root mean squares keep the energies of head and whole consistent, so that a tail exists.
    S, frobenius = (
        torch.tensor(array.transpose("prompt", ...).values, dtype=torch.float64).square().mean(0).sqrt()
        for array in (ds["singular_values"], _norms(ds))
    )
    return filled_spectrum(S, int(ds.attrs["width"]), frobenius)


def _norms(ds: xr.Dataset) -> xr.DataArray | None:
    """Return the Frobenius norms of a dataset's Jacobians; estimates where these were not formed."""
    return ds.get("frobenius_norm", ds.get("frobenius_estimate"))


def _null_arguments(ds: xr.Dataset) -> tuple[torch.Tensor, int, list[int], xr.DataArray]:
    """Return spectra (L, r) of a dataset, its width, its values of K, and an array with the dimensions of its null."""
    if "singular_values" not in ds or _norms(ds) is None:
        raise ParameterError(
            "the dataset has no singular_values and frobenius_norm; expected one of measure_depth, measure_relations "
            "or measure_tokens"
        )
    if "prompt" not in ds["singular_values"].dims:
        raise ParameterError("the dataset has no dimension 'prompt'; choose one by a list, ds.isel(prompt=[0])")
    width, both = int(ds.attrs["width"]), xr.Dataset({"singular_values": ds["singular_values"], "norm": _norms(ds)})
    if "token_1" in both["norm"].dims:
        S, frobenius = (torch.tensor(both[name].values, dtype=torch.float64).flatten(0, 1) for name in both)
        known = torch.isfinite(frobenius).nonzero().flatten()
        some = known[torch.linspace(0, len(known) - 1, min(len(known), _MOST_SPECTRA)).round().long()]
        blank = xr.DataArray(np.empty(len(some)), dims="jacobian")
        return filled_spectrum(S[some], width, frobenius[some]), width, [int(ds.attrs["k"])], blank
    blank = both["norm"].isel(prompt=0, drop=True).reset_coords(drop=True)
    S = root_mean_square_spectra(ds.transpose("prompt", *blank.dims, ...))
    S = S.reshape(-1, S.shape[-1])
    if "k" not in ds.dims:
        return S, width, [int(ds["k"] if "k" in ds.coords else ds.attrs["k"])], blank
    return S, width, ds["k"].values.tolist(), blank.expand_dims(k=ds["k"].values)
