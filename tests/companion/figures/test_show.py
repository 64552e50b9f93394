"""Figures on their pages: both themes, data and provenance, records for the book's prose."""

import base64
import io
import re
from urllib.parse import unquote

import nbformat
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from myst_nb.ext.glue import extract_glue_data_cell
from PIL import Image, ImageColor

from companion.figures import show as shows
from companion.figures import style

DATA = pd.DataFrame({"block": [1, 2], "coupling": [0.123456789, 1e-9]})


def shown(draw=lambda data: Figure(figsize=(1, 1)), **changes):
    arguments = {"data": DATA, "name": "demo", "caption": "A <b> & 1−m", "provenance": "model a · seed 0"}
    return shows.show(draw, **(arguments | changes))


def test_figure_is_drawn_once_under_each_theme():
    themes = []

    def draw(data, null):
        assert data is DATA and null == 0.95
        themes.append(style.colour(style.TRAINED))
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, "x")
        return figure

    images = re.findall(
        r'<img class="(only-\w+)" src="data:image/svg\+xml;base64,([^"]+)"', shown(draw, null=0.95).data
    )
    assert themes == ["#0072b2", "#56b4e9"]
    assert [kind for kind, _ in images] == ["only-light", "only-dark"]
    pictures = [base64.b64decode(source) for _, source in images]
    assert b"#222222" in pictures[0] and b"#e4e4e4" in pictures[1]


def test_large_drawing_is_shown_as_pixels(monkeypatch):
    assert shown(draw=None, data=None) is None
    monkeypatch.setattr(shows, "LARGEST_SVG", 10)
    (source, *_) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown().data)
    assert base64.b64decode(source).startswith(b"\x89PNG")


def test_download_is_the_data_and_caption_is_escaped():
    name, address = re.search(
        r'<a download="([^"]+)" href="data:text/csv;charset=utf-8,([^"]+)"', shown().data
    ).groups()
    text = unquote(address)
    assert name == "demo.csv"
    assert text.startswith("# figure demo\n# model a\n# seed 0\nblock,coupling\n")
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(text), comment="#"), DATA, rtol=1e-4)
    markup = shown().data
    assert 'alt="A &lt;b&gt; &amp; 1−m"' in markup
    assert '<span class="tbc-provenance">model a · seed 0</span></figcaption></figure>' in markup
    assert "<b>" not in markup


def test_provenance_comes_from_records_and_command(monkeypatch):
    monkeypatch.setattr(shows, "_command", "")
    records = [{"model": "a", "token": -1, "command": "python x.py"}, {"model": "b", "token": -1, "untrained": 1}]
    data = xr.DataArray([1.0], dims="block", name="c", attrs={"records": records})

    def origin(**given):
        return (
            shown(**({"data": data, "provenance": ""} | given)).data.partition('tbc-provenance">')[2].partition("<")[0]
        )

    assert origin() == "model a and model b · trained and untrained · token -1 · python x.py"
    assert origin(data={"x": data[:1], "y": data}) == origin() and origin(provenance="a table") == "a table"
    command = shows.made_by("depth", {"k": 5})
    assert command == "papermill notebooks/depth.ipynb out.ipynb -p k 5"
    assert origin() == f"model a and model b · trained and untrained · token -1 · {command}"
    assert origin(provenance="a table") == f"a table · {command}"
    assert origin(data=data.assign_attrs(origin="a drawing")) == "a drawing"


def draw_demo(data):
    return Figure(figsize=(1, 1))


def test_record_changes_only_with_the_numbers():
    assert f'<figure class="tbc-figure" data-drawn-by="{__name__}.draw_demo">' in shown(draw_demo).data
    sizes = "mean 0.061728, rms 0.087297, ramp 0.061728"
    assert repr(shown()) == repr(shown(caption="other")) == f"<figure demo: 2 rows; coupling: 2 numbers, {sizes}>"
    assert shown().data == shown().data
    assert repr(shown(data=DATA * 1.1)) != repr(shown()) != repr(shown(data=DATA.iloc[::-1]))
    assert repr(shown(data=DATA.assign(coupling=DATA.coupling * (1 + 1e-9)))) == repr(shown())
    assert shows.fingerprint(pd.DataFrame({"text": ["a", "b"]})) == "2 rows"
    assert shows.fingerprint(pd.DataFrame({"zero": [0.0]})) == "1 rows; zero: 1 numbers, mean 0, rms 0, ramp 0"


def test_print_figure_is_one_small_picture(monkeypatch):
    monkeypatch.setenv("COUPLING_FIGURES", "print")
    markup = shown().data
    assert re.findall(r'class="(only-\w+)" src="data:image/(\w+)', markup) == [("only-light", "png")]
    assert "Data (CSV)" in markup
    monkeypatch.setattr(shows, "_PRINT_CSV", 10)
    assert "Data (CSV)" not in shown().data and "run the notebook" in shown().data


def test_small_mark_keeps_its_colour_in_print(monkeypatch):
    inks = ["#009e73", "#b0568a", "#b07d00", "#0072b2"]

    def draw(data):
        figure = Figure()
        axes = figure.subplots()
        for at, ink in enumerate(inks):
            wave = np.sin(np.arange(8) + at)
            axes.plot(wave, "o-", color=ink)
            axes.fill_between(range(8), wave - 0.2, wave + 0.3, color=ink, alpha=0.2)
        axes.plot(3, 0, "o", color="#d55e00")
        return figure

    monkeypatch.setenv("COUPLING_FIGURES", "print")
    (source,) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown(draw).data)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))).convert("RGB")).astype(int)
    for ink in ("#d55e00", *inks):
        assert abs(pixels - np.array(ImageColor.getrgb(ink))).max(axis=-1).min() <= 2


def test_arrays_become_tables_with_a_row_per_place():
    coords = {"prompt": ["first", "second"], "block": [1, 2], "model": "scalar"}
    values = xr.DataArray([[0.5, np.nan], [0.25, 0.125]], coords, ("prompt", "block"), name="coupling")
    table = shows.frame(values)
    assert table.to_dict("list") == {"prompt": [1, 2, 2], "block": [1, 1, 2], "coupling": [0.5, 0.25, 0.125]}
    assert list(shows.frame(values.rename(None)).columns) == ["prompt", "block", "value"]
    ds = xr.Dataset({"mean": ("block", [1.0, 2.0]), "low": ("block", [0.5, 1.5]), "null": 0.95}, {"block": [1, 2]})
    table = shows.frame(ds)
    assert list(table.columns) == ["block", "mean", "low", "null"] and len(table) == 3
    assert table["low"].tolist()[:2] == [0.5, 1.5] and table["null"].tolist()[2] == 0.95
    both = shows.frame({"a": ds[["mean"]], "b": ds[["mean"]]})
    assert both.to_dict("list") == {"model": ["a", "a", "b", "b"], "block": [1, 2, 1, 2], "mean": [1.0, 2.0] * 2}
    matrix = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], {"row": [1, 2], "column": [1, 2]}, ("row", "column"), name="entry")
    assert shows.frame(matrix).to_dict("list") == {"row": [1, 2], "entry_1": [1.0, 3.0], "entry_2": [2.0, 4.0]}


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), ("twelve", "twelve")])
def test_remembered_values_reach_glue_without_display(value, text):
    InteractiveShell.instance()
    with capture_output() as captured:
        shows.remember("depth", {"demo": value, "other": 1})
    output, _ = captured.outputs
    record = nbformat.v4.new_output("display_data", data=dict(output.data), metadata=dict(output.metadata))
    assert list(record.data) == ["application/papermill.record/text/plain"]
    cell = nbformat.v4.new_code_cell(outputs=[record])
    ((key, glued),) = extract_glue_data_cell(cell)
    assert (key, glued["data"]) == ("depth-demo", {"text/plain": text})


def test_panels_bear_the_letters_that_the_caption_names():
    titles = {}

    def draw(data):
        figure = Figure(figsize=(2, 1))
        for axes, title in zip(figure.subplots(1, 3), ("one", "", "three"), strict=True):
            axes.set_title(title, fontweight="normal")
        titles[len(titles)] = figure.axes
        return figure

    shown(draw, caption="(a) First. (b) Second.")
    shown(draw, caption="One (of three).")
    found = [[axes.get_title() for axes in row] for row in titles.values()]
    assert found == [["(a) one", "(b)", "three"]] * 2 + [["one", "", "three"]] * 2
    assert titles[0][0].title.get_fontweight() == "normal"
