"""Figures on their pages: both themes, data and provenance, records for the book's prose."""

import base64
import io
import re
from urllib.parse import unquote

import nbformat
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from myst_nb.ext.glue import extract_glue_data_cell

from coupling_lib.figures import display, style

DATA = pd.DataFrame({"block": [1, 2], "coupling": [0.123456789, 1e-9]})


def shown(draw=lambda: Figure(figsize=(1, 1)), **changes):
    arguments = {"data": DATA, "name": "demo", "caption": "A <b> & 1−m", "provenance": "model a · seed 0"}
    return display.show(draw, **(arguments | changes))


def test_the_figure_is_drawn_once_under_each_theme():
    themes = []

    def draw():
        themes.append(style.colour(style.TRAINED))
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, "x")
        return figure

    images = re.findall(r'<img class="(only-\w+)" src="data:image/svg\+xml;base64,([^"]+)"', shown(draw).data)
    assert themes == ["#0072b2", "#56b4e9"]
    assert [kind for kind, _ in images] == ["only-light", "only-dark"]
    pictures = [base64.b64decode(source) for _, source in images]
    assert b"#222222" in pictures[0] and b"#e4e4e4" in pictures[1]


def test_a_large_drawing_becomes_an_image_of_pixels(monkeypatch):
    monkeypatch.setattr(display, "LARGEST_SVG", 10)
    (source, *_) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown().data)
    assert base64.b64decode(source).startswith(b"\x89PNG")


def test_the_download_is_the_data_under_its_provenance():
    name, address = re.search(
        r'<a download="([^"]+)" href="data:text/csv;charset=utf-8,([^"]+)"', shown().data
    ).groups()
    text = unquote(address)
    assert name == "demo.csv"
    assert text.startswith("# figure demo\n# model a\n# seed 0\nblock,coupling\n")
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(text), comment="#"), DATA, rtol=1e-4)


def test_caption_and_provenance_are_escaped_and_stand_under_the_figure():
    markup = shown().data
    assert 'alt="A &lt;b&gt; &amp; 1−m"' in markup
    assert '<span class="tbc-provenance">model a · seed 0</span></figcaption></figure>' in markup
    assert "<b>" not in markup


def test_the_record_in_a_notebook_is_short_and_always_the_same():
    assert repr(shown()) == repr(shown(caption="other")) == "<figure demo>"
    assert shown().data == shown().data


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), ("twelve", "twelve")])
def test_remembered_values_reach_the_books_glue_and_are_not_displayed(value, text):
    InteractiveShell.instance()
    with capture_output() as captured:
        display.remember("depth-demo", value)
    (output,) = captured.outputs
    record = nbformat.v4.new_output("display_data", data=dict(output.data), metadata=dict(output.metadata))
    assert list(record.data) == ["application/papermill.record/text/plain"]
    cell = nbformat.v4.new_code_cell(outputs=[record])
    ((key, glued),) = extract_glue_data_cell(cell)
    assert (key, glued["data"]) == ("depth-demo", {"text/plain": text})
