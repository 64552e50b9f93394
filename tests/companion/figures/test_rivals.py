"""Signs of quality: every rival has its row, with both correlations and their intervals."""

import numpy as np

from companion.figures import rivals
from tests.companion.figures.drawn import by_label, words
from tests.companion.tables.test_rivals import made_up

CASES = {"draw_signs": (rivals.draw_signs, lambda n: rivals.take_signs(made_up(20 * n)))}


def test_each_rival_has_a_row_of_correlations():
    signs = rivals.take_signs(made_up())
    left, right = rivals.draw_signs(signs).axes
    own = signs[(signs["set"] == "suite") & (signs["question"] == "each alone")]
    np.testing.assert_allclose(by_label(left)["the rival alone"].get_xdata(), own["value"])
    assert words(left.get_yticklabels()) == own["rival"].tolist()
    # Vision transformers are of one width.
    assert np.isnan(right.lines[0].get_xdata()[-1]) and np.isfinite(right.lines[0].get_xdata()[:-1]).all()
