import math

import numpy as np
import pytest
import torch

from coupling_lib.errors import ParameterError
from coupling_lib.metrics import variants as module
from coupling_lib.metrics.variants import TRANSFORMS, VARIANTS, different_pairs, locality, measure_variants

KS = (10, 30, 50)
WIDTH, BLOCKS = 64, 4


def random_jacobians():
    return torch.randn(BLOCKS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def coupled_jacobians():
    """One pair of bases with a decaying spectrum, blocks with their own scale, order, signs and some noise."""
    generator = torch.Generator().manual_seed(2)
    U, V = torch.linalg.qr(torch.randn(2, WIDTH, WIDTH, generator=generator, dtype=torch.float64)).Q
    spectrum = torch.linspace(3, 0.1, WIDTH, dtype=torch.float64)
    noise = torch.randn(BLOCKS, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    blocks = [scale * (U * spectrum) @ V.T for scale in (1.0, 1.5, -0.7, 2.0)]
    return torch.stack(blocks) + 0.02 * noise


CASES = {"random": random_jacobians, "coupled": coupled_jacobians}


def slow_reference(J, ks):
    """Each variant from its definition, pair by pair and entry by entry, with NumPy's full decomposition."""
    J = J.numpy().astype(np.float64)
    n = len(J)
    parts = [np.linalg.svd(block) for block in J]
    names = (
        "miscoupling normalized_miscoupling mismatch mismatch_trace released_norm released_trace released_norm_vju "
        "released_trace_vju released_norm_k released_trace_k released_diag old_norm_diagonal old_off_over_diagonal "
        "basis_uu basis_vv basis_uv basis_vu"
    ).split()
    out = {name: np.empty((len(ks), n, n)) for name in names}
    for at, k in enumerate(ks):
        for first in range(n):
            U1, s1, V1 = parts[first][0][:, :k], parts[first][1][:k], parts[first][2].T[:, :k]
            for second in range(n):
                U2, V2 = parts[second][0][:, :k], parts[second][2].T[:, :k]
                A, B = U2.T.dot(J[first]).dot(V2), V2.T.dot(J[first]).dot(U2)
                low_rank = U2.T.dot(U1 * s1).dot(V1.T).dot(V2)
                put = {name: out[name][at] for name in names}
                squares = {"off": 0.0, "all": 0.0, "signed": 0.0, "abs": 0.0, "vju": 0.0, "low": 0.0, "diag": 0.0}
                off_sum = diagonal_sum = 0.0
                for i in range(k):
                    for j in range(k):
                        target = s1[i] if i == j else 0.0
                        squares["all"] += A[i, j] ** 2
                        squares["signed"] += (A[i, j] - target) ** 2
                        squares["abs"] += (abs(A[i, j]) - target) ** 2
                        squares["vju"] += (abs(B[i, j]) - target) ** 2
                        squares["low"] += (abs(low_rank[i, j]) - target) ** 2
                        if i == j:
                            squares["diag"] += (abs(A[i, i]) - target) ** 2
                            diagonal_sum += abs(A[i, i])
                        else:
                            squares["off"] += A[i, j] ** 2
                            off_sum += abs(A[i, j])
                root = {name: value**0.5 for name, value in squares.items()}
                euclid, trace = sum(s**2 for s in s1) ** 0.5, sum(s1)
                here = (first, second)
                put["miscoupling"][here] = root["off"]
                put["normalized_miscoupling"][here] = root["off"] / root["all"]
                put["mismatch"][here] = root["signed"] / euclid
                put["mismatch_trace"][here] = root["signed"] / trace
                put["released_norm"][here] = root["abs"] / euclid
                put["released_trace"][here] = root["abs"] / trace
                put["released_norm_vju"][here] = root["vju"] / euclid
                put["released_trace_vju"][here] = root["vju"] / trace
                put["released_norm_k"][here] = root["low"] / euclid
                put["released_trace_k"][here] = root["low"] / trace
                put["old_norm_diagonal"][here] = root["diag"] / euclid
                put["old_off_over_diagonal"][here] = (off_sum / (k * k - k)) / (diagonal_sum / k)
                identity = np.eye(k)
                put["released_diag"][here] = np.linalg.norm(np.abs(U2.T @ U1 @ V1.T @ V2) - identity)
                for name, left, right in (("uu", U2, U1), ("vv", V2, V1), ("uv", U2, V1), ("vu", V2, U1)):
                    put[f"basis_{name}"][here] = np.linalg.norm(np.abs(left.T @ right) - identity)
    return out


@pytest.mark.parametrize("case", CASES)
def test_every_variant_equals_a_slow_reading_of_its_definition(case):
    J = CASES[case]()
    values = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    reference = slow_reference(J, KS)
    assert set(values) == set(reference) == set(VARIANTS)
    for name, value in values.items():
        np.testing.assert_allclose(value.numpy(), reference[name], rtol=1e-10, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("absolute", [False, True])
def test_signed_and_absolute_variants_are_told_apart_by_a_block_of_opposite_sign(absolute):
    J = coupled_jacobians()  # block 2 carries the shared directions with a minus sign
    values = measure_variants(J, *torch.linalg.svd(J), ks=[10], names=["mismatch", "released_norm"])
    value = values["released_norm" if absolute else "mismatch"][0, 2, 0].item()
    assert value == pytest.approx(0, abs=0.5) if absolute else value == pytest.approx(2, abs=0.5)


def test_perfect_coupling_is_zero_in_each_variant():
    generator = torch.Generator().manual_seed(3)
    Q = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)).Q
    spectra = torch.stack([torch.linspace(3, 1, WIDTH), torch.linspace(9, 2, WIDTH)]).double()
    J = (Q * spectra.unsqueeze(-2)) @ Q.T  # symmetric, so that left and right vectors agree as well
    values = measure_variants(J, *torch.linalg.svd(J), ks=[10, 30])
    for name, value in values.items():
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", VARIANTS)
def test_joint_signs_of_singular_vectors_change_no_variant(name):
    J = random_jacobians()
    U, S, Vh = torch.linalg.svd(J)
    signs = torch.randint(0, 2, (BLOCKS, WIDTH), generator=torch.Generator().manual_seed(4)).double() * 2 - 1
    plain = measure_variants(J, U, S, Vh, ks=[10], names=[name])[name]
    flipped = measure_variants(J, U * signs[:, None], S, signs[..., None] * Vh, ks=[10], names=[name])[name]
    torch.testing.assert_close(flipped, plain, rtol=1e-12, atol=1e-12)


def test_the_scale_of_a_jacobian_moves_plain_miscoupling_alone():
    J = random_jacobians()
    U, S, Vh = torch.linalg.svd(J)
    plain = measure_variants(J, U, S, Vh, ks=[10])
    scaled = measure_variants(7 * J, U, 7 * S, Vh, ks=[10])
    for name in VARIANTS:
        factor = 7 if name == "miscoupling" else 1
        torch.testing.assert_close(scaled[name], factor * plain[name], rtol=1e-12, atol=1e-12, msg=name)


def test_blocks_taken_in_groups_give_what_one_batch_gives(monkeypatch):
    J = random_jacobians()
    whole = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    monkeypatch.setattr(module, "_MAX_ENTRIES", 3 * BLOCKS * 50 * WIDTH)  # groups of three and one
    grouped = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    for name in VARIANTS:
        torch.testing.assert_close(grouped[name], whole[name], rtol=1e-12, atol=1e-12)


def test_operators_are_applied_only_as_often_as_the_variants_need():
    J = random_jacobians()
    U, S, Vh = torch.linalg.svd(J)
    calls = []

    class Operator:
        def __init__(self, matrix):
            self.matrix = matrix

        def __matmul__(self, V):
            calls.append(V.shape)
            return self.matrix @ V

    operators = [Operator(matrix) for matrix in J]
    values = measure_variants(operators, U, S, Vh, ks=KS, names=["mismatch", "released_norm", "basis_uu"])
    assert calls == [(WIDTH, BLOCKS * 50)] * BLOCKS
    full = measure_variants(J, U, S, Vh, ks=KS, names=["mismatch"])["mismatch"]
    torch.testing.assert_close(values["mismatch"], full, rtol=1e-12, atol=1e-12)
    calls.clear()
    measure_variants(operators, U, S, Vh, ks=KS, names=["basis_uv", "released_diag"])
    assert calls == []


def test_an_unknown_variant_or_a_lone_name_is_refused():
    J = random_jacobians()
    svd = torch.linalg.svd(J)
    with pytest.raises(ParameterError, match="'released' is unknown; choose from miscoupling, "):
        measure_variants(J, *svd, ks=[5], names=["released"])
    with pytest.raises(ParameterError, match="expected a list of names"):
        measure_variants(J, *svd, ks=[5], names="mismatch")


@pytest.mark.parametrize("ks", [[], [0], [65], [10, 2.5], [True]])
def test_impossible_numbers_of_singular_vectors_are_refused(ks):
    J = random_jacobians()
    with pytest.raises(ParameterError, match="from 1 to 64"):
        measure_variants(J, *torch.linalg.svd(J), ks=ks)


def test_transforms_turn_distances_into_couplings():
    m = torch.tensor([0.0, 0.5, 2.0])
    assert TRANSFORMS["negative"](m).tolist() == [0, -0.5, -2]
    assert TRANSFORMS["one_minus"](m).tolist() == [1, 0.5, -1]
    assert TRANSFORMS["one_minus_square"](m).tolist() == [1, 0.75, -3]


def test_locality_averages_each_distance_over_both_orders():
    values = torch.arange(9.0).reshape(3, 3)  # 0 1 2 / 3 4 5 / 6 7 8
    assert locality(values).tolist() == [4, (1 + 5 + 3 + 7) / 4, (2 + 6) / 2]
    assert torch.equal(locality(values.expand(2, 5, 3, 3)), locality(values).expand(2, 5, 3))
    with pytest.raises(ParameterError, match=r"\(3, 2\)"):
        locality(values[:, :2])


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5, 5), (3, 1, 1)])
def test_pairs_of_different_blocks_are_all_but_the_diagonal_row_by_row(shape):
    values = torch.arange(math.prod(shape)).reshape(shape)
    wanted = values[..., *(~torch.eye(shape[-1], dtype=torch.bool)).nonzero(as_tuple=True)]
    assert torch.equal(different_pairs(values), wanted)
    assert np.array_equal(different_pairs(values.numpy()), wanted.numpy())
