"""The stills of the front page's story: every moment shows its own step, map and matrix, on one scale."""

import numpy as np
import xarray as xr

from companion.figures import story
from companion.tables import generalization

STEPS = (0, 10, 100, 1000, 10_000)


def made_up() -> tuple[xr.Dataset, dict[str, xr.DataArray]]:
    """A training of three blocks, most coupled at step 100, and a decoder of four."""
    rng = np.random.default_rng(0)
    peak = np.array([0.0, 0.1, 0.5, 0.3, 0.1])
    maps = peak[:, None, None] + 0.05 * rng.random((5, 3, 3))
    maps[:, *np.diag_indices(3)] = np.nan
    variables = {"coupling": (("step", "block_jacobian", "block_vectors"), maps)}
    variables |= {"A": (("step", "row", "column"), np.eye(4) * peak[:, None, None] + 0.1 * rng.random((5, 4, 4)))}
    variables |= {"mean_coupling": ("step", np.nanmean(maps, axis=(1, 2))), "loss": ("step", np.linspace(7, 3, 5))}
    training = xr.Dataset(variables, {"step": list(STEPS)}, {"by_chance": 0.05, "pair": (3, 2)})
    decoder = np.where(np.eye(4, dtype=bool), np.nan, rng.random((4, 4)))
    return training, {"a decoder": xr.DataArray(decoder, dims=("block_jacobian", "block_vectors"))}


def test_every_moment_shows_its_own_step():
    training, decoders = made_up()
    taken = story.take_stills(training, decoders, generalization.figure_1a())
    figure = story.draw_stills(taken)
    maps = [axes.images[0] for axes in figure.get_axes() if axes.get_title().startswith("step")]
    for step, image in zip(story.STILLS, maps, strict=True):
        np.testing.assert_allclose(image.get_array().filled(np.nan), training.coupling.sel(step=step))
        assert image.get_clim() == (0, story.highest(taken)) == (0, float(decoders["a decoder"].max()))
    (other,) = (axes for axes in figure.get_axes() if axes.get_title() == "a decoder")
    assert other.get_xlabel() == f"mean coupling {float(decoders['a decoder'].mean()):.2f}"
