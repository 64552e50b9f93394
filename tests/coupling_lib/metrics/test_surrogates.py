"""Surrogate vectors: what each keeps and what it takes away, and means over pairs against loops written out."""

import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.subspaces import random_frame
from coupling_lib.metrics.surrogates import SURROGATES, surrogate_vectors
from coupling_lib.metrics.variants import VARIANTS, different_pairs, measure_variants, values_of_pairs


def blocks(n_blocks=4, d=24, k=6, seed=0):
    J = torch.randn(n_blocks, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    U, S, Vh = torch.linalg.svd(J)
    return J, U[..., :k], S[:, :k], Vh[:, :k].mT


def drawn(kind, seed=1):
    J, U, S, V = blocks()
    return (J, U, S, V), surrogate_vectors(U, V, kind, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", SURROGATES)
def test_surrogate_vectors_are_orthonormal(kind):
    (_, _, _, V), (U2, V2) = drawn(kind)
    identity = torch.eye(6).double().expand(4, 6, 6)
    torch.testing.assert_close(U2.mT @ U2, identity, rtol=0, atol=1e-12)
    torch.testing.assert_close(V2.mT @ V2, identity, rtol=0, atol=1e-12)
    assert not torch.equal(V2, V)


def mean_over_pairs(*given, **settings):
    found = values_of_pairs(*given, **settings)
    return {name: different_pairs(values).double().mean(dim=-1) for name, values in found.items()}


def test_surrogates_keep_angles_subspaces_or_outliers():
    (_, U, _, V), (U2, V2) = drawn("permuted")
    assert torch.equal(U2.sort(dim=1).values, U.sort(dim=1).values)
    torch.testing.assert_close(U2.mT @ V2, U.mT @ V)
    assert (U2 - U).abs().amax(dim=(1, 2)).min() > 0.1
    (_, U, _, V), (U2, V2) = drawn("rotated")
    assert not torch.allclose(U2.mT @ V2, U.mT @ V, atol=0.05)
    (_, U, _, V), (U2, V2) = drawn("unpaired")
    assert torch.equal(U2, U)
    torch.testing.assert_close(V2 @ V2.mT, V @ V.mT)
    overlaps = (V.mT @ V2).abs()
    assert overlaps.diagonal(dim1=-2, dim2=-1).max() < 1e-9
    torch.testing.assert_close(overlaps.sum(dim=1), torch.ones(4, 6).double())
    _, U, _, V = blocks()
    message = "'shaken'; expected one of rotated, conjugated, permuted, outliers kept, unpaired"
    refused(ParameterError, message, surrogate_vectors, U, V, "shaken", torch.Generator())
    U2, V2 = surrogate_vectors(U, V, "outliers kept", torch.Generator().manual_seed(1), outliers=[3, 7])
    assert torch.equal(U2[:, [3, 7]], U[:, [3, 7]]) and torch.equal(V2[:, [3, 7]], V[:, [3, 7]])
    torch.testing.assert_close(U2.mT @ V2, U.mT @ V)
    others = [i for i in range(24) if i not in (3, 7)]
    assert ((U2 - U)[:, others].abs() > 1e-3).float().mean() > 0.8


def test_conjugated_vectors_have_the_distribution_of_whole_rotations():
    (J, U, _, V), _ = drawn("conjugated")
    # A matrix near to its transpose, so that left and right vectors hang together.
    J = J + J.mT - 4 * torch.eye(24)
    U, _, Vh = torch.linalg.svd(J)
    U, V = U[..., :6], Vh[:, :6].mT
    generator, found, wanted = torch.Generator().manual_seed(3), [], []
    for _ in range(600):
        U2, V2 = surrogate_vectors(U[1:2], V[1:2], "conjugated", generator)
        torch.testing.assert_close(U2.mT @ V2, U[1:2].mT @ V[1:2])
        Q = random_frame(24, 24, generator, torch.float64)
        for values, (u, v) in ((found, (U2[0], V2[0])), (wanted, (Q @ U[1], Q @ V[1]))):
            A = u.T @ J[0] @ v
            values.append(torch.stack([A.diagonal().abs().mean(), A.square().mean().sqrt(), A[0, 1]]))
    one, two = torch.stack(found), torch.stack(wanted)
    z = (one.mean(0) - two.mean(0)) / ((one.var(0) + two.var(0)) / 600).sqrt()
    assert z.abs().max() < 4
    assert one.std(0).tolist() == pytest.approx(two.std(0).tolist(), rel=0.15)
    _, U, _, V = blocks(d=8, k=6)
    U2, V2 = surrogate_vectors(U, V, "conjugated", torch.Generator().manual_seed(0))
    torch.testing.assert_close(U2.mT @ V2, U.mT @ V)


def test_means_over_pairs_equal_loops(monkeypatch):
    J, U, S, V = blocks()
    means = mean_over_pairs(J, U, S, V, U, V, ks=(3, 6), names=VARIANTS)
    every = measure_variants(J, U, S, V.mT, ks=(3, 6))
    for name, mean in means.items():
        loop = [[every[name][i, a, b].item() for a in range(4) for b in range(4) if a != b] for i in range(2)]
        assert mean.tolist() == pytest.approx([sum(row) / len(row) for row in loop], rel=1e-10), name
    (J, U, S, V), (U2, V2) = drawn("permuted")
    together = mean_over_pairs(J, U, S, V, U2, V2, ks=(4,), names=VARIANTS)
    monkeypatch.setattr("coupling_lib.metrics.variants._MAX_ENTRIES", 1)
    apart = mean_over_pairs(J, U, S, V, U2, V2, ks=(4,), names=VARIANTS)
    for name in VARIANTS:
        torch.testing.assert_close(apart[name], together[name])


def test_rotation_and_unpairing_remove_shared_coupling():
    _, U, _, V = blocks(n_blocks=1, d=48, k=48)
    S = torch.linspace(2, 1, 48).double()
    J = ((U * S) @ V.mT).expand(5, 48, 48)
    U, V, S = U.expand(5, 48, 48)[..., :8], V.expand(5, 48, 48)[..., :8], S.expand(5, 48)
    generator = torch.Generator().manual_seed(2)
    value = {
        kind: mean_over_pairs(
            J, U, S[:, :8], V, *surrogate_vectors(U, V, kind, generator), ks=(8,), names=["released_norm"]
        )["released_norm"].item()
        for kind in ("rotated", "unpaired")
    }
    assert value["rotated"] == pytest.approx(VARIANTS["released_norm"].null(S[0], 48, 8).sqrt().item(), rel=0.03)
    # Every singular value is on a wrong place: the distance has the squares of both, |A| and S, in full.
    assert value["unpaired"] == pytest.approx(2**0.5, rel=1e-6)
