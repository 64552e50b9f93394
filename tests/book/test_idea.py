"""The pictures of "The idea in five minutes": the toy and the pair against plain arithmetic."""

import idea
import numpy as np
import pytest
import xarray as xr

import coupling_lib as cl
from companion.figures.figure_reader import figures_in
from companion.tables.arrays import side_by_side


def coupling_of(A: np.ndarray) -> float:
    return 1 - np.linalg.norm(A - np.diag(np.diag(A))) / np.linalg.norm(A)


def test_toy_matrices_and_couplings_are_those_of_arithmetic():
    toy = idea.take_toy(seed=3, turn=30.0)
    same, turned, unrelated = (abs(toy.A.sel(case=case).values) for case in idea.CASES)
    np.testing.assert_allclose(same, np.diag(idea.FIRST), atol=1e-12)
    c, s = np.cos(np.pi / 6), np.sin(np.pi / 6)
    expected = [[3 * c**2 + 2 * s**2, c * s, 0], [c * s, 3 * s**2 + 2 * c**2, 0], [0, 0, 1]]
    np.testing.assert_allclose(turned, expected, atol=1e-12)
    V = toy.vectors.sel(case=idea.CASES[2]).values
    np.testing.assert_allclose(V.T @ V, np.eye(3), atol=1e-12)
    # Whatever U is, a column of A is as long as J v, and v is the input direction that is drawn.
    np.testing.assert_allclose(np.linalg.norm(unrelated, axis=0), np.linalg.norm(np.diag(idea.FIRST) @ V, axis=0))
    toy = idea.take_toy()
    wanted = [coupling_of(toy.A.sel(case=case).values) for case in toy.case]
    np.testing.assert_allclose(toy.coupling, wanted, atol=1e-12)
    assert toy.coupling.values[0] == pytest.approx(1.0) and np.all(np.diff(toy.coupling.values) < -0.1)


@pytest.fixture(scope="module")
def networks() -> dict[str, xr.Dataset]:
    models = {name: cl.load_model("nano-neox", untrained=name == "untrained") for name in ("untrained", "trained")}
    return {name: cl.measure_depth(model, cl.load_prompts(n=2), ks=(10,)) for name, model in models.items()}


def test_pair_shows_first_jacobian_in_second_singular_vectors(networks):
    pair = idea.take_pair(side_by_side(**networks), (7, 5))
    assert list(pair.network.values) == ["untrained", "trained"]
    for name, ds in networks.items():
        A = ds.matrix.isel(block_1=6, block_2=4).values
        one = pair.sel(network=name)
        np.testing.assert_allclose(one.values, abs(A) / float(ds.singular_values[0, 6, 0]), rtol=1e-6)
        assert float(one.coupling) == pytest.approx(coupling_of(A), abs=1e-5)


def test_pictures_say_their_couplings_and_trained_comes_first(networks, monkeypatch):
    toy = idea.take_toy()
    labels = [axes.get_xlabel() for axes in idea.draw_toy(toy).axes if axes.get_xlabel()]
    assert labels == [f"coupling {value:.2f}" for value in toy.coupling.values]
    pair = idea.take_pair(side_by_side(**networks), (7, 5))
    labels = [axes.get_xlabel() for axes in idea.draw_pair(pair).axes][:2]
    assert labels == [f"coupling {float(value):.2f}" for value in pair.coupling]
    monkeypatch.setattr(idea, "_before_and_after", lambda: side_by_side(**networks))
    (figure,) = figures_in(idea.shared_directions())
    for kind, picture in figure.pictures.values():
        assert kind == "svg" and picture.index(b"<!-- Trained -->") < picture.index(b"<!-- Untrained -->")
