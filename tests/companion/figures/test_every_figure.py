"""What is special: figures of many models, of one prompt, with gaps, marks and long names. `test_lifted` has the rest.

A test beside this one may have `CASES`: by the name of a `draw_...` function (and a word, where it has several) the
function, what makes its data from a number of networks, which may change nothing, and its options, if any
(`case` in `made.py` makes one of a `take_...` and its `draw_...`).
"""

import pkgutil
from functools import partial
from importlib import import_module

import pytest

import tests.companion.figures
from companion.figures import show
from tests.companion.figures.drawn import assert_good_pictures
from tests.companion.figures.test_lifted import SIZES

NAMES = {found.name for found in pkgutil.iter_modules(tests.companion.figures.__path__)} - {"test_every_figure"}
CASES = {
    f"{name.removeprefix('test_')}.{case}": given
    for name in sorted(NAMES)
    for case, given in getattr(import_module(f"tests.companion.figures.{name}"), "CASES", {}).items()
}


@pytest.mark.thorough  # every function is drawn in `test_lifted`
@pytest.mark.parametrize("sizes", SIZES, ids=["two", "one or three"])
@pytest.mark.parametrize("case", CASES)
def test_picture_is_small_unclipped_and_reproducible(case, sizes):
    draw, make, *options = CASES[case]
    # Many a case has the same data for any number of networks.
    different = {show.frame(data).to_csv(): data for data in map(make, sizes)}
    assert all(different) and "numbers" in show.fingerprint(show.frame(make(2)))
    assert_good_pictures([partial(draw, data, **dict(*options)) for data in different.values()])
