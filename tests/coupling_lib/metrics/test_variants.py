import itertools
from functools import partial

import numpy as np
import pytest
import torch
from matrices import orthogonal
from random_numbers import normal
from refusals import refused

from coupling_lib.errors import ParameterError
from coupling_lib.metrics import variants as module
from coupling_lib.metrics.variants import TRANSFORMS, VARIANTS, different_pairs, locality, measure_variants

KS = (10, 30, 50)
WIDTH, BLOCKS = 64, 4
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)

RANDOM = normal(1, BLOCKS, WIDTH, WIDTH)
U, S, Vh = torch.linalg.svd(RANDOM)
# One pair of bases with a decaying spectrum, blocks with their own scale, order, signs and some noise.
COUPLED = (orthogonal(WIDTH, 2) * torch.linspace(3, 0.1, WIDTH)) @ orthogonal(WIDTH, 3).T
COUPLED = torch.tensor([1.0, 1.5, -0.7, 2.0])[:, None, None] * COUPLED + 0.02 * normal(4, BLOCKS, WIDTH, WIDTH)


def slow_reference(J, ks):
    """Each variant from its definition, pair by pair, with NumPy's full decomposition."""
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


@pytest.mark.parametrize("J", [RANDOM, COUPLED], ids=["random", "coupled"])
def test_every_variant_equals_its_definition(J):
    values, reference = measure_variants(J, *torch.linalg.svd(J), ks=KS), slow_reference(J.numpy(), KS)
    assert set(values) == set(reference) == set(VARIANTS)
    for name, value in values.items():
        np.testing.assert_allclose(value.numpy(), reference[name], rtol=1e-10, atol=1e-11, err_msg=name)


def test_every_variant_is_zero_at_perfect_coupling():
    Q, spectra = orthogonal(WIDTH, 5), torch.stack([torch.linspace(3, 1, WIDTH), torch.linspace(9, 2, WIDTH)])
    J = (Q * spectra[:, None]) @ Q.T  # symmetric, so that left and right vectors agree as well
    for name, value in measure_variants(J, *torch.linalg.svd(J), ks=[10, 30]).items():
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-11, msg=name)


def test_variants_do_not_depend_on_signs_of_vectors():
    signs = normal(4, BLOCKS, WIDTH).sign()
    flipped = measure_variants(RANDOM, U * signs[:, None], S, signs[..., None] * Vh, ks=[10])
    close(flipped, measure_variants(RANDOM, U, S, Vh, ks=[10]))


def test_operators_give_the_same_variants_as_matrices(monkeypatch):
    calls = []

    class Operator:
        def __init__(self, matrix):
            self.matrix = matrix

        def __matmul__(self, V):
            calls.append(V.shape)
            return self.matrix @ V

    whole, operators = measure_variants(RANDOM, U, S, Vh, ks=KS), [Operator(matrix) for matrix in RANDOM]
    for names in (["mismatch", "released_norm", "basis_uu"], ["basis_uv", "released_diag"]):
        found = measure_variants(operators, U, S, Vh, ks=KS, names=names)
        close(found, {name: whole[name] for name in names})
    assert calls == [(WIDTH, BLOCKS * 50)] * BLOCKS  # none for the second list
    monkeypatch.setattr(module, "_MAX_ENTRIES", 3 * BLOCKS * 50 * WIDTH)  # groups of three and one
    close(measure_variants(RANDOM, U, S, Vh, ks=KS), whole)


def test_transforms_and_means_by_distance_have_known_values():
    m = torch.tensor([0.0, 0.5, 2.0])
    assert TRANSFORMS["negative"](m).tolist() == [0, -0.5, -2]
    assert TRANSFORMS["one_minus"](m).tolist() == [1, 0.5, -1]
    assert TRANSFORMS["one_minus_square"](m).tolist() == [1, 0.75, -3]
    values = torch.arange(9.0).reshape(3, 3)  # 0 1 2 / 3 4 5 / 6 7 8
    assert locality(values).tolist() == [4, (1 + 5 + 3 + 7) / 4, (2 + 6) / 2]
    assert torch.equal(locality(values.expand(2, 5, 3, 3)), locality(values).expand(2, 5, 3))
    for values in (normal(5, 4, 4), normal(6, 2, 3, 5, 5), normal(7, 3, 1, 1)):
        wanted = values[..., *(~torch.eye(values.shape[-1], dtype=torch.bool)).nonzero(as_tuple=True)]
        assert torch.equal(different_pairs(values), wanted)
        assert np.array_equal(different_pairs(values.numpy()), wanted.numpy())


REFUSED = [
    (r"\(3, 2\)", locality, torch.ones(3, 2)),
    ("'released' is unknown; choose from miscoupling, ", measure_variants, RANDOM, U, S, Vh, [5], ["released"]),
    ("expected a list of names", measure_variants, RANDOM, U, S, Vh, [5], "mismatch"),
    *(("from 1 to 64", measure_variants, RANDOM, U, S, Vh, ks) for ks in ([], [0], [65], [10, 2.5], [True])),
    *(
        (r"A has shape .*; expected \(4, 4, 5, 5\)", measure_variants, RANDOM, U, S, Vh, [5], None, torch.zeros(shape))
        for shape in ((4, 4, 4, 4), (2, 4, 8, 8))
    ),
]


@pytest.mark.parametrize("given", REFUSED)
def test_unknown_names_ks_and_shapes_are_refused(given):
    refused(ParameterError, *given)
