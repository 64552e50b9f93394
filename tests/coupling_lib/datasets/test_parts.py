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

K, VARIANT = 5, "normalized_miscoupling"


@pytest.fixture(scope="module")
def measured(model):
    return cl.measure_depth(model, [PARIS, "It was the best of times"], ks=(K,))


def in_float64(jacobians: list[torch.Tensor]) -> list[np.ndarray]:
    """Take tr(J)/d off each diagonal, one matrix after the other."""
    return [J.double().numpy() - np.trace(J.double().numpy()) / len(J) * np.eye(len(J)) for J in jacobians]


def test_depth_of_shared_part_matches_traceless_matrices(model, measured):
    shared, traced = cl.shared_part(measured), cl.trace(model, PARIS)
    whole = [traced.jacobian(block).dense() for block in range(model.n_blocks)]
    rest = in_float64(whole)
    for block, J in enumerate(rest):
        assert float(measured.isotropic[0, block]) == pytest.approx(float(whole[block].trace()) / 96, abs=1e-6)
        norms = (float(shared.frobenius_norm[0, block]), float(shared.singular_values[0, block, 0]))
        assert norms == pytest.approx((np.linalg.norm(J), np.linalg.svd(J)[1][0]), rel=1e-5)
        for other in (1, 6, 11):
            value = float(shared[VARIANT].sel(k=K)[0, block, other])
            assert value == pytest.approx(miscoupling(coupling(J, rest[other], K)), abs=2e-4)
    assert set(VARIANTS_OF_PARTS) < set(shared.data_vars) and "miscoupling" not in shared
    assert shared["variant"].values.tolist() == list(VARIANTS_OF_PARTS)
    assert known_shared_part(measured, "miscoupling") is None
    assert known_shared_part(measured, VARIANT).equals(shared)


def test_tokens_of_shared_part_match_traceless_matrices(model):
    ds = cl.measure_tokens(model, [PARIS], block=3, other=6, kind="input", fixed=1, k=K, tokens=3)
    shared, traced = cl.shared_part(ds), cl.trace(model, PARIS)
    places = ds.position.values[0].tolist()
    mine, others = (in_float64([traced.jacobian(block, 1, t).dense() for t in places]) for block in (3, 6))
    wanted = [[miscoupling(coupling(J, other, K)) for other in others] for J in mine]
    np.testing.assert_allclose(shared[VARIANT][0], wanted, atol=2e-4)
    assert shared.text.equals(ds.text) and shared.position.equals(ds.position)


def test_depth_and_nulls_agree_on_shared_part(model, measured):
    """Coupling and its value for random bases, which two chapters give."""
    of_nulls = nulls.measure_nulls(model, [PARIS, "It was the best of times"], ks=(K,))
    for n, prompt in enumerate(measured.prompt.values):
        part = cl.shared_part(measured.sel(prompt=[prompt]))
        null = float(cl.null_of(part, VARIANT).value.mean())
        at = of_nulls.sel(part="traceless", k=K)
        own = float(part[VARIANT].where(part.block_1 != part.block_2).mean())
        assert float(at.normalised.sel(kind="measured", span="all pairs")[n]) == pytest.approx(own, abs=1e-4)
        assert float(at.normalised_null[n]) == pytest.approx(null, abs=4e-4)


def test_shared_part_is_a_measurement_with_effects(measured):
    shared = cl.shared_part(measured)
    assert float(cl.null_of(shared, VARIANT).error.max()) < 1e-4
    summary = cl.depth_summary(shared, VARIANT)["mean"].sel(k=K)
    assert float(summary.sel(pairs="all pairs")) < float(cl.depth_summary(measured, VARIANT)["mean"].sel(k=K)[0])
    both = with_shared_part(side_by_side(untrained=measured, trained=measured))
    assert both.network.values.tolist() == ["untrained", "trained", SHARED]
    np.testing.assert_array_equal(both[VARIANT].sel(network=SHARED), shared[VARIANT])
    assert not [name for name in both.variables if name.startswith("shared_")]
    pair = side_by_side(untrained=measured, trained=measured)
    found = effects.of_shared_depth(pair, VARIANT, K)
    each = 1 - cl.shared_part(measured)[VARIANT].sel(k=K)
    mean = float(each.where(each.block_1 != each.block_2).mean())
    assert found["coupled"].value == pytest.approx(mean) and found["emerged"].value == 0
    whole = 1 - float(measured[VARIANT].where(measured.block_1 != measured.block_2).mean())
    assert found["lacks"].value == pytest.approx(whole - mean, abs=1e-6)
    assert effects.of_shared_depth(pair, "miscoupling", K) == {}


def test_measurement_by_products_has_no_shared_part(model):
    ds = cl.measure_depth(model, [PARIS], ks=(K,), formed=False)
    assert known_shared_part(ds, VARIANT) is None
    assert with_shared_part(side_by_side(trained=ds)).network.values.tolist() == ["trained"]
    assert effects.of_shared_depth(side_by_side(trained=ds, untrained=ds), VARIANT, K) == {}
    message = "'nano-neox' holds no traceless part; measure_depth has it unless `formed` is"
    refused(ParameterError, message, cl.shared_part, ds)
