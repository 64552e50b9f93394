"""Trajectory measurements against their formulas, written out."""

from __future__ import annotations

import numpy as np

import coupling_lib as cl
from coupling_lib.prompts import PARIS


def test_scores_equal_their_formulas_on_the_recorded_states():
    model = cl.load_model("nano-llama")
    ds = cl.measure_trajectories(model, [PARIS, "It was the best of times"])
    x = cl.trace(model, PARIS).hidden[:, -1].double().numpy()
    steps = np.diff(x, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    np.testing.assert_allclose(
        ds.line_shape_score[0], 12 / np.linalg.norm((steps / lengths[:, None]).sum(0)), rtol=1e-5
    )
    alpha = np.diff(np.log(np.linalg.norm(x, axis=1)))
    np.testing.assert_allclose(ds.expodistance[0], alpha.var() / alpha.mean() ** 2, rtol=1e-4)
    np.testing.assert_allclose(ds.equidistance[0], lengths.std() / lengths.mean(), rtol=1e-4)
    np.testing.assert_allclose(ds.norm[0], np.linalg.norm(x, axis=1), rtol=1e-5)
    assert dict(ds.norm.sizes) == {"prompt": 2, "level": 13}
