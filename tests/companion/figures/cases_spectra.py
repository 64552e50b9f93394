"""What the figures of spectra are drawn from in tests."""

from tests.companion.figures.linear_cases import make_fits, make_null, make_spectra

from companion.figures import spectra
from coupling_lib.metrics.summaries import side_by_side


def names(n):
    return ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]


def both(n=2, count=5):
    return side_by_side(**{name: make_spectra(1 + i, i, count) for i, name in enumerate(names(n))})


def fits(n=2, count=5):
    return side_by_side(**{name: make_fits(i, count) for i, name in enumerate(names(n))})


def nulls(n=2):
    return side_by_side(**{name: make_null(i) for i, name in enumerate(names(n))})


def prompts(n):
    """A single prompt with a single network, which has no interval."""
    return 1 if n == 1 else 5


CASES = {
    "draw_top": (spectra.draw_top, lambda n: spectra.take_top(both(n, prompts(n)))),
    "draw_inverse": (
        spectra.draw_inverse, lambda n: spectra.take_inverse(both(n, prompts(n)), fits(n, prompts(n))),
    ),
    "draw_whole": (spectra.draw_whole, lambda n: spectra.take_whole(both(n, prompts(n)))),
    "draw_alignment": (spectra.draw_alignment, lambda n: spectra.take_alignment(both(n, prompts(n)), nulls(n))),
}  # fmt: skip
