"""Figures of trajectories: what is drawn is what was measured, for one model or many, with and without entropy."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from companion.figures import style, trajectories
from companion.figures.show import frame
from companion.tables.arrays import side_by_side
from tests.companion.figures.drawn import assert_text_inside
from tests.companion.figures.made import made, names

PATHS, ENTROPIES = ("path", "path_share", "path_token"), ("entropy", "entropy_normed")


def make_trajectories(seed, n_blocks=6, width=3, n_prompts=5):
    windows = n_blocks - width + 1
    sizes = {"prompt": n_prompts, "level": n_blocks + 1, "block": n_blocks, "centre": windows}
    sizes |= {"states": 4, "reading": 3, "position": 4, "component": 2}
    drawn = (
        dict.fromkeys(trajectories.SCORES, ("prompt", 0.5, 3))
        | dict.fromkeys(("norm", *ENTROPIES), ("prompt level", 0.5, 3))
        | dict.fromkeys(("window_line_shape_score", "window_expodistance"), ("prompt centre", 0.5, 3))
        | {"step_length": ("prompt block", 0.5, 3), "readings": ("prompt states reading", 0.5, 3)}
        | {"path": ("level position component", -2, 2)}
    )
    places = {"level": range(n_blocks + 1), "block": range(n_blocks), "centre": np.arange(windows) + width // 2}
    conventions = ["default", "without embedding", "normed end", "both"]
    ds = made(seed, sizes, drawn, **places, states=conventions, reading=list(trajectories.SCORES))
    ds = ds.assign(path_share=("component", [0.5, 0.25]), path_token=("position", ["It", " was", " the", " best"]))
    return ds.assign_attrs(window=width, entropy_missing="")


def states(n=2, without=()):
    return {name: make_trajectories(seed).drop_vars(without) for seed, name in enumerate(names(n), start=1)}


def both(n=2, **how):
    return side_by_side(**states(n, **how))


def models(n, **changes):
    """Several models, the second and third with long names."""
    names = ["organisation/model", *(f"organisation/a-model-with-a-long-name-{i}" for i in range(n - 1))]
    return {name: both().assign(**changes) for name in names}


def unlike(n):
    """Models of which the first is deeper and gives no next token, and the last is the only one in the registry."""
    found = models(n) | {"nano-llama": both()}
    deep = {name: make_trajectories(i, n_blocks=12, width=5) for i, name in enumerate(("untrained", "trained"))}
    bare = {name: ds.drop_vars(ENTROPIES).assign_attrs(entropy_missing="no head") for name, ds in deep.items()}
    return found | {next(iter(found)): side_by_side(**bare)}


def no_growth(n):
    return trajectories.take_scores(models(n, expodistance=both().expodistance * float("nan")))


CASES = {
    "draw_scores of many": (trajectories.draw_scores, lambda n: trajectories.take_scores(models(n + 4))),
    "draw_scores without growth": (trajectories.draw_scores, no_growth),
    "draw_profiles with a line": (trajectories.draw_profiles, lambda n: trajectories.take_profiles(both(n), turn=-1)),
    "draw_profiles without entropy": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(both(n, without=ENTROPIES)),
    ),
    "draw_profiles of one prompt": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(both(n).isel(prompt=[0])),
    ),
    "draw_profiles of models": (trajectories.draw_profiles, lambda n: trajectories.take_profiles(unlike(n + 1), -1)),
    "draw_paths of models": (trajectories.draw_paths, lambda n: trajectories.take_paths(unlike(n + 1))),
}


def scores():
    return trajectories.take_scores({"model": both()})


def test_every_prompt_is_a_dot_beside_quartiles():
    taken = scores()
    figure = trajectories.draw_scores(taken)
    for axes, score in zip(figure.axes, trajectories.SCORES, strict=True):
        for dots, (network, dataset) in zip(axes.collections, states().items(), strict=True):
            np.testing.assert_allclose(dots.get_offsets()[:, 1], dataset[score])
            assert to_hex(dots.get_facecolor()[0]) == style.colour(network)
        bar = next(line for line in axes.lines if line.get_linewidth() == 4)
        quartiles = np.quantile(states()["untrained"][score], (0.25, 0.75))
        np.testing.assert_allclose(bar.get_ydata(), quartiles)
    table = frame(taken)
    assert len(table.line_shape_score.dropna()) == 2 * 5 and table.blocks.dropna().tolist() == [6]
    axes = trajectories.draw_scores(scores()).axes[0]
    heights = [line.get_ydata()[0] for line in axes.lines]
    assert any(height == pytest.approx(np.sqrt(6)) for height in heights) and 1 in heights


def test_prompts_without_a_score_are_left_out():
    holes = both().assign(expodistance=both().expodistance.where(both().prompt != both().prompt[0]))
    taken = trajectories.take_scores({"model": holes})
    axes = trajectories.draw_scores(taken).axes[1]
    wanted = np.quantile(holes.expodistance.sel(network="trained")[1:], (0.25, 0.5, 0.75))
    bars = [line.get_ydata() for line in axes.lines if line.get_linewidth() == 4]
    np.testing.assert_allclose(bars[1], wanted[[0, 2]])
    line = trajectories.take_summary({"model": holes}).loc["model", "trained", "expodistance"]
    np.testing.assert_allclose(line[["low", "median", "high"]], wanted)
    given = {"model": both().assign(expodistance=both().expodistance * np.nan)}
    taken = trajectories.take_scores(given)
    assert [text.get_text() for text in trajectories.draw_scores(taken).axes[1].texts] == [
        "does not exist:\nno net growth"
    ]
    assert np.isnan(trajectories.take_summary(given).loc["model", "trained", "expodistance"]).all()


def test_a_single_step_has_no_score():
    one = side_by_side(**{name: make_trajectories(1, n_blocks=1, width=1) for name in names(2)})
    assert np.isnan(trajectories.take_summary({"one": one})).all(axis=None)
    found = trajectories.numbers_of(one)
    assert np.isnan([value for name, value in found.items() if name != "prompts"]).all()
    assert trajectories.take_conventions(one.sel(network="trained")).isna().all(axis=None)
    assert "window_line_shape_score" not in trajectories.take_profiles(one).dropna("quantity", how="all").quantity
    drawn = trajectories.draw_scores(trajectories.take_scores({"one": one}))
    assert [axes.texts[0].get_text() for axes in drawn.axes[:3]] == ["does not exist:\na single step"] * 3


def test_profiles_are_medians_over_prompts():
    table = frame(trajectories.take_profiles(both()))
    dataset = states()["trained"]
    lengths = dataset.step_length.values
    relative = lengths / lengths.mean(axis=1, keepdims=True)
    chosen = table[(table.network == "trained") & (table.quantity == "relative_step")]
    np.testing.assert_allclose(chosen["median"], np.median(relative, axis=0))
    assert chosen.depth.tolist() == [1, 2, 3, 4, 5, 6]
    chosen = table[(table.network == "trained") & (table.quantity == "entropy")]
    np.testing.assert_allclose(chosen["low"], np.quantile(dataset.entropy, 0.25, axis=0))
    assert chosen.depth.tolist() == list(range(7))
    chosen = table[(table.network == "trained") & (table.quantity == "window_line_shape_score")]
    assert chosen.depth.tolist() == [2, 3, 4, 5]
    axes = trajectories.draw_profiles(trajectories.take_profiles(both())).axes[0]
    for line, (network, dataset) in zip(axes.lines, states().items(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.median(dataset.norm, axis=0))
        assert line.get_xdata().tolist() == list(range(7)) and line.get_color() == style.colour(network)


def test_missing_entropy_leaves_its_panel_out():
    bare = trajectories.take_profiles(both(without=ENTROPIES).assign_attrs(entropy_missing="Thing has no unembedding"))
    full = trajectories.take_profiles(both())
    assert len(trajectories.draw_profiles(full).axes) == 4 and len(trajectories.draw_profiles(bare).axes) == 3
    assert trajectories.profile_caption(bare).endswith("Entropy is left out: Thing has no unembedding.")
    assert "softmax(W x)" in trajectories.profile_caption(full) and "left out" not in trajectories.profile_caption(full)


def test_profiles_of_models_are_sorted_by_size():
    profiles = trajectories.take_profiles(unlike(2), -1)
    assert list(profiles) == ["nano-llama", "organisation/model", "organisation/a-model-with-a-long-name-0"]
    figure = trajectories.draw_profiles(profiles)
    panels = np.array(figure.axes).reshape(4, 3)
    assert [axes.get_title() for axes in panels[0]] == ["nano-llama", "model", "a-model-with-a-long…"]
    names = [f"line-shape score\nof {window} blocks" for window in (3, 5, 3)]
    assert [axes.get_ylabel() for axes in panels[2]] == names
    for column, (name, one) in zip(panels.T, profiles.items(), strict=True):
        np.testing.assert_allclose(
            column[0].lines[0].get_ydata(), np.median(unlike(2)[name].norm.sel(network="untrained"), axis=0)
        )
        upright = [line.get_xdata() for axes in column[:3] for line in axes.lines if len(set(line.get_xdata())) == 1]
        assert upright == [[one.turn] * 2] * 3
        assert column[3].axison == ("entropy" in one.quantity)
    caption, turns = trajectories.profile_caption(profiles, found=True), [one.turn for one in profiles.values()]
    assert "softmax(W x)" in caption and "Entropy is left out: no head." in caption
    assert f"block {turns[0]} of nano-llama, block {turns[1]} of organisation/model, " in caption
    assert set(frame(profiles).model) == set(profiles)


def test_paths_of_models_stand_side_by_side():
    paths = trajectories.take_paths(unlike(2))
    figure = trajectories.draw_paths(paths)
    panels = np.array(figure.axes).reshape(6, 3)
    assert [axes.get_title() for axes in panels[0]] == ["nano-llama", "model", "a-model-with-a-long…"]
    parts = ("all blocks", "shallow", "deep")
    rows = [f"{network}, {part}" for network in ("untrained", "trained") for part in parts]
    assert [axes.get_ylabel() for axes in panels[:, 0]] == rows
    deep = panels[5, 1].lines[0].get_xdata()
    np.testing.assert_allclose(deep, unlike(2)["organisation/model"].sel(network="trained").path.values[6:13, 0, 0])
    alone = unlike(2) | {"organisation/model": both(without=PATHS)}
    assert len(trajectories.draw_paths(trajectories.take_paths(alone)).axes) == 6 * 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_last_token_path_has_the_text_colour(theme):
    with style.theme(theme):
        figure = trajectories.draw_paths(trajectories.take_paths(both()))
        ink = style.colour("text")
    path = states()["untrained"].path.values
    for axes, levels in zip(figure.axes[:3], trajectories.path_ranges(6).values(), strict=True):
        (last,) = [line for line in axes.lines if line.get_color() == ink and line.get_linestyle() == "-"][:1]
        np.testing.assert_allclose(np.transpose(last.get_data()), path[list(levels), -1])
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "all blocks", "shallow: blocks 1-3", "deep: blocks 4-6",
    ]  # fmt: skip


def test_paths_hold_every_token_at_every_level():
    taken = trajectories.take_paths(both())
    table = frame(taken[["text", "component_1", "component_2"]])
    assert len(table) == 2 * 7 * 4
    row = table[(table.network == "trained") & (table.token == 3) & (table.level == 5)].iloc[0]
    assert row.text == " the"
    assert [row.component_1, row.component_2] == pytest.approx(states()["trained"].path.values[5, 2].tolist())
    assert taken.share.sel(network="trained").values.tolist() == [0.5, 0.25]
    empty = trajectories.take_paths(both(without=PATHS))
    assert frame(empty).empty and set(frame(empty).columns) == set(table.columns)
    assert_text_inside(lambda: trajectories.draw_paths(empty))


def test_conventions_table_has_scores_by_states():
    dataset = states()["trained"]
    table = trajectories.take_conventions(dataset)
    assert table.index.tolist() == ["line_shape_score", "expodistance", "equidistance"]
    assert table.columns.tolist() == ["default", "without embedding", "normed end", "both"]
    assert table.loc["expodistance", "both"] == pytest.approx(np.median(dataset.readings.values[:, 3, 1]))


def test_summary_and_quoted_numbers_are_medians_with_quartiles():
    low, middle, high = np.quantile(states()["trained"].line_shape_score, (0.25, 0.5, 0.75))
    summary = trajectories.take_summary({"model": both()})
    line = summary.loc["model", "trained", "line-shape score"]
    assert line[["low", "median", "high"]].tolist() == pytest.approx([low, middle, high])
    quoted = trajectories.numbers_of(both())
    assert quoted["line-shape-score-trained"] == pytest.approx(middle)
    assert quoted["line-shape-score-trained-high"] == pytest.approx(high)
    assert len([name for name in quoted if not name.startswith("change")]) == 2 * 3 * 3 + 1 and quoted["prompts"] == 5
    change = [states()[name].readings.values[:, 3, 1] for name in ("trained", "untrained")]
    assert quoted["change-expodistance-both"] == pytest.approx(np.median(change[0] - change[1]))


def test_line_marks_the_given_or_turning_block():
    bent = {name: ds.copy(deep=True) for name, ds in states().items()}
    bent["trained"]["norm"][:] = np.exp([0, 1, 2, 3, 3.1, 3.2, 3.3])
    found = trajectories.take_profiles(side_by_side(**bent), turn=-1)
    assert found.turn == 3
    for axes in trajectories.draw_profiles(found).axes:
        assert [line.get_xdata() for line in axes.lines if len(set(line.get_xdata())) == 1] == [[3, 3]]
    given = trajectories.take_profiles(both(), turn=2)
    assert given.turn == 2 and "turn" not in trajectories.take_profiles(both()).attrs
    caption = trajectories.profile_caption
    assert caption(given).endswith(" The vertical line marks block 2.")
    assert caption(found, found=True).endswith("fits the logarithm of the trained model's norm best if it bends there.")
    assert "line marks" not in caption(trajectories.take_profiles(both()))
