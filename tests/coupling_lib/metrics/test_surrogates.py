"""Surrogate vectors: what each keeps and what it takes away, and means over pairs against loops written out."""

import pytest
import torch
from random_numbers import check_mean, normal, seeded
from refusals import refused

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.subspaces import random_frame
from coupling_lib.metrics.surrogates import SURROGATES, surrogate_vectors
from coupling_lib.metrics.variants import VARIANTS, different_pairs, measure_variants, values_of_pairs

close = torch.testing.assert_close


def leading(J, k=6):
    U, S, Vh = torch.linalg.svd(J)
    return U[..., :k], S[..., :k], Vh[..., :k, :].mT


J = normal(0, 4, 24, 24)
U, S, V = leading(J)


def drawn(kind, seed=1, **settings):
    return surrogate_vectors(U, V, kind, seeded(seed), **settings)


@pytest.mark.parametrize("kind", SURROGATES)
def test_surrogate_vectors_are_orthonormal(kind):
    for vectors, own in zip(drawn(kind), (U, V), strict=True):
        close(vectors.mT @ vectors, torch.eye(6).double().expand(4, 6, 6), rtol=0, atol=1e-12)
        assert kind == "unpaired" or not torch.equal(vectors, own)


def test_surrogates_keep_angles_subspaces_or_outliers():
    U2, V2 = drawn("permuted")
    assert torch.equal(U2.sort(dim=1).values, U.sort(dim=1).values)
    close(U2.mT @ V2, U.mT @ V)
    assert (U2 - U).abs().amax(dim=(1, 2)).min() > 0.1
    U2, V2 = drawn("rotated")
    assert not torch.allclose(U2.mT @ V2, U.mT @ V, atol=0.05)
    U2, V2 = drawn("unpaired")
    assert torch.equal(U2, U) and not torch.equal(V2, V)
    close(V2 @ V2.mT, V @ V.mT)
    overlaps = (V.mT @ V2).abs()
    assert overlaps.diagonal(dim1=-2, dim2=-1).max() < 1e-9
    close(overlaps.sum(dim=1), torch.ones(4, 6).double())
    U2, V2 = drawn("outliers kept", outliers=[3, 7])
    assert torch.equal(U2[:, [3, 7]], U[:, [3, 7]]) and torch.equal(V2[:, [3, 7]], V[:, [3, 7]])
    close(U2.mT @ V2, U.mT @ V)
    others = [i for i in range(24) if i not in (3, 7)]
    assert ((U2 - U)[:, others].abs() > 1e-3).float().mean() > 0.8
    wide = leading(normal(0, 4, 8, 8))[::2]
    U2, V2 = surrogate_vectors(*wide, "conjugated", seeded(0))
    close(U2.mT @ V2, wide[0].mT @ wide[1])
    message = "'shaken'; expected one of rotated, conjugated, permuted, outliers kept, unpaired"
    refused(ParameterError, message, drawn, "shaken")


def test_conjugated_vectors_have_the_distribution_of_whole_rotations():
    # A matrix near to its transpose, so that left and right vectors hang together.
    near = J + J.mT - 4 * torch.eye(24)
    U, _, V = leading(near)
    generator, found, wanted = seeded(3), [], []
    for _ in range(600):
        U2, V2 = surrogate_vectors(U[1:2], V[1:2], "conjugated", generator)
        close(U2.mT @ V2, U[1:2].mT @ V[1:2])
        Q = random_frame(24, 24, generator, torch.float64)
        for values, (u, v) in ((found, (U2[0], V2[0])), (wanted, (Q @ U[1], Q @ V[1]))):
            A = u.T @ near[0] @ v
            values.append(torch.stack([A.diagonal().abs().mean(), A.square().mean().sqrt(), A[0, 1]]))
    one, two = torch.stack(found), torch.stack(wanted)
    check_mean(one, two.mean(0), two.std(0) / 600**0.5)
    assert one.std(0).tolist() == pytest.approx(two.std(0).tolist(), rel=0.15)


def mean_over_pairs(*given, **settings):
    found = values_of_pairs(*given, **settings)
    return {name: different_pairs(values).double().mean(dim=-1) for name, values in found.items()}


def test_means_over_pairs_equal_loops(monkeypatch):
    means = mean_over_pairs(J, U, S, V, U, V, ks=(3, 6), names=VARIANTS)
    off = ~torch.eye(4, dtype=torch.bool)
    every = measure_variants(J, U, S, V.mT, ks=(3, 6))
    close(means, {name: values[:, off].mean(dim=1) for name, values in every.items()}, rtol=1e-10, atol=0)
    together = mean_over_pairs(J, U, S, V, *drawn("permuted"), ks=(4,), names=VARIANTS)
    monkeypatch.setattr("coupling_lib.metrics.variants._MAX_ENTRIES", 1)
    close(mean_over_pairs(J, U, S, V, *drawn("permuted"), ks=(4,), names=VARIANTS), together)


def test_rotation_and_unpairing_remove_shared_coupling():
    Q, _, R = leading(normal(0, 1, 48, 48), k=48)
    spectrum = torch.linspace(2, 1, 48).double()
    J = ((Q * spectrum) @ R.mT).expand(5, 48, 48)
    vectors, S, generator = (
        (Q.expand(5, 48, 48)[..., :8], R.expand(5, 48, 48)[..., :8]),
        spectrum.expand(5, 48),
        seeded(2),
    )
    null = VARIANTS["released_norm"].null(spectrum, 48, 8).sqrt().item()
    # Unpaired, every singular value is on a wrong place: the distance has the squares of both, |A| and S, in full.
    for kind, wanted, rel in (("rotated", null, 0.03), ("unpaired", 2**0.5, 1e-6)):
        turned, names = surrogate_vectors(*vectors, kind, generator), ["released_norm"]
        value = mean_over_pairs(J, vectors[0], S[:, :8], vectors[1], *turned, ks=(8,), names=names)
        assert value["released_norm"].item() == pytest.approx(wanted, rel=rel)
