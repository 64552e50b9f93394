"""What the figures of spectra are drawn from in tests."""

from companion.figures import spectra
from coupling_lib.metrics.summaries import side_by_side
from tests.companion.figures.linear_cases import make_fits, make_null, make_spectra


def names(n):
    return ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]


def both(n=2, count=5):
    return side_by_side(**{name: make_spectra(1 + i, i, count) for i, name in enumerate(names(n))})


def fits(n=2, count=5):
    return side_by_side(**{name: make_fits(i, count) for i, name in enumerate(names(n))})


def nulls(n=2):
    return side_by_side(**{name: make_null(i) for i, name in enumerate(names(n))})


CASES = {
    "draw_inverse of one prompt": (spectra.draw_inverse, lambda n: spectra.take_inverse(both(n, 1), fits(n, 1))),
}
