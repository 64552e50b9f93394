"""A trace: one forward pass of a model on one input, with the calls of all blocks.

States are recorded in the precision the model runs in; everything derived from them is float32 or wider.
"""

import warnings
import weakref
from functools import cached_property

import torch
from torch import Tensor

from coupling_lib.blocks import attention
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.makeup import makeups, modifications
from coupling_lib.blocks.record import Blocks, first_row, record
from coupling_lib.blocks.state import restored
from coupling_lib.errors import ParameterError, UntrustworthyResultError, is_whole
from coupling_lib.jacobian.differentiate import Traced
from coupling_lib.jacobian.operator import BlockJacobian
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive, refuse_narrow

# Models that were warned of once: their last token is not of the text.
_WARNED: weakref.WeakSet[Model] = weakref.WeakSet()


class Trace(Traced):
    """Record of one forward pass.

    Args:
        model: the model.
        inputs: its input, `input_ids` `(1, n)` or `pixel_values` `(1, c, h, w)`.
        calls: the call of each block, in order of depth.
        tokens: the text of each token, or None where there is no tokenizer.
        blocks: the model's blocks, with their modifications and the routes for them.
        changes: changes that the pass made in the model, which were undone.
        first: the stream's row of the first token: a model may add rows of its own before and after the tokens.
        last_token_warning: the warning, given once, that the last token is not of the text; empty where it is.
    """

    @property
    def route(self) -> str:
        """Route by which block maps are evaluated: `"attention"`, `"cache"`, `"state"` or the whole `"sequence"`."""
        return self.blocks.route

    @property
    def post_norm(self) -> bool:
        """True if blocks normalise their stream, so that block minus identity couples trivially."""
        return bool(self.blocks.post_norm)

    @cached_property
    def hidden(self) -> Tensor:
        """States X^0 .. X^L `(L + 1, n, d)` at the blocks' own boundaries, float32 or float64.

        The last state is the last block's output, *before* the final norm; Hugging Face's `hidden_states[-1]` is after
        it.
        """
        states = [self.calls[0].input, *(call.output for call in self.calls)]
        return torch.cat([state[:, self._tokens].to(self.device, self.dtype) for state in states])

    def forget(self, block: int) -> None:
        """Release the states, keys and values recorded for a block, from 0."""
        # The last block's are kept, which give the number of tokens.
        if block != self.n_blocks - 1:
            self.calls[block] = None

    def position(self, token: int, name: str = "token") -> int:
        """Return a token position, possibly counted from the end, as one from 0 to n - 1; `name` is for the error."""
        if not is_whole(token) or not -self.n_tokens <= token < self.n_tokens:
            raise ParameterError(
                f"{name} is {token!r}; this input has {self.n_tokens} tokens, 0 to {self.n_tokens - 1}; give one as a "
                "whole number"
            )
        if token == -1 and self.last_token_warning and self.model not in _WARNED:
            _WARNED.add(self.model)
            warnings.warn(self.last_token_warning, stacklevel=3)
        return int(token) % self.n_tokens

    def jacobian(
        self, block: int, token_in: int = -1, token_out: int | None = None, boundary: str = "block"
    ) -> BlockJacobian:
        """Return the residual Jacobian of a block, as a lazy linear operator.

        J^l_{t1 t2} = d f^l(X^{l-1})_{t2} / d x^{l-1}_{t1}  (paper, section 2), of shape (d, d).

        Args:
            block: the block, counted from 0; negative counts from the end.
            token_in: t1, the position that is varied.
            token_out: t2, the position that is read; `token_in` by default. In a causal model it is not before t1:
                such a Jacobian is zero by construction, and its use raises `UntrustworthyResultError`.
            boundary: `"block"` for the block itself; `"hidden_states"` for the released code's reading,
                whose last block includes the final norm; `"branch"`, for a model with post-norm blocks, for what a
                block's sub-layers add to the stream before it is normalised, see `postnorm`.

        Returns:
            the Jacobian; nothing is computed until it is used.

        Raises:
            ParameterError: if the block or a token is no whole number or does not exist, or the boundary is unknown.
        """
        if not is_whole(block) or not -self.n_blocks <= block < self.n_blocks:
            raise ParameterError(
                f"block is {block!r}; {self.model.name} has {self.n_blocks}, counted from 0; give a whole number "
                f"from 0 to {self.n_blocks - 1}"
            )
        self.check_boundary(boundary)
        start = self.position(token_in, "token_in")
        end = start if token_out is None else self.position(token_out, "token_out")
        return BlockJacobian(self, int(block) % self.n_blocks, start, end, boundary)


@exclusive
def trace(model: Model, given: Tensor) -> Trace:
    """Run a model once on token ids or pixels, and record every block's input, output and call."""
    refuse_narrow()
    inputs, tokens = model_inputs(model, given), None
    _check_as_loaded(model)
    with restored(model.hf) as changes:
        calls = record(model.hf, model.blocks, inputs)
        ids = inputs.get("input_ids")
        first = 0 if ids is None else first_row(model.hf, model.blocks, ids, calls[0].input)
    _check_finite(model, calls)
    with changes.applied():
        blocks = _rechecked_blocks(model, calls)
    if ids is not None and model.tokenizer is not None:
        tokens = [model.tokenizer.decode([token]) for token in ids[0].tolist()]
    return Trace(model, inputs, calls, tokens, blocks, changes, first)


def model_inputs(model: Model, given: Tensor) -> dict[str, Tensor]:
    """Return token ids or pixels under the name of a model's argument, and refuse anything else."""
    hf, wanted = model.hf, model.hf.main_input_name
    pixels = wanted == "pixel_values"
    if not isinstance(given, Tensor):
        raise ParameterError(f"the input is a {type(given).__name__}; give a tensor of {wanted}")
    whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    ndim, typed, form = 2, whole, "(1, n) with n >= 1, integer"
    if pixels:
        ndim, typed, form = 4, given.is_floating_point(), "(1, channels, height, width), floating point"
    plain = given.layout == torch.strided and not given.is_meta
    if given.ndim != ndim or not typed or not plain or len(given) != 1 or given.numel() == 0:
        raise ParameterError(f"the input has shape {tuple(given.shape)} and dtype {given.dtype}; {wanted} is {form}")
    size = 0 if pixels else hf.config.get_text_config().vocab_size
    if not pixels and not 0 <= int(given.long().min()) <= int(given.long().max()) < size:
        raise ParameterError(f"a token id lies outside the vocabulary of {model.name}, 0 to {size - 1}")
    return {wanted: given.to(hf.device, hf.dtype if pixels else torch.long, copy=True)}  # models may overwrite it


def _check_as_loaded(model: Model) -> None:
    """Refuse a model whose attention or mode was changed since it was validated."""
    if (in_force := attention.current(model.hf)) != model.blocks.attention:
        raise ParameterError(
            f"{model.name}: its attention was set to {in_force!r} after it was loaded, which may make another "
            "model of it; wrap it again with cl.wrap_model"
        )
    # A parametrisation that was added since is in training mode, and does not depend on that.
    if any(module.training for name, module in model.hf.named_modules() if "parametrizations" not in name):
        raise ParameterError(
            f"{model.name} is in training mode, in which a block has many answers; call model.hf.eval()"
        )


def _rechecked_blocks(model: Model, calls: list[BlockCall]) -> Blocks:
    """Return a model's blocks as of the trace, validated again where they changed since."""
    blocks = model.blocks
    if (tuple(map(modifications, blocks.modules)), makeups(blocks.modules)) == (blocks.modifications, blocks.makeup):
        return blocks
    if model.recheck is None:
        raise UntrustworthyResultError(f"{model.name}: blocks were changed since they were checked; wrap it again")
    return model.recheck(model.hf, blocks, calls)


def _check_finite(model: Model, calls: list[BlockCall]) -> None:
    """Refuse states that are not finite, and name the block where they begin."""
    for number, state in enumerate([calls[0].input, *(call.output for call in calls)]):
        if not bool((finite := state.isfinite().all(dim=-1)).all()):
            where = f"after block {number}" if number else "before block 1, in the embedding"
            raise UntrustworthyResultError(
                f"{model.name}: the state at position {int((~finite[0]).nonzero()[0])} holds NaN or infinite values "
                f"{where}; look for such weights, or take precision='float32' if half precision overflowed"
            )
