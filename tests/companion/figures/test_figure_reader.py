"""What `show` writes is read back whole."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures.figure_reader import figures_in
from companion.figures.show import show

TABLE = pd.DataFrame({"block": [1, 2], "coupling": [0.25, 0.5]})


def draw_demo(data: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot(data.iloc[:, 0])
    return figure


def shown(data: pd.DataFrame) -> str:
    return show(draw_demo, data, name="demo", caption='A & "B" < C', provenance="model a · seed 0").data


def test_all_of_what_show_writes_is_found_again():
    one, other = figures_in(f"<p>before</p>{shown(TABLE)}\n{shown(TABLE)}after")
    assert one == other and one.markup == shown(TABLE)
    assert (one.name, one.caption, one.origin) == ("demo", 'A & "B" < C', "model a · seed 0")
    assert one.drawn_by == f"{__name__}.draw_demo"
    pd.testing.assert_frame_equal(one.table, TABLE)
    assert one.csv.startswith("# figure demo\n# model a\n# seed 0\n") and ">Data (CSV)</a>" in one.markup
    assert {theme: kind for theme, (kind, _) in one.pictures.items()} == {"light": "svg", "dark": "svg"}
    light, dark = (picture for _, picture in one.pictures.values())
    assert light.startswith(b"<?xml") and light != dark


def test_long_table_is_left_out_for_print(monkeypatch):
    monkeypatch.setenv("COUPLING_FIGURES", "print")
    (one,) = figures_in(shown(pd.DataFrame({"block": range(9000)})))
    assert (one.caption, one.csv, list(one.pictures)) == ('A & "B" < C', "", ["light"])
