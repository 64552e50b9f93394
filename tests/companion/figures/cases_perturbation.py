"""What the figures of perturbations are drawn from in the tests of all figures."""

from tests.companion.figures.cases_dynamics import networks
from tests.companion.figures.linear_cases import make_perturbation

from companion.figures import perturbation

CASES = {
    "draw_depth": (perturbation.draw_depth, lambda n: perturbation.take_depth(networks(n, make_perturbation))),
    "draw_ends": (perturbation.draw_ends, lambda n: perturbation.take_ends(networks(n, make_perturbation))),
    "draw_error": (perturbation.draw_error, lambda n: perturbation.take_error(networks(n, make_perturbation))),
}
