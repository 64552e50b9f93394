"""What the figures of linear dynamics are drawn from in the tests of all figures."""

from companion.figures import dynamics
from coupling_lib.metrics.summaries import side_by_side
from tests.companion.figures.linear_cases import make_dynamics


def networks(n, make=make_dynamics):
    """Made-up networks: two are the untrained and the trained one, a single one has seen a single prompt."""
    names = ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]
    return side_by_side(**{name: make(i, 1 if n == 1 else 5) for i, name in enumerate(names)})


CASES = {"draw_carried lengths": (dynamics.draw_carried, lambda n: dynamics.take_carried(networks(n), "norm ratio"))}
