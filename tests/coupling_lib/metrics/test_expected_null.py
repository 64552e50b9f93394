"""Means under the null hypothesis: closed forms against 100,000 draws, and standard errors that keep their word."""

import math

import pytest
import torch

from coupling_lib.metrics.expected_null import expected_null, random_orthogonal_null
from coupling_lib.metrics.nulls import diagonal_share_variance, filled_spectrum, gaussian_miscoupling
from coupling_lib.metrics.subspaces import frame_pairs, random_frame
from coupling_lib.metrics.variants import VARIANTS

D, K, MANY = 16, 4, 100_000
SPECTRA = torch.stack([torch.arange(1, D + 1, dtype=torch.float64) ** -a for a in (0.0, 0.7, 2.0)])


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def direct():
    """Coupling matrices of MANY random blocks, drawn the long way: QR of whole Gaussian matrices."""
    frames = []
    for seed in (1, 2):
        Q, R = torch.linalg.qr(torch.randn(MANY, D, K, generator=seeded(seed), dtype=torch.float64))
        frames.append(Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))
    U, V = frames
    return [U.mT @ (S[:, None] * V) for S in SPECTRA]


def shares(A):
    energy = A.square()
    return energy.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / energy.sum(dim=(-2, -1))


def test_diagonal_shares_have_moments_of_many_draws(direct):
    for S, A in zip(SPECTRA, direct, strict=True):
        D_share = shares(A)
        error = (D_share.std() / math.sqrt(MANY)).item()
        assert D_share.mean().item() == pytest.approx(1 / K, abs=4 * error)
        assert VARIANTS["normalized_miscoupling"].null(S, D, K).item() == pytest.approx(1 - 1 / K)
        gram = A.mT @ A
        purity = (gram.square().sum(dim=(-2, -1)) / gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1).square()).mean().item()
        error = ((D_share - 1 / K).square().std() / math.sqrt(MANY)).item()
        assert D_share.var().item() == pytest.approx(diagonal_share_variance(K, purity), abs=4 * error)
    found = expected_null(SPECTRA, D, [K], ["normalized_miscoupling"])["normalized_miscoupling"]
    assert found.error.max() < 3e-4
    for A, value, error in zip(direct, found.value[0], found.error[0], strict=True):
        m = (1 - shares(A)).sqrt()
        both = math.hypot(error.item(), m.std().item() / math.sqrt(MANY))
        assert m.mean().item() == pytest.approx(value.item(), abs=4 * both)


def test_gaussian_single_and_many_vectors_have_exact_nulls():
    A = torch.randn(MANY, K, K, generator=seeded(3), dtype=torch.float64)
    m = (1 - shares(A)).sqrt()
    assert m.mean().item() == pytest.approx(gaussian_miscoupling(K), abs=4 * (m.std() / math.sqrt(MANY)).item())
    middle = (2 * K + 1) / (K**2 + 2)
    assert shares(A).var().item() == pytest.approx(diagonal_share_variance(K, middle), rel=0.03)
    x, y = torch.randn(2, MANY, K, generator=seeded(4), dtype=torch.float64)
    single = shares(x.unsqueeze(-1) * y.unsqueeze(-2))
    assert single.var().item() == pytest.approx(diagonal_share_variance(K, 1), rel=0.03)
    assert gaussian_miscoupling(1) == 0 == diagonal_share_variance(1, 1)
    found = expected_null(SPECTRA, D, [K], n_samples=500)
    for one, other in (("released_norm", "released_norm_vju"), ("basis_uu", "basis_vv"), ("basis_uv", "basis_vu")):
        both = torch.hypot(found[one].error, found[other].error)
        assert ((found[one].value - found[other].value).abs() < 4 * both).all()
        assert torch.equal(found[one].mean_square, found[other].mean_square)
    found = expected_null(SPECTRA, D, [1, K], n_samples=50)
    assert "old_off_over_diagonal" not in found
    for name in ("miscoupling", "normalized_miscoupling"):
        assert found[name].value[0].tolist() == [0, 0, 0] and found[name].error[0].tolist() == [0, 0, 0]
    found = expected_null(torch.ones(1, 128, dtype=torch.float64), 128, [64], ["normalized_miscoupling"])
    value, error, square = found["normalized_miscoupling"]
    assert square.item() == pytest.approx(1 - 1 / 64)
    assert error.item() < 2e-6
    assert value.item() == pytest.approx(math.sqrt(1 - 1 / 64), abs=1e-5)


@pytest.mark.parametrize("k", [2, 5])
def test_mean_of_every_variant_equals_raw_draws(k):
    raw = random_orthogonal_null(SPECTRA, D, [k], MANY, seeded(5))
    found = expected_null(SPECTRA, D, [k], seed=6)
    for name in VARIANTS:
        mean, spread = raw[name][:, 0].mean(dim=0), raw[name][:, 0].std(dim=0) / math.sqrt(MANY)
        z = (mean - found[name].value[0]) / torch.hypot(spread, found[name].error[0])
        assert z.abs().max() < 4.5, name


def test_standard_errors_equal_the_spread_of_runs():
    runs = [expected_null(SPECTRA[1:2], D, [K], n_samples=250, seed=seed) for seed in range(80)]
    for name in ("normalized_miscoupling", "released_norm", "old_off_over_diagonal", "basis_uu", "miscoupling"):
        values = torch.stack([run[name].value for run in runs]).flatten()
        claimed = torch.stack([run[name].error for run in runs]).square().mean().sqrt()
        # The spread of 80 runs is known to 8 per cent; second-order terms leave the claim a little skewed.
        assert values.std().item() == pytest.approx(claimed.item(), rel=0.35), name


@pytest.mark.parametrize(("r", "k"), [(3, 3), (5, 3), (9, 4), (12, 4)])
def test_frame_pairs_have_moments_of_whole_frames(r, k):
    d, n = 12, 40_000
    left, right, tail = frame_pairs(n, d, r, k, seeded(7))
    # Every product of two coordinates has mean 1/d on the diagonal; fourth moments are those of the sphere.
    assert left.square().mean().item() == pytest.approx(1 / d, rel=0.01)
    assert left.pow(4).mean().item() == pytest.approx(3 / (d * (d + 2)), rel=0.03)
    assert abs(left[:, 0, 0].mean().item()) < 4 / math.sqrt(d * n) and abs(right[:, 0, 1].mean().item()) < 0.01
    whole = left.mT @ right + tail
    if r == d:
        assert tail.abs().max() == 0
    # U'V of two whole frames is a block of a uniform orthogonal matrix.
    frames = torch.stack([random_frame(d, k, seeded(seed), torch.float64)[:k] for seed in range(4000)])
    for power in (2, 4):
        assert whole.pow(power).mean().item() == pytest.approx(frames.pow(power).mean().item(), rel=0.06)
    assert torch.linalg.svdvals(whole).max() <= 1 + 1e-9


def test_flat_tail_gives_the_same_expected_null():
    S = filled_spectrum(SPECTRA[1:2, :K], D, torch.linalg.vector_norm(SPECTRA[1:2], dim=-1))
    rough = S * (1 + 1e-9 * torch.arange(D, 0, -1))  # no two values are equal, so that all coordinates are drawn
    quick, slow = (expected_null(one, D, [2, K], seed=seed) for one, seed in ((S, 8), (rough, 9)))
    for name in VARIANTS:
        z = (quick[name].value - slow[name].value) / torch.hypot(quick[name].error, slow[name].error)
        assert z.abs().max() < 4.5, name
