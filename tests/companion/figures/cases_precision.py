"""What the figures of precision are drawn from in the tests of all figures: one, two or five narrow precisions."""

from companion.figures import precision
from tests.companion.figures.conftest import make_depth
from tests.companion.figures.precision_example import make_precision

NARROW = {1: ["nf4"], 2: ["int8", "nf4"], 3: ["bfloat16", "int8", "nf4", "fp4", "float16"]}


def measured(n):
    """Precisions of the made-up measurement; where there are five, all err as its last one does."""
    chosen = NARROW[n] if n == 2 else ["nf4"] * len(NARROW[n])
    return make_precision().sel(precision=["float32", *chosen]).assign_coords(precision=["float32", *NARROW[n]])


CASES = {
    "draw_values": (precision.draw_values, lambda n: precision.take_values(measured(n))),
    "draw_vectors": (precision.draw_vectors, lambda n: precision.take_vectors(measured(n))),
    "draw_pairs": (precision.draw_pairs, lambda n: precision.take_pairs(measured(n))),
    "draw_coupling": (precision.draw_coupling, lambda n: precision.take_coupling(measured(n), make_depth(0.1, seed=1))),
    "draw_sources": (precision.draw_sources, lambda n: precision.take_sources(measured(n))),
}
