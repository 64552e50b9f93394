"""Peak memory above the weights, measured in a process of its own so that nothing earlier hides it.

python -m benchmarks.memory gpt2-small 64 ours
"""

from __future__ import annotations

import argparse
import json

import coupling_lib as cl
from benchmarks import released, stages
from benchmarks.machine import MemoryPeak
from benchmarks.shapes import SHAPES, prompt_ids

# Tokens of a first prompt, which reads the code of the libraries from disk and is not measured.
_UNCOUNTED = 8


def peak_above_weights(shape: str, n_tokens: int, method: str) -> dict[str, int]:
    """Measure a method on one prompt, in this process."""
    model = SHAPES[shape].build()
    ids = prompt_ids(model, n_tokens)
    trace, short = 0, prompt_ids(model, _UNCOUNTED)
    if method == "ours":
        stages.ours(model, short)
        with MemoryPeak() as peak:
            stages.ours(model, ids)
        kept, trace = model.n_blocks, _bytes(cl.trace(model, ids))
    else:
        with released.attention_set_to(model.hf, "eager"):
            released.jacobian(released.hidden_states(model.hf, short), model.n_blocks // 2)
            with MemoryPeak() as peak:
                released.jacobian(released.hidden_states(model.hf, ids), model.n_blocks // 2)
        kept = 1
    return {"peak": peak.above, "store": 4 * kept * model.d_model**2, "trace": trace, "uncounted": _UNCOUNTED}


def _bytes(traced: cl.Trace) -> int:
    """Sum the memory of a trace's tensors, each storage once."""
    kept = [tensor for call in traced.calls for pair in call.keys_values.values() for tensor in pair]
    kept += [stream for call in traced.calls for stream in (call.input, call.output)]
    pieces = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(pieces.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokens", type=int)
    parser.add_argument("method", choices=("ours", "released"))
    given = parser.parse_args()
    print(json.dumps(peak_above_weights(given.shape, given.tokens, given.method)))
