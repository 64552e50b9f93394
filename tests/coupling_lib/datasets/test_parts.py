"""What measures hold of the traceless part, against the whole matrices in float64."""

import numpy as np
import pytest
import torch
from reference import coupling, miscoupling
from refusals import refused

import coupling_lib as cl
from companion.tables import effects
from companion.tables.arrays import side_by_side
from coupling_lib.datasets.parts import SHARED, VARIANTS_OF_PARTS, known_shared_part, with_shared_part
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures import nulls

K, VARIANT, PROMPTS = 5, "normalized_miscoupling", [PARIS, "It was the best of times"]


@pytest.fixture(scope="module")
def measured(model):
    return cl.measure_depth(model, PROMPTS, ks=(K,))


def traceless(jacobians: list[torch.Tensor]) -> list[np.ndarray]:
    """Take tr(J)/d off each diagonal, one matrix after the other, in float64."""
    return [J.double().numpy() - np.trace(J.double().numpy()) / len(J) * np.eye(len(J)) for J in jacobians]


def all_pairs(part) -> float:
    return float(part[VARIANT].where(part.block_1 != part.block_2).mean())


def test_depth_of_shared_part_matches_traceless_matrices(model, measured):
    shared, traced, others = cl.shared_part(measured), cl.trace(model, PARIS), [1, 6, 11]
    whole = [traced.jacobian(block).dense() for block in range(model.n_blocks)]
    rest = traceless(whole)
    np.testing.assert_allclose(measured.isotropic[0], [float(J.trace()) / 96 for J in whole], atol=1e-6)
    np.testing.assert_allclose(shared.frobenius_norm[0], [np.linalg.norm(J) for J in rest], rtol=1e-5)
    np.testing.assert_allclose(shared.singular_values[0, :, 0], [np.linalg.norm(J, 2) for J in rest], rtol=1e-5)
    wanted = [[miscoupling(coupling(J, rest[other], K)) for other in others] for J in rest]
    np.testing.assert_allclose(shared[VARIANT].sel(k=K)[0, :, others], wanted, atol=2e-4)
    assert set(VARIANTS_OF_PARTS) < set(shared.data_vars) and "miscoupling" not in shared
    assert shared["variant"].values.tolist() == list(VARIANTS_OF_PARTS)
    assert known_shared_part(measured, "miscoupling") is None
    assert known_shared_part(measured, VARIANT).equals(shared)


def test_tokens_of_shared_part_match_traceless_matrices(model):
    ds = cl.measure_tokens(model, [PARIS], block=3, other=6, kind="input", fixed=1, k=K, tokens=3)
    shared, traced = cl.shared_part(ds), cl.trace(model, PARIS)
    places = ds.position.values[0].tolist()
    mine, others = (traceless([traced.jacobian(block, 1, t).dense() for t in places]) for block in (3, 6))
    wanted = [[miscoupling(coupling(J, other, K)) for other in others] for J in mine]
    np.testing.assert_allclose(shared[VARIANT][0], wanted, atol=2e-4)
    assert shared.text.equals(ds.text) and shared.position.equals(ds.position)


def test_depth_and_nulls_agree_on_shared_part(model, measured):
    """Coupling and its value for random bases, which two chapters give."""
    found = nulls.measure_nulls(model, PROMPTS, ks=(K,)).sel(part="traceless", k=K)
    parts = [cl.shared_part(measured.sel(prompt=[prompt])) for prompt in measured.prompt.values]
    of_pairs = found.normalised.sel(kind="measured", span="all pairs")
    np.testing.assert_allclose(of_pairs, list(map(all_pairs, parts)), atol=1e-4)
    null = [float(cl.null_of(part, VARIANT).value.mean()) for part in parts]
    np.testing.assert_allclose(found.normalised_null, null, atol=4e-4)


def test_shared_part_is_a_measurement_with_effects(measured):
    shared, pair = cl.shared_part(measured), side_by_side(untrained=measured, trained=measured)
    assert float(cl.null_of(shared, VARIANT).error.max()) < 1e-4
    mean, whole = (cl.depth_summary(ds, VARIANT)["mean"].sel(k=K, pairs="all pairs") for ds in (shared, measured))
    assert float(mean) < float(whole)
    both = with_shared_part(pair)
    assert both.network.values.tolist() == ["untrained", "trained", SHARED]
    np.testing.assert_array_equal(both[VARIANT].sel(network=SHARED), shared[VARIANT])
    assert not [name for name in both.variables if name.startswith("shared_")]
    found, mean = effects.of_shared_depth(pair, VARIANT, K), 1 - all_pairs(shared)
    assert found["coupled"].value == pytest.approx(mean) and found["emerged"].value == 0
    assert found["lacks"].value == pytest.approx(1 - all_pairs(measured) - mean, abs=1e-6)
    assert effects.of_shared_depth(pair, "miscoupling", K) == {}


def test_measurement_by_products_has_no_shared_part(model):
    ds = cl.measure_depth(model, [PARIS], ks=(K,), formed=False)
    assert known_shared_part(ds, VARIANT) is None
    assert with_shared_part(side_by_side(trained=ds)).network.values.tolist() == ["trained"]
    assert effects.of_shared_depth(side_by_side(trained=ds, untrained=ds), VARIANT, K) == {}
    message = "'nano-neox' holds no traceless part; measure_depth has it unless `formed` is"
    refused(ParameterError, message, cl.shared_part, ds)
