"""What holds for every figure: the same bytes each time, all text inside, for one to three networks, on both pages.

Each module beside this one whose name begins with `cases_` has `CASES`: by the name of a `draw_...` function (and a
word, where it has several) the function, what makes its data from a number of networks, and its options, if any.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from functools import cache
from importlib import import_module

import pytest
import tests.companion.figures
from matplotlib.figure import Figure
from tests.companion.figures.drawn import assert_text_is_inside

import companion.figures
from companion.figures import show, style

FILES = [found.name for found in pkgutil.iter_modules(tests.companion.figures.__path__) if found.name.startswith("cases_")]
CASES = {
    f"{file.removeprefix('cases_')}.{name}": case
    for file in FILES
    for name, case in import_module(f"tests.companion.figures.{file}").CASES.items()
}


@cache
def data_of(case: str, n: int) -> show.Data:
    """What a case draws; nothing changes it."""
    return CASES[case][1](n)


def drawn(case: str, n: int) -> Figure:
    draw, _, *options = CASES[case]
    return draw(data_of(case, n), **dict(*options))


# What a theme changes in a drawing: colours, what is drawn in pixels of them, and names that are hashes of both.
IN_COLOUR = re.compile(rb'base64,[^"]+|(?<=#)[0-9a-f]{6}\b|(?<=["#])[a-z]+[0-9a-f]{10}(?=[")])')


@pytest.mark.parametrize("case", CASES)
def test_it_is_small_enough_for_a_page_with_all_text_inside_and_repeats_byte_for_byte(case):
    # Many a case has the same data for any number of networks.
    different = {show.frame(data_of(case, n)).to_csv(): n for n in (1, 3, 2)}.values()
    shapes = {}
    for theme, n in [*(("light", n) for n in different), ("dark", 2)]:
        with style.theme(theme):
            figure = drawn(case, n)
            picture = style.save_svg(figure)
            # Larger ones are shown as pixels.
            assert len(picture) < show.LARGEST_SVG or len(style.save_png(figure)) < show.LARGEST_SVG, (theme, n)
            assert_text_is_inside(figure, saved=True)
            # What does not repeat for two networks would not for one or three.
            assert n != 2 or b"base64," not in picture or style.save_svg(drawn(case, n)) == picture, theme
        shapes[theme, n] = IN_COLOUR.sub(b"", picture)
    # Drawn once more in other colours, it is the same to the byte: it repeats, and no text moves with the theme.
    assert shapes["dark", 2] == shapes["light", 2]


@pytest.mark.parametrize("case", CASES)
def test_its_table_has_numbers(case):
    table = show.frame(data_of(case, 2))
    assert len(table) and "numbers" in show.fingerprint(table)


def test_every_function_that_draws_a_figure_has_a_case():
    tried = {case[0] for case in CASES.values()}
    for found in pkgutil.iter_modules(companion.figures.__path__):
        module = import_module(f"companion.figures.{found.name}")
        for name, thing in inspect.getmembers(module, inspect.isfunction):
            # What draws into a panel, as many parts do, returns none.
            makes_one = name.startswith("draw_") and inspect.signature(thing).return_annotation is Figure
            assert not makes_one or thing in tried, f"{name} has no case in cases_{found.name}.py"
