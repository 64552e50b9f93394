"""The public names that scripts outside the project call, as they are written down for them."""

import subprocess
import sys

import pytest
import torch

import coupling_lib as cl
from coupling_lib.inputs.prompts import PARIS


def test_public_names_are_reachable():
    assert all(callable(getattr(cl, name)) or isinstance(getattr(cl, name), dict) for name in cl.__all__)
    assert set(cl.__all__) <= set(dir(cl)) and len(cl.__all__) <= 42
    with pytest.raises(AttributeError, match="no attribute 'measure_deth'"):
        cl.measure_deth  # ruff: ignore[useless-expression]
    model = cl.load_model("nano-llama", precision="nf4", untrained=False, revision=None, device=None)
    assert (model.n_blocks, model.d_model, model.precision) == (12, 96, "nf4")
    figures = "depth, emergence, show, style, trajectories"
    code = f"import sys; from companion.figures import {figures}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_trace_and_jacobian_have_documented_shapes(model):
    trace = cl.trace(model, PARIS)
    assert (trace.n_blocks, trace.d_model) == (12, 96) and trace.n_tokens == len(trace.tokens)
    assert trace.hidden.shape == (13, trace.n_tokens, 96)
    J = trace.jacobian(block=8, token_in=-1, token_out=None)
    V = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
    assert J.shape == (96, 96) and J.dense().shape == (96, 96)
    assert (J @ V).shape == (J.T @ V).shape == (96, 3)
    U, S, Vh, residual = J.svd(k=10)
    assert [x.shape for x in (U, S, Vh, residual)] == [(96, 10), (10,), (10, 96), (10,)]
    assert J.svd(k=10).residual.max() < 1e-5
    ids = torch.tensor([model.tokenizer(PARIS)["input_ids"]])
    assert torch.equal(cl.trace(model, ids).hidden, trace.hidden)
    assert trace.route in ("attention", "cache", "state", "sequence")
