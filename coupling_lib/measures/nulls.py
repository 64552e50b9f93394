"""Values of every coupling variant without coupling: curves, surrogates of a model, and the decisive test.

`measure_decisive` measures the two normalisations of the released code at the values of K that the paper's
headline figure may have used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
import xarray as xr

from coupling_lib import progress
from coupling_lib.blocks.model_config import random_input
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import UpToWidth, inputs_for, prompt_inputs
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures import common
from coupling_lib.metrics.expected_null import expected_null, mean_square, random_orthogonal_null
from coupling_lib.metrics.nulls import filled_spectrum, relative_to_null
from coupling_lib.metrics.surrogates import SURROGATES, surrogate_vectors
from coupling_lib.metrics.variants import VARIANTS, different_pairs, locality, values_of_pairs
from coupling_lib.models.model import Model
from coupling_lib.provenance import versions
from coupling_lib.svd.shared import isotropic_part, without_isotropic
from coupling_lib.svd.triplets import top_triplets_stacked

DECISIVE = ("released_norm", "released_trace")
"""Variants of the decisive test: the two normalisations of the released code."""
MAIN = "normalized_miscoupling"
KINDS = ("measured", *SURROGATES, "other prompt", "state directions")
"""Kinds of vectors used for the other block: its own, surrogates of them, or controls."""
PARTS, SPANS = ("whole", "traceless"), ("all pairs", "neighbours")
# Rotations over which the conjugated surrogate is averaged, and coordinates that count as outliers.
_DRAWS, _OUTLIERS = 4, 5


def tenth_of_width(d: int) -> int:
    """Return K = 10 % of the width, rounded down as the pre-release code does, but at least 1."""
    return max(1, int(0.1 * d))


def ladder(k: int, d: int) -> tuple[int, ...]:
    """Return K itself, half of it and its double, within bounds."""
    if k < 2:
        raise ParameterError(f"k is {k!r}; without off-diagonal entries some readings mean nothing; take 2 or more")
    return tuple(sorted({max(2, min(k // 2, d)), k, *([2 * k] if 2 * k <= d // 2 else [])}))


def null_curves(
    widths: Sequence[int] = (64, 128, 256, 512),
    ks: Sequence[int] = (10, 30),
    decays: Sequence[float] = (0.0, 0.5, 1.0),
    n_samples: int = 300,
    seed: int = 0,
) -> xr.Dataset:
    """Simulate every variant without coupling, beside its closed form (`coupling_lib.metrics.nulls`)."""
    # The spectrum is $\sigma_i = i^{-a}$ over the whole width; $a = 0$ is flat.
    generator, names, dims = torch.Generator().manual_seed(seed), list(VARIANTS), ("rule", "decay", "variant")
    per_width = []
    for d in widths:
        # One singular vector has no off-diagonal entries, which two of the variants need.
        chosen = [*ks, max(2, tenth_of_width(d))]
        rank = torch.arange(1, d + 1, dtype=torch.float64)
        S = torch.stack([rank**-a for a in decays])
        samples = random_orthogonal_null(S, d, chosen, n_samples, generator)
        squares = torch.stack([samples[name].square() for name in names], dim=-1)  # (sample, rule, decay, variant)
        root = squares.mean(dim=0).sqrt()
        error = squares.std(dim=0) / (2 * root * n_samples**0.5)
        closed = [torch.stack([mean_square(VARIANTS[n], S, d, k) for n in names], dim=-1) for k in chosen]
        found = {"simulated": (dims, root), "error": (dims, error), "closed_form": (dims, torch.stack(closed).sqrt())}
        per_width.append(common.to_dataset(found | {"k": ("rule", chosen)}))
    ds = xr.concat(per_width, dim="width").transpose("rule", "width", "decay", "variant", missing_dims="ignore")
    rules = [*map(str, ks), "0.1 d"]
    ds = ds.assign_coords(width=list(widths), decay=list(decays), variant=names, rule=rules)
    return ds.assign_attrs(measure="null_curves", n_samples=n_samples, seed=seed, versions=versions())


def null_by_spectrum(k: int, seed: int = 0) -> pd.DataFrame:
    """Tabulate the normalised coupling of random bases over width and spectrum, neither of which changes it by much."""
    rows = []
    for d in sorted({k, *(width for width in (64, 512) if width > k)}):
        rank = torch.arange(1, d + 1, dtype=torch.float64)
        spectra = {"flat": rank**0} | {f"i^-{a:g}": rank**-a for a in (0.5, 1, 2)} | {"rank one": (rank == 1).double()}
        found = expected_null(torch.stack(list(spectra.values())), d, [k], [MAIN], seed=seed)[MAIN]
        rows += [(d, *row) for row in zip(spectra, (1 - found.value[0]).tolist(), found.error[0].tolist(), strict=True)]
    return pd.DataFrame(rows, columns=["width", "spectrum", "coupling", "error"])


def _random_bases(J: torch.Tensor, S: torch.Tensor, ks: Sequence[int], names: Sequence[str], seed: int = 0) -> tuple:
    """Return Jacobians' full spectra, and each variant's mean and standard error for random bases, (variant, k)."""
    # The spectrum beyond the measured head enters the null through its norm, and hardly through its shape.
    spectrum = filled_spectrum(S, J.shape[-1], torch.linalg.matrix_norm(J)).cpu()
    found = expected_null(spectrum, J.shape[-1], ks, names, n_samples=1000, seed=seed)
    parts = (torch.stack([getattr(found[name], part).mean(dim=-1) for name in names]) for part in ("value", "error"))
    return spectrum, *parts


def other_prompt(model: Model, prompt: str | torch.Tensor) -> str | torch.Tensor:
    """Return another prompt of the same kind: an embedded text, token ids reversed or random, or an image of noise."""
    if isinstance(prompt, torch.Tensor):
        generator = torch.Generator().manual_seed(0)
        if prompt.ndim == 2 and torch.equal(prompt, prompt.flip(1)):
            return random_input(model.hf, generator, prompt.shape[1])
        if prompt.ndim == 2:
            return prompt.flip(1)
        return torch.randn(prompt.shape, generator=generator).to(prompt)
    (text,) = inputs_for(model, [next(one for one in load_prompts(n=2) if one.text != prompt)])
    return text


def principal_directions(states: torch.Tensor, k: int) -> torch.Tensor:
    """Return the first K principal directions (d, K) of states (..., d), normalised so that all depths count alike."""
    flat = torch.nn.functional.normalize(states.flatten(0, -2), dim=-1)
    return torch.linalg.svd(flat - flat.mean(dim=0)).Vh[:k].mT


class _Part(NamedTuple):
    """Coupling values of the Jacobians, or of their traceless part, of one prompt."""

    values: torch.Tensor  #: Means over pairs (kind, variant, span, k).
    error: torch.Tensor  #: Standard error over draws of the conjugated ones (variant, span, k).
    S: torch.Tensor  #: Singular values (block, K).
    spectrum: torch.Tensor  #: The same, extended to the width.
    null: torch.Tensor  #: Mean for random bases (variant, k).
    null_error: torch.Tensor  #: Its standard error.


def _top(J: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    U, S, Vh, _ = top_triplets_stacked(J, k)
    return U, S, Vh.mT


def _of_part(
    J: torch.Tensor, other: Sequence[torch.Tensor], states: torch.Tensor,
    ks: Sequence[int], names: Sequence[str], seed: int,
) -> _Part:  # fmt: skip
    """Measure Jacobians against every kind of vectors; `other` holds those of another prompt."""
    U, S, V = _top(J, ks[-1])
    outliers = states.square().flatten(0, -2).mean(dim=0).topk(_OUTLIERS).indices.tolist()
    directions = principal_directions(states, U.shape[-1]).to(U).expand_as(U)
    sides = {"measured": (U, V), "other prompt": other, "state directions": (directions, directions)}
    means, error = [], torch.empty(0)
    for kind in KINDS:
        generator, draws = torch.Generator().manual_seed(seed + KINDS.index(kind)), []
        for _ in range(_DRAWS if kind == "conjugated" else 1):
            side = sides.get(kind) or surrogate_vectors(U, V, kind, generator, outliers)
            found = values_of_pairs(J, U, S, V, *side, ks, names)
            draws.append(_spans(torch.stack([found[name] for name in names])))
        means.append(torch.stack(draws).mean(dim=0))
        if kind == "conjugated":
            error = torch.stack(draws).std(dim=0) / _DRAWS**0.5
    return _Part(torch.stack(means), error, S, *_random_bases(J, S, ks, names, seed))


def _spans(values: torch.Tensor) -> torch.Tensor:
    """Return means of (..., K, L, L) over all ordered pairs of different blocks and over neighbours, (..., span, K)."""
    spans = different_pairs(values).double().mean(dim=-1), locality(values)[..., 1].double()
    return torch.stack(spans, dim=-2).cpu()


@common.measurement(version=5)
def measure_nulls(
    model: Model, prompts: common.Prompts, ks: Sequence[int] = UpToWidth((10, 30)), token: int = -1, seed: int = 0
) -> xr.Dataset:
    """Measure all variants of coupling across depth, and the same against surrogates of the model itself."""
    # `value` is the mean over ordered pairs of different blocks; `relative` sets it in proportion to the expectation
    # for random bases: 0 without coupling, 1 at perfect coupling. `rotated` draws that null once for each pair. Two
    # controls are no surrogates: `other prompt` keeps what a network has learned for all prompts alike, and `state
    # directions`, principal directions of the states on both sides, what the stream alone imposes. `normalised` holds
    # the main variant of the whole and of the traceless part, with its own vectors.
    given, ks, names = prompt_inputs(prompts, model), common.check_ks(model, ks), list(VARIANTS)
    if ks[0] < 2:
        raise ParameterError(f"ks is {ks!r}; some variants need off-diagonal entries, so K is at least 2")
    common.check_pairs(model)

    def of_one_prompt(prompt: str | torch.Tensor) -> common.Variables:
        (elsewhere,) = common.traces(model, [other_prompt(model, prompt)])
        place = token if -elsewhere.n_tokens <= token < elsewhere.n_tokens else -1
        J = common.depth_jacobians(elsewhere, place, forget=True)
        other = [_top(J, ks[-1])[::2], _top(without_isotropic(J), ks[-1])[::2]]
        (traced,) = common.traces(model, [prompt])
        states = traced.hidden.detach()
        J = common.depth_jacobians(traced, token, forget=True)
        squares, share = torch.linalg.matrix_norm(J).square(), isotropic_part(J).square() * J.shape[-1]
        whole = _of_part(J, other[0], states, ks, names, seed)
        closed = [[mean_square(VARIANTS[n], whole.spectrum, model.d_model, k).sqrt().mean() for k in ks] for n in names]
        rest = _of_part(without_isotropic(J), other[1], states, ks, [MAIN], seed)
        main, dims, of_parts = names.index(MAIN), ("kind", "variant", "k"), ("part", "kind", "span", "k")
        every = whole.values[:, :, 0]
        return {
            "value": (dims, every),
            "relative": (dims, torch.stack([relative_to_null(value, whole.null) for value in every])),
            "null": (dims[1:], whole.null),
            "null_error": (dims[1:], whole.null_error),
            "closed_form": (dims[1:], torch.tensor(closed)),
            "conjugated_error": (dims[1:], whole.error[:, 0]),
            "normalised": (of_parts, torch.stack([whole.values[:, main], rest.values[:, 0]])),
            "normalised_conjugated_error": (("part", "span", "k"), torch.stack([whole.error[main], rest.error[0]])),
            "normalised_null": (("part", "k"), torch.stack([whole.null[main], rest.null[0]])),
            "singular_values": (("block_1", "rank"), whole.S),
            "isotropic_share": (("block_1",), share / squares),
        }

    each = map(of_one_prompt, progress.bar(given, model, "prompt"))
    coords = {"k": ks, "variant": names, "kind": list(KINDS), "part": list(PARTS), "span": list(SPANS)}
    return common.concat_prompts(model, given, each, coords, measure="nulls", token=token, surrogate_seed=seed)


@common.measurement(version=4)
def measure_decisive(
    model: Model,
    prompts: common.Prompts,
    ks: Sequence[int] = (10, 30, 50),
    token: int = -1,
    boundary: str = "hidden_states",
) -> xr.Dataset:
    """Measure `released_norm` and `released_trace` at K = 10, 30, 50 and 10 % of the width, beside their null."""
    # The paper's final figure 1a plots values that agree with $1 - 1/\sqrt{\lfloor 0.1 d \rfloor}$, the value of 1 -
    # `released_trace` with K = 10 % of the width, a flat spectrum and no coupling. Whether they are that, or
    # coupling, is decided by measuring the same models.
    given, n_blocks = prompt_inputs(prompts, model), model.n_blocks
    common.check_pairs(model)
    fixed = [k for k in ks if k <= model.d_model]
    chosen = [*fixed, tenth_of_width(model.d_model)]
    # Ratio of the mean over all pairs, with the n_blocks zeros of the diagonal, to the mean over different pairs.
    with_diagonal = (n_blocks - 1) / n_blocks

    def of_one_prompt(J: torch.Tensor) -> common.Variables:
        triplets, found = common.couple_pairs(J, chosen, DECISIVE)
        value = torch.stack([different_pairs(found[name].cpu()).mean(dim=-1) for name in DECISIVE])
        _, null, error = _random_bases(J, triplets.S, chosen, DECISIVE)
        both = {"value": value, "null": null, "null_error": error}
        dims = ("variant", "rule", "pairs")
        return {name: (dims, torch.stack([x, x * with_diagonal], dim=-1)) for name, x in both.items()}

    each = map(of_one_prompt, common.jacobians_by_prompt(model, given, token, boundary))
    coords = {"variant": list(DECISIVE), "rule": [*map(str, fixed), "0.1 d"], "pairs": ["different", "all"]}
    ds = common.concat_prompts(model, given, each, coords, measure="decisive", token=token, boundary=boundary)
    return ds.assign(k=("rule", chosen))
