"""The public names that scripts outside the project call, as they are written down for them."""

import pytest

import coupling_lib as cl


def test_public_names_are_reachable():
    assert all(callable(getattr(cl, name)) or isinstance(getattr(cl, name), dict) for name in cl.__all__)
    assert set(cl.__all__) <= set(dir(cl)) and len(cl.__all__) <= 42
    with pytest.raises(AttributeError, match="no attribute 'measure_deth'"):
        cl.measure_deth  # ruff: ignore[useless-expression]
    model = cl.load_model("nano-llama", precision="nf4", untrained=False, revision=None, device=None)
    assert (model.n_blocks, model.d_model, model.precision) == (12, 96, "nf4")
