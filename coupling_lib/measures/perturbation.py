"""Perturbation: noise on one token's embedding, propagated through the network and through its linearisation."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from coupling_lib.blocks.call import residual_stream
from coupling_lib.blocks.record import nnsight_view
from coupling_lib.errors import ParameterError, check_whole, shown
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.metrics.coupling import trustworthy
from coupling_lib.metrics.dynamics import random_steps
from coupling_lib.metrics.nulls import filled_spectrum
from coupling_lib.models.model import Model
from coupling_lib.svd.triplets import top_triplets_stacked

CARRIERS = ("network", "linear", "random")
"""Maps that propagate a perturbation from block to block; see `measure_perturbation`."""

# Bytes of the states inside one block for all copies of a prompt that are run together.
_BATCH_BYTES = 2**28

# Tolerated relative rounding error of the noise in the first state; by the last block it is about forty times that.
_ROUNDED = 0.01

# Singular values of each block that the null uses exactly; the rest is spread evenly.
_LARGEST = 10


@common.measurement(version=2)
def measure_perturbation(
    model: Model,
    prompts: common.Prompts,
    noise: Sequence[float] = (0.03, 0.1, 0.3, 1.0),
    draws: int = 4,
    token: int = -1,
    seed: int = 0,
    kind: str | None = None,
) -> xr.Dataset:
    r"""Add noise to one token's embedding and compare its states with the clean ones (paper, figure 32).

    The perturbed embedding is $x^0 + \varepsilon \lVert x^0 \rVert\, g$ with $g$ a uniformly random direction of
    length 1, the same at every noise level $\varepsilon$ of one draw; for another `kind` it is normal. Three carriers
    propagate it:

    - `network`: the network itself, run again with the first block's input changed at that token by nnsight;
    - `linear`: $\delta^l = (I + J_l)\,\delta^{l-1}$ with the Jacobians of the clean run, giving $x^l + \delta^l$;
    - `random`: the same with random singular vectors in every block, the null.

    Where attention is causal the network, like $J_{tt}$, moves the perturbed token alone. In an encoder or a vision
    transformer the other tokens move and act back, which `linear` leaves out; `earlier_moved` says how much they moved.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        noise: relative noise levels, each above 0.
        draws: number of random directions per prompt.
        token: the position that is perturbed and followed; -1 is the last.
        seed: seed of the directions.
        kind: None; "gaussian", $g$ normal with variance $1/d$; or "absolute", $\lVert x^0 \rVert\, g$ standard normal.

    Returns:
        a dataset with level 0 the embedding and the variables

        - `cosine` `(prompt, carrier, noise, draw, level)` of the perturbed state with the clean one;
        - `amplification`, of the same dimensions, $\lVert \delta^l \rVert / \lVert \delta^0 \rVert$;
        - `linear_error` `(prompt, noise, draw, level)`: distance between the changes that the network and the
          linearisation make, relative to the former;
        - `earlier_moved` `(prompt,)`: largest change of the tokens before this one after the last block, relative to
          their norm; rounding in a causal model.

    Raises:
        ParameterError: if a noise level is not above 0, `draws` is below 1, a token is missing, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_perturbation(cl.load_model("nano-neox"), ["It was the best of times"], noise=(0.01,))
        >>> bool(ds.cosine.sel(carrier="network", level=0).min() > 0.999)
        True
    """
    given, noise = prompt_inputs(prompts, model), noise if isinstance(noise, str) else np.ravel(noise).tolist()
    if not noise or not all(type(level) in (int, float) and 0 < level < np.inf for level in noise):
        raise ParameterError(f"noise is {shown(noise)}; it must be relative noise levels above 0, such as (0.1, 1.0)")
    noise = [float(level) for level in noise]
    check_whole("draws", draws, 1)
    if kind not in (None, "gaussian", "absolute"):
        raise ParameterError(f"kind is {shown(kind)}; it must be None, 'gaussian' or 'absolute'")

    each = (
        _of_one_prompt(traced, J, traced.position(token), noise, draws, common.generator_for(prompt, seed), kind)
        for (traced, J), prompt in zip(common.traced_jacobians(model, given, token), given, strict=True)
    )
    coords = {"carrier": list(CARRIERS), "noise": noise, "level": range(model.n_blocks + 1)}
    details = {"measure": "perturbation", "draws": draws, "token": token, "noise_seed": seed}
    details |= {"kind": kind} if kind else {}
    return common.concat_prompts(model, given, each, coords, **details)


def _of_one_prompt(
    traced: Trace, J: torch.Tensor, position: int, noise: list[float], draws: int, generator: torch.Generator,
    kind: str | None,
) -> common.Variables:  # fmt: skip
    x = traced.hidden[:, position]
    directions = torch.randn(draws, traced.d_model, generator=generator).to(x)
    lengths = {"gaussian": traced.d_model**0.5, "absolute": x[0].norm()}
    directions = directions / lengths.get(kind, directions.norm(dim=-1, keepdim=True))
    added = (torch.tensor(noise).to(x)[:, None, None] * directions * x[0].norm()).flatten(0, 1)
    states, moved = perturbed_states(traced, position, added)
    linear = [added]
    for matrix in J:
        linear.append(linear[-1] + linear[-1] @ matrix.mT)
    # The few largest singular values and the Frobenius norm settle how long a random direction becomes.
    largest = top_triplets_stacked(J, min(_LARGEST, traced.d_model)).S
    spectrum = filled_spectrum(largest, traced.d_model, torch.linalg.matrix_norm(J))
    random = random_steps(spectrum, added, len(added), generator)
    changes = torch.stack([states - x, torch.stack(linear, dim=1), random])
    changes = changes.unflatten(1, (len(noise), draws))  # (carrier, noise, draw, level, d)
    dims = ("carrier", "noise", "draw", "level")
    lengths = trustworthy(changes.norm(dim=-1), "length of what noise changes")
    arrived = ((changes[0] - changes[1]).norm(dim=-1) / lengths[1])[..., 0].amax(dim=1)
    if lost := [level for level, error in zip(noise, arrived.tolist(), strict=True) if not error <= _ROUNDED]:
        warnings.warn(
            f"{traced.model.name}: noise {lost} of the embedding is rounded by more than {_ROUNDED:.0%} "
            "before the first block, so results at these levels are partly rounding; take more noise or wider weights",
            stacklevel=2,
        )
    return {
        "cosine": (dims, torch.cosine_similarity(x + changes, x.expand_as(changes), dim=-1)),
        "amplification": (dims, lengths / lengths[..., :1]),
        "linear_error": (dims[1:], (changes[0] - changes[1]).norm(dim=-1) / lengths[0]),
        "earlier_moved": moved,
    }


@torch.no_grad()
def perturbed_states(traced: Trace, position: int, added: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Run a model again with something added to one token's embedding, and return that token's states."""
    together = max(1, _BATCH_BYTES // (64 * traced.n_tokens * traced.d_model))
    runs = [_intervened(traced, position, part) for part in added.split(together)]
    states = torch.cat([states for states, _ in runs]).to(traced.hidden.dtype)
    if position == 0:
        return states, 0.0
    clean = traced.hidden[-1, :position]
    moved = max(float((others - clean).norm(dim=(1, 2)).max()) for _, others in runs)
    return states, moved / float(clean.norm())


def _intervened(traced: Trace, position: int, added: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one batch: states of the token after every block, and of earlier tokens after the last."""
    model, position = traced.model, traced.first + position
    tracer, envoys = nnsight_view(model.hf, model.blocks)
    inputs = {name: value.expand(len(added), *value.shape[1:]) for name, value in traced.inputs.items()}
    if hasattr(model.hf.config, "use_cache"):
        inputs["use_cache"] = False
    with tracer.trace(**inputs) as run:
        states = list().save()
        changed = envoys[0].input.clone()
        changed[:, position] += added.to(changed)
        envoys[0].input = changed
        states.append(changed[:, position])
        for envoy in envoys:
            stream = residual_stream(envoy.output, changed.shape)
            states.append(stream[:, position])
        others = stream[:, traced.first : position].save()
        run.stop()
    return torch.stack([state.to(traced.device) for state in states], dim=1), others.to(traced.device)
