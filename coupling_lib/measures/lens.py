"""The Jacobian lens averaged over tokens and prompts, and the interval of that average."""

from collections.abc import Sequence

import torch
import xarray as xr

from coupling_lib.errors import ParameterError, check_whole, is_whole, shown
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.jacobian.lens import lens
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.models.model import Model

# Tokens processed at once, more where matrices are small: as many matrices (d, d) are held beside the sum.
_AT_ONCE, _SMALL = 8, 2**19


@common.measurement(version=1)
def measure_lens(
    model: Model, prompts: common.Prompts, tokens: Sequence[int] | str = (-1,), depths: Sequence[int] | None = None
) -> xr.Dataset:
    r"""Average the Jacobian lens of each prompt over its tokens.

    $$\frac{1}{T} \sum_t \frac{\partial x^L_t}{\partial x^l_t}, \qquad
      \frac{\partial x^L_t}{\partial x^l_t} = (I + J^L_{tt}) \cdots (I + J^{l+1}_{tt}),$$

    from the residual Jacobians of the paper's section 2. Each token is differentiated at its own position; programs
    that fit lenses add a token's effect on all later ones, another quantity.

    Args:
        model: a causal model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        tokens: the positions t, -1 being the last; or "all".
        depths: the depths l that are kept, from 0 (the embedding) to L; all by default.

    Returns:
        a dataset with `lens` `(prompt, depth, output, input)`, units of state by state, and `tokens` `(prompt,)`, how
        many tokens were averaged. A prompt takes 4 (L + 1) d^2 bytes at all depths. `lens_mean` averages over prompts.

    Raises:
        ParameterError: if a token or a depth does not exist, or there is no prompt.
        UnsupportedModelError: if the model is bidirectional.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_lens(cl.load_model("nano-neox"), ["It was the best of times"], depths=(0, 6))
        >>> dict(ds.lens.sizes)
        {'prompt': 1, 'depth': 2, 'output': 96, 'input': 96}
    """
    given = prompt_inputs(prompts, model)
    tokens, depths = ([one] if is_whole(one) else one for one in (tokens, depths))
    if (isinstance(tokens, str) and tokens != "all") or not len(tokens):
        raise ParameterError(f"tokens is {shown(tokens)}; it must be token positions, such as (-1,), or 'all'")
    chosen = list(range(model.n_blocks + 1) if depths is None else depths)
    for depth in chosen:
        check_whole("a depth", depth, 0, model.n_blocks, f"{model.name} has {model.n_blocks} blocks")
    each = (_of_one_prompt(traced, tokens, chosen) for traced in common.traces(model, given))
    return common.concat_prompts(model, given, each, {"depth": chosen}, measure="lens", tokens_chosen=str(tokens))


def _of_one_prompt(traced: Trace, tokens: Sequence[int] | str, depths: list[int]) -> common.Variables:
    lens(traced)  # refuses a model without a lens
    positions = range(traced.n_tokens) if isinstance(tokens, str) else [traced.position(token) for token in tokens]
    total = torch.zeros(len(depths), traced.d_model, traced.d_model, dtype=traced.dtype, device=traced.device)
    at_once = max(_AT_ONCE, _SMALL // traced.d_model**2)
    for first in range(0, len(positions), at_once):
        pairs = [(token, token) for token in positions[first : first + at_once]]
        M = torch.eye(traced.d_model, dtype=traced.dtype, device=traced.device).repeat(len(pairs), 1, 1)
        for depth in range(traced.n_blocks, -1, -1):
            if depth < traced.n_blocks:
                M = torch.baddbmm(M, M, block_jacobians(traced, depth, pairs).to(M))
            for place in [place for place, kept in enumerate(depths) if kept == depth]:
                total[place] += M.sum(dim=0)
    return {"lens": (("depth", "output", "input"), total / len(positions)), "tokens": len(positions)}


def lens_mean(ds: xr.Dataset) -> xr.Dataset:
    """Average `measure_lens` over prompts: `lens`, and `relative_error`, its standard error over its norm."""
    n, mean = ds.sizes["prompt"], ds.lens.mean("prompt")
    # One prompt has no error.
    variance = ((ds.lens - mean) ** 2).sum("prompt") / (n - 1 if n > 1 else float("nan"))
    error = (variance / n).sum(("output", "input"), skipna=False) ** 0.5
    length = (mean**2).sum(("output", "input")) ** 0.5
    return xr.Dataset({"lens": mean, "relative_error": error / length}, attrs=ds.attrs | {"n_prompts": n})
