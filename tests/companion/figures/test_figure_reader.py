"""What `show` writes is read back whole."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures.figure_reader import figures_in
from companion.figures.show import show

TABLE = pd.DataFrame({"block": [1, 2], "coupling": [0.25, 0.5]})


def draw_demo(data: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot(data.block, data.coupling)
    return figure


def test_all_of_what_show_writes_is_found_again():
    shown = show(draw_demo, TABLE, name="demo", caption='A & "B" < C', provenance="model a · seed 0").data
    one, other = figures_in(f"<p>before</p>{shown}\n{shown}after")
    assert one == other and one.markup == shown
    assert (one.name, one.caption, one.origin) == ("demo", 'A & "B" < C', "model a · seed 0")
    assert one.drawn_by == f"{__name__}.draw_demo"
    pd.testing.assert_frame_equal(one.table, TABLE)
    assert one.csv.startswith("# figure demo\n# model a\n# seed 0\n") and ">Data (CSV)</a>" in one.markup
    (light, first), (dark, second) = one.pictures["light"], one.pictures["dark"]
    assert (light, dark) == ("svg", "svg") and first.startswith(b"<?xml") and first != second
