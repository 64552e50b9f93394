"""Precision of the stored weights: float32, bfloat16, float16, or few bits by bitsandbytes.

For weights of 4 bits the dense copy that is differentiated (`storage`) is the map that the block evaluates. An int8
block also rounds its activations, a staircase whose true derivative is zero almost everywhere; what is measured is the
map with dequantised weights and unrounded activations, linearised at the states of the int8 model.
"""

import logging
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from coupling_lib.errors import ParameterError, require, shown

# bitsandbytes logs at import that an optional faster 4-bit kernel is not installed; its own one is used then.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = (*_DTYPES, "nf4", "fp4", "int8")


def loading_arguments(precision: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load weights in a precision."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ParameterError(f"precision is {shown(precision)}; it must be one of {', '.join(PRECISIONS)}")
    if precision in _DTYPES:
        return {"dtype": _DTYPES[precision]}
    require("bitsandbytes", "quantised", f"precision {precision!r}")
    # Named in full, because transformers defaults to fp4.
    in_4_bits = dict(load_in_4bit=True, bnb_4bit_quant_type=precision, bnb_4bit_compute_dtype=torch.float32)
    quantisation = BitsAndBytesConfig(**{"load_in_8bit": True} if precision == "int8" else in_4_bits)
    return {"dtype": torch.float32, "quantization_config": quantisation}
