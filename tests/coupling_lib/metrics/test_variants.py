import itertools
import math

import numpy as np
import pytest
import torch
from refusals import refused

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
    """Each variant from its definition, pair by pair, with NumPy's full decomposition."""
    J = J.numpy()
    parts, norm = [np.linalg.svd(block) for block in J], np.linalg.norm
    out = {name: np.empty((len(ks), len(J), len(J))) for name in VARIANTS}
    for (at, k), first, second in itertools.product(enumerate(ks), range(len(J)), range(len(J))):
        (U1, s1, V1), (U2, _, V2) = ((U[:, :k], s[:k], Vh[:k].T) for U, s, Vh in (parts[first], parts[second]))
        target, identity, off = np.diag(s1), np.eye(k), ~np.eye(k, dtype=bool)
        A, vju = U2.T @ J[first] @ V2, V2.T @ J[first] @ U2
        low_rank = U2.T @ (U1 * s1) @ V1.T @ V2
        euclid, trace = sum(s**2 for s in s1) ** 0.5, sum(s1)
        found = {
            "miscoupling": norm(A[off]),
            "normalized_miscoupling": norm(A[off]) / norm(A),
            "old_norm_diagonal": norm(np.abs(np.diag(A)) - s1) / euclid,
            "old_off_over_diagonal": np.abs(A[off]).mean() / np.abs(np.diag(A)).mean(),
            "released_diag": norm(np.abs(U2.T @ U1 @ V1.T @ V2) - identity),
        }
        for name, distance in (
            ("mismatch{}", norm(A - target)),
            ("released{}", norm(np.abs(A) - target)),
            ("released{}_vju", norm(np.abs(vju) - target)),
            ("released{}_k", norm(np.abs(low_rank) - target)),
        ):
            plain = "" if name == "mismatch{}" else "_norm"
            found |= {name.format(plain): distance / euclid, name.format("_trace"): distance / trace}
        for name, left, right in (("uu", U2, U1), ("vv", V2, V1), ("uv", U2, V1), ("vu", V2, U1)):
            found[f"basis_{name}"] = norm(np.abs(left.T @ right) - identity)
        assert found.keys() == out.keys()
        for name, value in found.items():
            out[name][at, first, second] = value
    return out


@pytest.mark.parametrize("case", CASES)
def test_every_variant_equals_its_definition(case):
    J = CASES[case]()
    values = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    reference = slow_reference(J, KS)
    assert set(values) == set(reference) == set(VARIANTS)
    for name, value in values.items():
        np.testing.assert_allclose(value.numpy(), reference[name], rtol=1e-10, atol=1e-11, err_msg=name)


def test_every_variant_is_zero_at_perfect_coupling():
    generator = torch.Generator().manual_seed(3)
    Q = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)).Q
    spectra = torch.stack([torch.linspace(3, 1, WIDTH), torch.linspace(9, 2, WIDTH)]).double()
    J = (Q * spectra.unsqueeze(-2)) @ Q.T  # symmetric, so that left and right vectors agree as well
    values = measure_variants(J, *torch.linalg.svd(J), ks=[10, 30])
    for name, value in values.items():
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-11, msg=name)
    J = random_jacobians()
    U, S, Vh = torch.linalg.svd(J)
    signs = torch.randint(0, 2, (BLOCKS, WIDTH), generator=torch.Generator().manual_seed(4)).double() * 2 - 1
    plain = measure_variants(J, U, S, Vh, ks=[10])
    flipped = measure_variants(J, U * signs[:, None], S, signs[..., None] * Vh, ks=[10])
    torch.testing.assert_close(flipped, plain, rtol=1e-12, atol=1e-12)


def test_operators_give_the_same_variants_as_matrices(monkeypatch):
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
    whole = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    monkeypatch.setattr(module, "_MAX_ENTRIES", 3 * BLOCKS * 50 * WIDTH)  # groups of three and one
    grouped = measure_variants(J, *torch.linalg.svd(J), ks=KS)
    for name in VARIANTS:
        torch.testing.assert_close(grouped[name], whole[name], rtol=1e-12, atol=1e-12)


def test_transforms_and_means_by_distance_have_known_values():
    m = torch.tensor([0.0, 0.5, 2.0])
    assert TRANSFORMS["negative"](m).tolist() == [0, -0.5, -2]
    assert TRANSFORMS["one_minus"](m).tolist() == [1, 0.5, -1]
    assert TRANSFORMS["one_minus_square"](m).tolist() == [1, 0.75, -3]
    values = torch.arange(9.0).reshape(3, 3)  # 0 1 2 / 3 4 5 / 6 7 8
    assert locality(values).tolist() == [4, (1 + 5 + 3 + 7) / 4, (2 + 6) / 2]
    assert torch.equal(locality(values.expand(2, 5, 3, 3)), locality(values).expand(2, 5, 3))
    refused(ParameterError, r"\(3, 2\)", locality, values[:, :2])
    for shape in [(4, 4), (2, 3, 5, 5), (3, 1, 1)]:
        values = torch.arange(math.prod(shape)).reshape(shape)
        wanted = values[..., *(~torch.eye(shape[-1], dtype=torch.bool)).nonzero(as_tuple=True)]
        assert torch.equal(different_pairs(values), wanted)
        assert np.array_equal(different_pairs(values.numpy()), wanted.numpy())
    J = random_jacobians()
    svd = torch.linalg.svd(J)
    with pytest.raises(ParameterError, match="'released' is unknown; choose from miscoupling, "):
        measure_variants(J, *svd, ks=[5], names=["released"])
    refused(ParameterError, "expected a list of names", measure_variants, J, *svd, ks=[5], names="mismatch")
    for ks in ([], [0], [65], [10, 2.5], [True]):
        refused(ParameterError, "from 1 to 64", measure_variants, J, *svd, ks=ks)


def test_coupling_matrices_of_wrong_shape_are_refused():
    J = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    U, S, Vh = torch.linalg.svd(J)
    for A in (torch.zeros(3, 3, 4, 4), torch.zeros(2, 3, 8, 8)):
        wanted = r"A has shape .*; expected \(3, 3, 5, 5\)"
        refused(ParameterError, wanted, measure_variants, J, U, S, Vh, [5], ["normalized_miscoupling"], A)
