"""What the figure of post-norm blocks is drawn from in the tests of all figures."""

import pandas as pd

from companion.figures import postnorm

TABLE = pd.DataFrame(
    [
        ("untrained", "block", 0.93, 0.92, 0.94, 0.05),
        ("untrained", "branch", 0.05, 0.045, 0.056, 0.05),
        ("trained", "block", 0.64, 0.61, 0.67, 0.05),
        ("trained", "branch", 0.27, 0.25, 0.28, 0.05),
    ],
    columns=["network", "map", "coupling", "low", "high", "chance"],
)

CASES = {"draw_maps": (postnorm.draw_maps, lambda n: TABLE[: 2 * min(n, 2)])}
