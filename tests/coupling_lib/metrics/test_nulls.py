import math

import pytest
import torch
from random_numbers import check_mean, normal, seeded
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.expected_null import expected_null, mean_square, random_orthogonal_null
from coupling_lib.metrics.nulls import filled_spectrum, mean_absolute_coordinate, mean_absolute_entry, relative_to_null
from coupling_lib.metrics.subspaces import random_frame, random_frames
from coupling_lib.metrics.variants import VARIANTS, Variant, measure_variants

D = 96
RANK = torch.arange(1, D + 1, dtype=torch.float64)
SPECTRA = {"flat": RANK**0, "decaying": RANK**-0.5, "steep": RANK**-1.5}
ALL = torch.stack([*SPECTRA.values()])
KNOWN = [name for name, variant in VARIANTS.items() if variant.null]
# Reads products of both kinds at once, which no variant of the table does: their joint distribution decides.
NEEDS = ("ujv", "vju", "uu", "vu", "uv", "vv")
INVENTED = Variant("invented", "here", "", NEEDS, lambda s, *M: (M[0] * M[1])[..., 0, 0] + math.prod(M[2:])[..., 0, 0])


def root(name, S, d, k):
    return mean_square(VARIANTS[name], S, d, k).sqrt()


@pytest.fixture(scope="module")
def simulated():
    return random_orthogonal_null(ALL, D, ks=[10, 30], n_samples=400, generator=seeded(0))


@pytest.mark.parametrize(("at", "k"), enumerate([10, 30]))
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("name", KNOWN)
def test_closed_form_equals_the_simulation(simulated, name, spectrum, at, k):
    squares = simulated[name][:, at, list(SPECTRA).index(spectrum)] ** 2
    check_mean(squares, VARIANTS[name].null(SPECTRA[spectrum], D, k))


def test_expected_null_of_new_variant_equals_draws(monkeypatch):
    d, k, n = 5, 2, 20_000
    monkeypatch.setitem(VARIANTS, "invented", INVENTED)
    S = torch.linspace(0.2, 0.1, d, dtype=torch.float64)
    found = expected_null(S[None], d, [k], ["invented"], n_samples=n)["invented"]
    assert found.mean_square.isnan().all()
    U1, V1, U2, V2 = (random_frames(n, d, d, seeded(seed)) for seed in range(4))
    J, (u1, v1, u2, v2) = (U1 * S) @ V1.mT, (frame[..., :k] for frame in (U1, V1, U2, V2))
    products = (u2.mT @ J @ v2, v2.mT @ J @ u2, u2.mT @ u1, v2.mT @ u1, u2.mT @ v1, v1.mT @ v2)
    values = INVENTED.value(S[:k], *products)
    check_mean(values, found.value.item(), found.error.item())
    error = values.std().item() / math.sqrt(n)
    assert found.error.item() == pytest.approx(error, rel=0.1)
    # The products of one pair hang together: drawn apart, their mean would be 0 and not about 1 / d^3.
    assert values.mean().item() > 10 * error


def test_simulated_null_matches_full_random_matrices():
    d, k, n, generator, direct = 24, 6, 300, seeded(1), []
    S = torch.linspace(3, 0.2, d, dtype=torch.float64)
    for _ in range(n):
        U, V = (torch.stack([random_frame(d, d, generator, torch.float64) for _ in range(2)]) for _ in range(2))
        direct.append(measure_variants((U * S) @ V.mT, U, S.expand(2, d), V.mT, ks=[k]))
    short = random_orthogonal_null(S[None], d, ks=[k], n_samples=n, generator=seeded(2))
    for name in VARIANTS:
        one, two = torch.stack([values[name][0, 0, 1] for values in direct]), short[name].flatten()
        check_mean(one, two.mean(), two.std() / math.sqrt(n), errors=4.5)
        assert one.std().item() == pytest.approx(two.std().item(), rel=0.35), name


def test_closed_forms_are_batched():
    assert set(VARIANTS) - set(KNOWN) == {"old_off_over_diagonal"}
    assert root("old_off_over_diagonal", ALL, D, 10).isnan().all()
    for name in VARIANTS:
        alone = torch.cat([root(name, spectrum, D, 10) for spectrum in ALL])
        torch.testing.assert_close(root(name, ALL, D, 10), alone, equal_nan=True)
    for d, k in [(512, 51), (768, 76), (4096, 50)]:
        S, rule = torch.ones(d, dtype=torch.float64), math.sqrt(1 + k / d - 1.6 / math.sqrt(d))
        assert root("released_norm", S, d, k).item() == pytest.approx(rule, abs=2e-4)
        assert root("released_trace", S, d, k).item() == pytest.approx(rule / math.sqrt(k), abs=2e-4)
        assert root("normalized_miscoupling", S, d, k).item() == pytest.approx(math.sqrt(1 - 1 / k))


def test_filled_spectrum_has_the_norm_and_leading_values():
    S, norm = SPECTRA["decaying"], torch.linalg.vector_norm
    filled = filled_spectrum(S[:30], D, norm(S))
    assert filled.shape == (D,) and torch.equal(filled[:30], S[:30])
    assert norm(filled).item() == pytest.approx(norm(S).item(), rel=1e-12)
    for name in ("mismatch", "miscoupling"):
        torch.testing.assert_close(root(name, filled, D, 30), root(name, S, D, 30))
    assert root("mismatch", S[:30], D, 30) < root("mismatch", S, D, 30)
    assert torch.equal(filled_spectrum(ALL.float(), D, norm(ALL.float(), dim=-1)), ALL.float())


def test_random_frames_are_orthonormal_and_uniform():
    frames = torch.stack([random_frame(6, 3, seeded(seed), torch.float64) for seed in range(2000)])
    torch.testing.assert_close(frames.mT @ frames, torch.eye(3).double().expand(2000, 3, 3), rtol=0, atol=1e-12)
    # Without the sign fix the first entry of the Q factor would have one sign only.
    assert abs(frames[:, 0, 0].mean().item()) < 4 / math.sqrt(6 * 2000)
    check_mean(frames**2, 1 / 6)
    one, two = (random_orthogonal_null(ALL[1:2], D, ks=[5], n_samples=3, generator=seeded(7)) for _ in range(2))
    assert one["mismatch"].shape == (3, 1, 1) and all(torch.equal(one[name], two[name]) for name in VARIANTS)
    null = random_orthogonal_null(torch.ones(1, 8).double(), 8, ks=[8], n_samples=200, generator=seeded(3))
    # With K = d both bases are complete, so the norm of A is exactly that of J and E m^2 = 2 for the signed mismatch.
    assert (null["mismatch"] ** 2).mean().item() == pytest.approx(2, abs=0.1)
    assert (null["miscoupling"] ** 2).mean().item() == pytest.approx(8 * 7 * 8 / 64, abs=0.2)


def test_mean_absolute_entries_equal_monte_carlo():
    x, y = torch.nn.functional.normalize(normal(5, 2, 20_000, 48), dim=-1)
    for power in [0.0, 0.5, 1.5, 4.0]:
        S = RANK[:48] ** -power
        check_mean((S * x * y).sum(dim=-1).abs(), mean_absolute_entry(S, 48))
    assert mean_absolute_coordinate(2) == pytest.approx(2 / math.pi, rel=1e-14)
    assert mean_absolute_coordinate(3) == pytest.approx(0.5, rel=1e-14)
    assert mean_absolute_coordinate(10_000) == pytest.approx(math.sqrt(2 / (math.pi * 10_000)), rel=1e-4)
    flat, single = torch.ones(2, 64).double(), torch.tensor([2.0, 0, 0, 0]).double()
    assert mean_absolute_entry(flat, 64).tolist() == pytest.approx([mean_absolute_coordinate(64)] * 2, rel=1e-5)
    # One singular value alone: a = sigma y_1 x_1, and the two coordinates are independent.
    assert mean_absolute_entry(single, 10).item() == pytest.approx(2 * mean_absolute_coordinate(10) ** 2, rel=1e-5)
    for k in [8, 30]:
        length = math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2) + math.lgamma(D / 2) - math.lgamma((D + 1) / 2))
        square = root("released_norm_k", SPECTRA["flat"], D, k).item() ** 2
        exact = length**2 * mean_absolute_coordinate(k)
        assert (1 + k**2 / D**2 - square) / 2 == pytest.approx(exact, rel=0.002)


def test_relative_value_is_one_at_perfect_coupling():
    value = torch.tensor([0.9, 0.0, 0.45, 1.8])
    assert relative_to_null(value, torch.tensor(0.9)).tolist() == pytest.approx([0, 1, 0.5, -1])
    refused(UntrustworthyResultError, "distance from the null", relative_to_null, value, torch.zeros(4))
    refused(ParameterError, "r at most d", random_orthogonal_null, torch.ones(1, 9), 8, ks=[2])
    refused(ParameterError, "from 1 to 4", random_orthogonal_null, torch.ones(1, 4), 8, ks=[5])
    for norm in (1.0, 50.0):
        refused(ParameterError, "norm of the same Jacobian", filled_spectrum, SPECTRA["decaying"][:30], D, norm)
