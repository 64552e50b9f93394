"""Figures on their pages: both themes, data and provenance, records for the book's prose."""

import io

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
from companion.figures.figure_reader import figures_in
from tests.companion.figures.drawn import titles

DATA = pd.DataFrame({"block": [1, 2], "coupling": [0.123456789, 1e-9]})


def draw_demo(data):
    return Figure(figsize=(1, 1))


def shown(draw=draw_demo, **changes):
    arguments = {"data": DATA, "name": "demo", "caption": "A <b> & 1−m", "provenance": "model a · seed 0"}
    return shows.show(draw, **(arguments | changes))


def read(*given, **changes):
    (one,) = figures_in(shown(*given, **changes).data)
    return one


def test_figure_is_drawn_once_under_each_theme():
    themes = []

    def draw(data, null):
        assert data is DATA and null == 0.95
        themes.append(style.colour(style.TRAINED))
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, "x")
        return figure

    (light, first), (dark, second) = map(read(draw, null=0.95).pictures.get, ("light", "dark"))
    assert themes == ["#0072b2", "#56b4e9"] and (light, dark) == ("svg", "svg")
    assert b"#222222" in first and b"#e4e4e4" in second


def test_large_drawing_is_shown_as_pixels(monkeypatch):
    assert shown(draw=None, data=None) is None
    monkeypatch.setattr(shows, "LARGEST_SVG", 10)
    kind, picture = read().pictures["light"]
    assert kind == "png" and picture.startswith(b"\x89PNG")


def test_download_is_the_data_and_caption_is_escaped():
    one = read()
    assert one.csv.startswith("# figure demo\n# model a\n# seed 0\nblock,coupling\n")
    pd.testing.assert_frame_equal(one.table, DATA, rtol=1e-4)
    assert 'alt="A &lt;b&gt; &amp; 1−m"' in one.markup and "<b>" not in one.markup
    assert '<a download="demo.csv" href="data:text/csv;charset=utf-8,' in one.markup
    assert '<span class="tbc-provenance">model a · seed 0</span></figcaption></figure>' in one.markup


def test_provenance_comes_from_records_and_command(monkeypatch):
    monkeypatch.setattr(shows, "_command", "")
    records = [{"model": "a", "token": -1, "command": "python x.py"}, {"model": "b", "token": -1, "untrained": 1}]
    data = xr.DataArray([1.0], dims="block", name="c", attrs={"records": records})

    def origin(**given):
        return read(**({"data": data, "provenance": ""} | given)).origin

    measured = "model a and model b · trained and untrained · token -1"
    assert origin() == origin(data={"x": data[:1], "y": data}) == f"{measured} · python x.py"
    assert origin(provenance="a table") == "a table"
    command = shows.made_by("depth", {"k": 5})
    assert command == "papermill notebooks/depth.ipynb out.ipynb -p k 5"
    assert origin() == f"{measured} · {command}"
    assert origin(provenance="a table") == f"a table · {command}"
    assert origin(data=data.assign_attrs(origin="a drawing")) == "a drawing"


def test_record_changes_only_with_the_numbers():
    sizes = "mean 0.061728, rms 0.087297, ramp 0.061728"
    assert repr(shown()) == repr(shown(caption="other")) == f"<figure demo: 2 rows; coupling: 2 numbers, {sizes}>"
    assert shown().data == shown().data
    assert repr(shown(data=DATA * 1.1)) != repr(shown()) != repr(shown(data=DATA.iloc[::-1]))
    assert repr(shown(data=DATA.assign(coupling=DATA.coupling * (1 + 1e-9)))) == repr(shown())
    assert shows.fingerprint(pd.DataFrame({"text": ["a", "b"]})) == "2 rows"
    assert shows.fingerprint(pd.DataFrame({"zero": [0.0]})) == "1 rows; zero: 1 numbers, mean 0, rms 0, ramp 0"


def test_print_figure_is_one_small_picture(monkeypatch):
    monkeypatch.setenv("COUPLING_FIGURES", "print")
    one = read()
    assert [(theme, kind) for theme, (kind, _) in one.pictures.items()] == [("light", "png")] and one.csv
    assert read(data=pd.DataFrame({"block": range(9000)})).csv == ""
    monkeypatch.setattr(shows, "_PRINT_CSV", 10)
    assert (read().caption, read().csv) == ("A <b> & 1−m", "") and "run the notebook" in read().markup


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
    picture = Image.open(io.BytesIO(read(draw).pictures["light"][1]))
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    for ink in ("#d55e00", *inks):
        assert abs(pixels - np.array(ImageColor.getrgb(ink))).max(axis=-1).min() <= 2


def test_arrays_become_tables_with_a_row_per_place():
    coords = {"prompt": ["first", "second"], "block": [1, 2], "model": "scalar"}
    values = xr.DataArray([[0.5, np.nan], [0.25, 0.125]], coords, ("prompt", "block"))
    found = {"prompt": [1, 2, 2], "block": [1, 1, 2], "value": [0.5, 0.25, 0.125]}
    assert shows.frame(values).to_dict("list") == found
    assert list(shows.frame(values.rename("coupling")).columns) == ["prompt", "block", "coupling"]
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
    ((key, glued),) = extract_glue_data_cell(nbformat.v4.new_code_cell(outputs=[record]))
    assert (key, glued["data"]) == ("depth-demo", {"text/plain": text})


def test_panels_bear_the_letters_that_the_caption_names():
    drawn = []

    def draw(data):
        figure = Figure(figsize=(2, 1))
        for axes, title in zip(figure.subplots(1, 3), ("one", "", "three"), strict=True):
            axes.set_title(title, fontweight="normal")
        drawn.append(figure.axes)
        return figure

    shown(draw, caption="(a) First. (b) Second.")
    shown(draw, caption="One (of three).")
    assert [titles(panels) for panels in drawn] == [["(a) one", "(b)", "three"]] * 2 + [["one", "", "three"]] * 2
    assert drawn[0][0].title.get_fontweight() == "normal"
