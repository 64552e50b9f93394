"""How many rows of a Jacobian are formed at once: the same numbers, and less at once where memory runs out."""

from functools import partial

import pytest
import torch
from families import loaded, named
from refusals import refused

from coupling_lib import memory
from coupling_lib.errors import CouplingError
from coupling_lib.jacobian import derivatives, tracing

pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")


def traced() -> tracing.Trace:
    return tracing.trace(loaded(named("gpt2")), torch.arange(1, 12)[None])


def test_batch_size_halves_beside_large_results(monkeypatch):
    trace = traced()
    each = 16 * trace.d_model * trace.dtype.itemsize
    monkeypatch.setattr(derivatives, "_BATCH_BYTES", {"cpu": 40 * each})
    assert [derivatives.batch_size(trace, 1, beside=size) for size in (2**25 - 1, 2**25)] == [40, 20]
    whole = traced().jacobian(1).dense()
    monkeypatch.setattr(derivatives, "batch_size", lambda *_, **__: 5)
    torch.testing.assert_close(traced().jacobian(1).dense(), whole, rtol=1e-12, atol=1e-14)


def limited(monkeypatch, most: int) -> list[int]:
    """Memory that runs out with more cotangents at once; the sizes of the batches that were tried."""
    tried, vmap = [], torch.vmap

    def pulled(pull, cotangents):
        tried.append(len(cotangents))
        if len(cotangents) > most:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return vmap(pull)(cotangents)

    monkeypatch.setattr(torch, "vmap", lambda pull: partial(pulled, pull))
    monkeypatch.setattr(derivatives, "_AT_MOST", {})
    return tried


def test_batches_shrink_where_memory_runs_out(monkeypatch):
    whole, trace = [traced().jacobian(block).dense() for block in (0, 1)], traced()
    tried = limited(monkeypatch, most=10)
    with pytest.warns(RuntimeWarning) as caught:
        found = [trace.jacobian(block).dense() for block in (0, 1)]
    (warning,) = caught
    assert str(warning.message) == "memory ran out with 32 rows of a Jacobian at once; going on with 8 at a time"
    # What was learnt in the first block holds for the second.
    assert tried == [32, 16, 8, 8, 8, 8, 8, 8, 8, 8]
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-14)
    limited(monkeypatch, most=0)
    message = "a single row of a Jacobian was formed; free some, take a shorter prompt"
    refused(CouplingError, message, trace.jacobian(0).dense)


def test_errors_of_exhausted_memory_are_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**55)
    known = [raised.value, torch.OutOfMemoryError("CUDA out of memory"), MemoryError()]
    known += [OSError(12, "Cannot allocate memory"), RuntimeError("the sizes differ")]
    assert list(map(memory.ran_out, known)) == [True, True, True, True, False]
