"""The book's one style: contrast, colour-blind safety, monotone ink, settings put back."""

import itertools
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from companion.figures import style
from coupling_lib.datasets.summaries import Chance

ROLES = (style.TRAINED, style.UNTRAINED, style.SHARED, style.NULL)

# Viénot, Brettel and Mollon (1999): linear RGB as a dichromat without red, and without green, receptors sees it.
PROTAN = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTAN = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ (0.2126, 0.7152, 0.0722))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(params=["light", "dark"])
def theme(request):
    with style.theme(request.param):
        yield request.param


def test_colours_have_enough_contrast_with_the_page(theme):
    page = style.colour("page")
    inks = [*map(style.colour, ROLES), *(style.family_style(family)[0] for family in style._FAMILIES)]
    assert min(contrast(ink, page) for ink in inks) >= 3 and contrast(style.colour("text"), page) >= 7


@pytest.mark.parametrize("deficiency", [np.eye(3), PROTAN, DEUTAN], ids=["typical", "protan", "deutan"])
def test_roles_are_distinct_under_colour_vision_deficiency(theme, deficiency):
    seen = [deficiency @ linear(style.colour(role)) for role in ROLES]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.1


def test_ink_is_monotonic_and_transparent_at_nan(theme):
    brightness = np.array([luminance(shade[:3]) for shade in style.ink()(np.linspace(0, 1, 64))])
    assert (np.diff(brightness) * (-1 if theme == "light" else 1) >= -1e-9).all()
    first, last = abs(brightness[[0, -1]] - luminance(style.colour("page")))
    assert first < 0.01 and last > 0.8
    assert style.ink()(np.ma.masked_invalid([np.nan]))[0, 3] == 0
    shades = style.ink()(np.linspace(style.middle_tone(), 1, 64))
    assert min(contrast(to_hex(shade), style.colour("page")) for shade in shades) >= 3


def test_families_and_data_sets_have_own_styles():
    styles = [style.family_style(family) for family in style._FAMILIES]
    assert len(set(styles)) == len(styles)
    assert style.family_style("a family of tomorrow") == (style.colour(style.NULL), "o")
    others = {style.dataset_colour(f"model {i}", i) for i in range(4)}
    assert len(others) == 4 and not others & {style.colour(role) for role in ROLES}


def test_short_names_stay_distinct():
    names = ["runs/a/last", "runs/b/last", "organisation/model", "nano-neox"]
    assert list(style.short_names(names).values()) == ["runs/a/last", "runs/b/last", "model", "nano-neox"]


def test_theme_is_restored_after_an_error():
    before = matplotlib.rcParams["text.color"]
    with pytest.raises(ZeroDivisionError), style.theme("dark"):
        assert matplotlib.rcParams["text.color"] == "#e4e4e4"
        _ = 1 / 0
    assert matplotlib.rcParams["text.color"] == before
    assert style.colour(style.TRAINED) == "#0072b2"


def test_svg_has_outlined_text_and_rounded_coordinates():
    with style.theme("light"):
        figure = Figure(figsize=(2, 2))
        axes = figure.subplots()
        axes.plot([1, 2, 3], [1 / 3, 2 / 7, 1 / 9], marker="o")
        axes.bar([1, 2], [1 / 7, 1 / 3])
        svg = style.save_svg(figure).decode()
    assert "<text" not in svg and "<dc:date>" not in svg and "fill: #ffffff" not in svg
    assert "<path" in svg and "translate(" in svg
    # The size of outlines of letters, which is no place, needs all its digits.
    assert re.findall(r"\d+\.\d{4,}", re.sub(r"scale\([^)]*\)", "", svg)) == []


def test_png_has_two_pixels_per_css_pixel():
    with style.theme("light"):
        png = style.save_png(Figure(figsize=(style.WIDTH, 1)))
    assert int.from_bytes(png[16:20], "big") == 2 * 720


def test_error_is_written_with_one_digit():
    written = {0: "0", 8.7e-6: "0.000009", 0.00012: "0.0001", 0.0312: "0.03", 2.0: "2"}
    assert {error: style.one_digit(error) for error in written} == written


def test_null_label_has_value_if_error_is_invisible():
    nulls = (0.95, Chance(0.94842, 8.7e-6), Chance(0.94842, 8.7e-4))
    assert [*map(style.null_label, nulls)] == ["by chance", "by chance 0.052", "by chance"]
