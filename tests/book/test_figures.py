"""Figures as the book shows them: numbers, anchors, what a reader who does not see them is told, a phone's windows."""

import base64
import io
from collections.abc import Iterator
from itertools import pairwise

import book_figures
import drawing
import numpy as np
import pandas as pd
import panels
import pytest
from alt_text import kind_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from companion.figures import parts, style
from companion.figures.figure_reader import figures_in
from companion.figures.show import show

TABLE = pd.DataFrame({"block": [1, 2], "coupling": [0.25, 0.5]})


def shown(name: str = "demo", provenance: str = "model a · seed 0") -> str:
    return show(draw_two, TABLE, name=name, caption="A & B", provenance=provenance).data


def draw_two(data: pd.DataFrame) -> Figure:
    figure, row = parts.panels(["left", "right"], 2.0)
    for axes in row:
        axes.plot(data.block, data.coupling)
    return figure


def test_figures_are_numbered_once_in_page_order():
    pages = {
        "front": [("b", "n1", "fig-b", ""), ("own", "front", "fig-own", shown("own"))],
        "one": [("a", "n1", "fig-a", ""), ("b", "n1", "fig-b", "")],
        "two": [("a", "n1", "fig-a", ""), ("a", "n2", "fig-a-n2", ""), ("words", "n2", "fig-words", "")],
    }
    order = ["front", "one", "two", "three"]
    found = book_figures.numbering(order, pages, lambda name, home: "<p>" if name == "words" else shown(name))
    assert {(one.number, *key, one.page, one.anchor) for key, one in found.items()} == {
        (1, "own", "front", "front", "fig-own"), (2, "a", "n1", "one", "fig-a"),
        (3, "b", "n1", "one", "fig-b"), (4, "a", "n2", "two", "fig-a-n2"),
    }  # fmt: skip
    lent = book_figures.numbering(order[:3], pages, lambda name, home: shown(name), ("one",))
    assert {(one.number, *key, one.page) for key, one in lent.items()} == {
        (1, "b", "n1", "front"), (2, "own", "front", "front"),
        (3, "a", "n1", "two"), (4, "a", "n2", "two"), (5, "words", "n2", "two"),
    }  # fmt: skip


def test_alternative_text_describes_extremes_or_the_drawing():
    measured, sketched = (next(figures_in(shown(provenance=origin))) for origin in ("model a", "a drawing; no model"))
    assert book_figures.alternative(measured) == "Chart. A &amp; B Coupling from 0.25 at block 1 to 0.5 at block 2."
    assert book_figures.alternative(sketched) == "Drawing. A &amp; B"
    kinds = {"block_jacobian": "Map", "token_jacobian": "Map", "block_a": "Graph", "step": "Chart"}
    assert {place: kind_of(pd.DataFrame({place: [1]})) for place in kinds} == kinds


@pytest.fixture(autouse=True)
def light() -> Iterator[None]:
    with style.theme("light"):
        yield


def cut(figure: Figure) -> list[panels.Piece]:
    return panels.windows(style.save_svg(figure).decode())


def lines(*titles: str, **options: object) -> tuple[Figure, list[Axes]]:
    figure, row = parts.panels(list(titles), 2.0, **options)
    for axes in row:
        axes.plot([0, 1], [0, 1], label="line")
    return figure, list(row)


def drawn(count: int, **options: object) -> tuple[str, list[panels.Box]]:
    """A row of panels as SVG, and where matplotlib has put them, in points from the top."""
    figure, row = lines(*(f"panel {n}" for n in range(count)), **options)
    for axes in row:
        axes.set_ylabel("" if options.get("sharey") and axes is not row[0] else "value")
    parts.legend_under(figure, row)
    svg, high = style.save_svg(figure).decode(), figure.get_figheight()
    places = [axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted()) for axes in row]
    return svg, [panels.Box(*(72 * side for side in (at.x0, high - at.y1, at.x1, high - at.y0))) for at in places]


@pytest.mark.parametrize("count", [2, 3])
def test_each_panel_and_legend_has_its_own_window(count):
    svg, places = drawn(count)
    *pieces, legend = panels.windows(svg)
    assert [(len(piece.windows), piece.loose) for piece in pieces] == [(1, False)] * count
    for (window,), place in zip((piece.windows for piece in pieces), places, strict=True):
        assert window.left <= place.left and place.right <= window.right
        assert window.top <= place.top and place.bottom <= window.bottom
    windows = [piece.windows[0] for piece in pieces]
    assert all(one.right <= other.left for one, other in pairwise(windows))
    (entry,) = legend.windows
    assert legend.loose and entry.top > places[0].bottom and entry.bottom <= 2 * 72
    # A line of 15 points and the word beside it.
    assert 30 < entry.right - entry.left < 60


def test_panels_borrow_axes_and_legend_entries_stay_apart():
    svg, places = drawn(2, sharey=True)
    first, second, _ = panels.windows(svg)
    axis, panel = second.windows
    assert len(first.windows) == 1 and axis.right == pytest.approx(places[0].left, abs=0.1) and axis.left >= 0
    assert axis.top == panel.top and places[0].bottom < axis.bottom < panel.bottom
    figure, row = parts.panels(["left", "right"], 2.0)
    for label in ("coupling", "untrained (step 0)", "coupling of the traceless part", "chance"):
        row[0].plot([0, 1], [1, 2], marker="o", label=label)
    parts.legend_under(figure, row[:1], columns=4)
    entries = cut(figure)[-1].windows
    assert len(entries) == 4 and all(one.right <= other.left for one, other in pairwise(entries))
    assert all(entry.right - entry.left > 40 for entry in entries)


def test_panels_without_axes_are_cut_and_titles_wrap():
    figure, row = lines("left", "right")
    for axes in row:
        parts.blank(axes)
    figure.suptitle("as many words as a phone has no room for on one line of text", fontsize=9)
    parts.legend_under(figure, row, title="what it is")
    above, left, right, title, entry = cut(figure)
    assert [piece.loose for piece in (above, left, right, title, entry)] == [True, False, False, True, True]
    assert len(above.windows) == 15 and len(title.windows) == len(entry.windows) == 1
    assert all(one.right == other.left for one, other in pairwise(above.windows))
    assert above.windows[0].top < left.windows[0].top < title.windows[0].top < entry.windows[0].top


def test_second_scales_belong_to_panels_and_legends_not():
    figure, (axes,) = lines("")
    axes.twinx().set_ylabel("right")
    parts.legend_under(figure, [axes])
    panel, legend = cut(figure)
    assert panel.windows[0].right > 72 * style.WIDTH - 8 and legend.loose
    figure, axes, right = parts.one_panel(3.0)
    axes.plot([0, 1], [0, 1], label="line")
    axes.set(xlabel="across", ylabel="upwards")
    parts.legend_beside(right, [axes])
    panel, legend = cut(figure)
    (window,), (entry,) = panel.windows, legend.windows
    # 376 CSS pixels, where 8 points are 10.
    assert 280 < window.right - window.left < 300.8 and window.right < entry.left
    assert not panel.loose and legend.loose


def test_named_rows_fit_phones_and_columns_stay_together():
    figure, row = lines("", "", named=True, sharey=True)
    for axes in row:
        parts.rows_axis(axes, ["normalized_miscoupling", "another"])
    pieces = cut(figure)
    assert [len(piece.windows) for piece in pieces] == [1, 2]
    assert all(sum(window.right - window.left for window in piece.windows) < 300.8 for piece in pieces)
    figure, grid = parts.grid(2, 2, 6.0, sharex=True)
    for column, image in zip(grid.T, (1.0, 2.0), strict=True):
        for axes in column:
            drawn_image = axes.imshow([[0.0, image]])
        figure.colorbar(drawn_image, ax=list(column), location="bottom", label="size")
    pieces = cut(figure)
    assert [piece.loose for piece in pieces] == [False, False, True, True] * 2
    middle = 72 * style.WIDTH / 2
    assert all(window.right <= middle + 5 for piece in pieces[:4] for window in piece.windows)
    assert all(piece.windows[-1].right > middle for piece in pieces[4:])


def test_single_panel_is_cut_and_a_drawing_not():
    svg, (place,) = drawn(1)
    (panel,), (entry,) = (piece.windows for piece in panels.windows(svg))
    assert panel.right - panel.left > place.right - place.left > 9 * (entry.right - entry.left)
    figure, (axes,) = parts.panels([""], 2.0)
    axes.text(0.5, 0.5, "drawn")
    axes.set_axis_off()
    assert cut(figure) == [] and panels.smallest(svg) == 8.0
    pieces = [panels.Piece([panels.Box(0, 1.5, 3, 9)]), panels.Piece([panels.Box(0, 0, 1, 1)] * 2, loose=True)]
    assert panels.written(pieces, 2.0) == "0,3,6,15 ~0,0,2,2+0,0,2,2"


# Smaller than any with a palette, so it stays as it is.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
DRAWING = b"""<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 10">
 <metadata>by a program</metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="axes_1"><path id="patch_1" d="M 0 0 L 9 9 z " style="fill: none"/>
  <g id="text_1"><!-- a --><g style="fill: #222222" transform="translate(1.2345 2) scale(0.08 -0.08)">
   <defs><path id="DejaVuSans-44" d="M 640 64 L 0 128 Q 1 1 64 -64 z " transform="scale(0.015625)"/></defs>
   <use xlink:href="#DejaVuSans-44"/><use xlink:href="#DejaVuSans-44" transform="translate(61.2793 0.015625)"/></g></g>
  <path id="line" d="M 3.14159 0.5 L 3.64159 0.25 C 4 1 5 2 6.001 3 L 6 3 " clip-path="url(#clip)"
   style="fill: none; stroke: red; stroke-opacity: 0.087047; stroke-width: 0.5"/>
  <image xlink:href="data:image/png;base64,\nDOT" transform="matrix(1.921282 0 0 1.921282 7 8)"
   style="fill: none; stroke: red; stroke-opacity: 0.08704; stroke-width: 0.5"/>
 </g>
 <defs><clipPath id="clip"><rect x="35.21875" y="16.598437" width="9" height="0.123456"/></clipPath></defs>
</svg>""".replace(b"DOT", DOT.encode())


def test_smaller_drawing_loses_nothing_that_is_seen():
    assert drawing.light(DRAWING).decode() == (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"><defs><style type="text/css">'
        "*{stroke-linejoin: round}.a{fill:none}.b{fill:#222222}.c{fill:none;stroke:red;"
        "stroke-opacity:0.09;stroke-width:0.5}</style></defs>"
        '<g transform="translate(1.23 2) scale(0.08 -0.08)" class="b"><defs>'
        '<path id="a" d="M10 1l-10 1q0-2 1-3z"/></defs><use href="#a"/><use href="#a" x="61.3"/></g>'
        '<path d="M3.14 .5l.5-.25c.36 .75 1.36 1.75 2.36 2.75l0 0" clip-path="url(#b)" class="c"/>'
        f'<image href="data:image/png;base64,{DOT}" transform="matrix(1.921282 0 0 1.921282 7 8)" class="c"/>'
        '<defs><clipPath id="b"><rect x="35.22" y="16.6" width="9" height="0.123456"/></clipPath></defs></svg>'
    )
    assert [drawing._short(number) for number in (0, 51, 52, 2755, 2756)] == ["a", "Z", "aa", "ZZ", "aaa"]
    full = style.save_svg(draw_two(TABLE))
    less = drawing.light(full)
    assert len(less) < 0.6 * len(full)
    assert less.count(b"scale(") == full.count(b"scale(") - full.count(b"scale(0.015625)")
    assert panels.smallest(less.decode()) == panels.smallest(full.decode()) == 8.0


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png")
    return buffer.getvalue()


def test_one_file_holds_light_and_dark_colours():
    drawn, used = b'<path id="m" d="M 0 0 L 9 9" style="stroke: #111"/>', b'<use xlink:href="#m" style="stroke: #111"/>'
    light = DRAWING.replace(b"<defs><clipPath", b"<defs>" + drawn + b"</defs>" + used + b"<defs><clipPath")
    # In the dark marks have names of their own, a line has no opacity, and a map other pixels.
    dark = light.replace(b"#222222", b"#eeeeee").replace(b"#111", b"#fff").replace(b'"m"', b'"n"').replace(b"#m", b"#n")
    white = base64.b64encode(png(Image.new("L", (1, 1), 255)))
    dark = dark.replace(b"stroke-opacity: 0.087047; ", b"").replace(DOT.encode(), white)
    both = drawing.light(light, dark).decode()
    assert both.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10" id="dark">')
    sheet = both.partition("</style>")[0]
    assert ".b{fill:#222222}" in sheet and ":target .b{fill:#eeeeee}" in sheet and ":target .a{" not in sheet
    assert "stroke-opacity:0.09;" in sheet and ":target .c{stroke-opacity:unset}" in sheet
    # Of two maps one is seen; a mark has the look of its use.
    shown, hidden = (name for name in "de" if f'class="{name}"/>' in both and f".{name}{{" in sheet)
    assert {shown, hidden} == {"d", "e"} and sheet.count("display:none") == 2 and both.count("<image ") == 2
    assert '<path id="b" d="M0 0l9 9"/>' in both and '<use href="#b" class="f"/>' in both
    assert ".f{stroke:#111}:target" in sheet
    moved = light.replace(b"M 0 0 L 9 9", b"M 0 0 L 9 8")
    for other, message in ((moved, "differ in .'d'."), (DRAWING, "more than their colours")):
        with pytest.raises(ValueError, match=message):
            drawing.light(light, other)


@pytest.mark.parametrize(("colours", "most"), [(2, 0.5), (256, 0.5), (257, 1.0)])
def test_palette_keeps_every_pixel_in_half_the_bytes(colours, most):
    cells = np.random.default_rng(0).permutation(np.arange(10_000) % colours).reshape(100, 100)
    # Some colours are seen through, as where a map has no value.
    pixels = np.stack([cells % 256, cells // 256, 255 - cells % 256, 255 - cells % 2], -1).astype(np.uint8)
    full = png(Image.fromarray(pixels, "RGBA"))
    less = drawing.with_palette(full)
    assert np.array_equal(np.array(Image.open(io.BytesIO(less)).convert("RGBA")), pixels)
    assert len(less) <= most * len(full) and (less == full) == (colours > 256)
