"""Figures of trajectories: what is drawn is what was measured, for one model or many, with and without entropy."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import style, trajectories
from companion.figures.show import frame
from companion.tables.arrays import each_network, side_by_side
from tests.companion.figures.drawn import assert_text_is_inside, titles, words
from tests.companion.figures.made import case, made, networks

PATHS, ENTROPIES = ["path", "path_share", "path_token"], ["entropy", "entropy_normed"]


def make_trajectories(seed, n_blocks=6, width=3):
    windows = n_blocks - width + 1
    sizes = {"prompt": 5, "level": n_blocks + 1, "block": n_blocks, "centre": windows}
    sizes |= {"states": 4, "reading": 3, "position": 4, "component": 2}
    drawn = dict.fromkeys(trajectories.SCORES, ("prompt", 0.5, 3)) | {"path": ("level position component", -2, 2)}
    drawn |= dict.fromkeys(("norm", *ENTROPIES), ("prompt level", 0.5, 3))
    drawn |= dict.fromkeys(("window_line_shape_score", "window_expodistance"), ("prompt centre", 0.5, 3))
    drawn |= {"step_length": ("prompt block", 0.5, 3), "readings": ("prompt states reading", 0.5, 3)}
    places = {"level": range(n_blocks + 1), "block": range(n_blocks), "centre": np.arange(windows) + width // 2}
    conventions = ["default", "without embedding", "normed end", "both"]
    ds = made(seed, sizes, drawn, **places, states=conventions, reading=list(trajectories.SCORES))
    ds = ds.assign(path_share=("component", [0.5, 0.25]), path_token=("position", ["It", " was", " the", " best"]))
    return ds.assign_attrs(window=width, entropy_missing="")


def both(n=2):
    return networks(n, make_trajectories)


BOTH = both()
STATES = dict(each_network(BOTH))
TRAINED = STATES["trained"]
NO_GROWTH = BOTH.assign(expodistance=BOTH.expodistance * np.nan)


def models(n, each=BOTH):
    """Several models, the second and third with long names."""
    names = ["organisation/model", *(f"organisation/a-model-with-a-long-name-{i}" for i in range(n - 1))]
    return dict.fromkeys(names, each)


def unlike(n):
    """Models of which the first is deeper and gives no next token, and the last is the only one in the registry."""
    deep = networks(2, lambda seed: make_trajectories(seed, n_blocks=12, width=5)).drop_vars(ENTROPIES)
    return models(n) | {"organisation/model": deep.assign_attrs(entropy_missing="no head"), "nano-llama": BOTH}


CASES = {
    "draw_scores of many": case(trajectories, "scores", lambda n: models(n + 4)),
    "draw_scores without growth": case(trajectories, "scores", lambda n: models(n, NO_GROWTH)),
    "draw_profiles with a line": case(trajectories, "profiles", both, -1),
    "draw_profiles without entropy": case(trajectories, "profiles", lambda n: both(n).drop_vars(ENTROPIES)),
    "draw_profiles of one prompt": case(trajectories, "profiles", lambda n: both(n).isel(prompt=[0])),
    "draw_profiles of models": case(trajectories, "profiles", lambda n: unlike(n + 1), -1),
    "draw_paths of models": case(trajectories, "paths", lambda n: unlike(n + 1)),
}
UNLIKE = unlike(2)
NAMES = ["nano-llama", "organisation/model", "organisation/a-model-with-a-long-name-0"]
SHORT = ["nano-llama", "model", "a-model-with-a-long…"]
QUARTILES = (0.25, 0.5, 0.75)


def test_every_prompt_is_a_dot_beside_quartiles():
    taken = trajectories.take_scores({"model": BOTH})
    panels = trajectories.draw_scores(taken).axes
    for axes, score in zip(panels, trajectories.SCORES, strict=True):
        bars = [line.get_ydata() for line in axes.lines if line.get_linewidth() == 4]
        for dots, bar, (network, dataset) in zip(axes.collections, bars, STATES.items(), strict=True):
            assert_allclose(dots.get_offsets()[:, 1], dataset[score])
            assert to_hex(dots.get_facecolor()[0]) == style.colour(network)
            assert_allclose(bar, np.quantile(dataset[score], (0.25, 0.75)))
    table = frame(taken)
    assert len(table.line_shape_score.dropna()) == 2 * 5 and table.blocks.dropna().tolist() == [6]
    levels = [line.get_ydata()[0] for line in panels[0].lines]
    assert 1 in levels and any(level == approx(np.sqrt(6)) for level in levels)


def test_prompts_without_a_score_are_left_out():
    holes = BOTH.assign(expodistance=BOTH.expodistance.where(BOTH.prompt != BOTH.prompt[0]))
    axes = trajectories.draw_scores(trajectories.take_scores({"model": holes})).axes[1]
    low, middle, high = np.quantile(holes.expodistance.sel(network="trained")[1:], QUARTILES)
    bars = [line.get_ydata() for line in axes.lines if line.get_linewidth() == 4]
    assert_allclose(bars[1], [low, high])
    line = trajectories.take_summary({"model": holes}).loc["model", "trained", "expodistance"]
    assert_allclose(line[["low", "median", "high"]], [low, middle, high])
    axes = trajectories.draw_scores(trajectories.take_scores({"model": NO_GROWTH})).axes[1]
    assert words(axes.texts) == ["does not exist:\nno net growth"]
    assert np.isnan(trajectories.take_summary({"model": NO_GROWTH}).loc["model", "trained", "expodistance"]).all()


def test_a_single_step_has_no_score():
    one = networks(2, lambda seed: make_trajectories(seed, n_blocks=1, width=1))
    assert np.isnan(trajectories.take_summary({"one": one})).all(axis=None)
    found = trajectories.numbers_of(one)
    assert np.isnan([value for name, value in found.items() if name != "prompts"]).all()
    assert trajectories.take_conventions(one.sel(network="trained")).isna().all(axis=None)
    assert "window_line_shape_score" not in trajectories.take_profiles(one).dropna("quantity", how="all").quantity
    drawn = trajectories.draw_scores(trajectories.take_scores({"one": one}))
    assert [axes.texts[0].get_text() for axes in drawn.axes[:3]] == ["does not exist:\na single step"] * 3


def test_profiles_are_quartiles_over_prompts():
    profiles, lengths = trajectories.take_profiles(BOTH), TRAINED.step_length.values
    each = {"relative_step": ([1, 2, 3, 4, 5, 6], lengths / lengths.mean(axis=1, keepdims=True))}
    each |= {"entropy": ([0, 1, 2, 3, 4, 5, 6], TRAINED.entropy)}
    each |= {"window_line_shape_score": ([2, 3, 4, 5], TRAINED.window_line_shape_score)}
    for quantity, (depth, values) in each.items():
        found = profiles.sel(network="trained", quantity=quantity).dropna("depth")
        assert found.depth.values.tolist() == depth
        assert_allclose([found.low, found["median"], found.high], np.quantile(values, QUARTILES, axis=0))
    axes = trajectories.draw_profiles(profiles).axes[0]
    for line, (network, dataset) in zip(axes.lines, STATES.items(), strict=True):
        assert_allclose(line.get_data(), [range(7), np.median(dataset.norm, axis=0)])
        assert line.get_color() == style.colour(network)


def test_missing_entropy_leaves_its_panel_out():
    bare = trajectories.take_profiles(BOTH.drop_vars(ENTROPIES).assign_attrs(entropy_missing="this model has no head"))
    full = trajectories.take_profiles(BOTH)
    assert [len(trajectories.draw_profiles(one).axes) for one in (full, bare)] == [4, 3]
    assert trajectories.profile_caption(bare).endswith("Entropy is left out: this model has no head.")
    assert "softmax(W x)" in trajectories.profile_caption(full) and "left out" not in trajectories.profile_caption(full)


def test_profiles_of_models_are_sorted_by_size():
    profiles = trajectories.take_profiles(UNLIKE, -1)
    assert list(profiles) == NAMES and set(frame(profiles).model) == set(NAMES)
    panels = np.reshape(trajectories.draw_profiles(profiles).axes, (4, 3))
    assert titles(panels[0]) == SHORT
    assert [axes.get_ylabel() for axes in panels[2]] == [f"line-shape score\nof {width} blocks" for width in (3, 5, 3)]
    for column, (name, one) in zip(panels.T, profiles.items(), strict=True):
        norm = UNLIKE[name].norm.sel(network="untrained").median("prompt")
        assert_allclose(column[0].lines[0].get_ydata(), norm.dropna("level"))
        upright = [line.get_xdata() for axes in column[:3] for line in axes.lines if len(set(line.get_xdata())) == 1]
        assert upright == [[one.turn] * 2] * 3
        assert column[3].axison == ("entropy" in one.quantity)
    caption, (first, second, _) = trajectories.profile_caption(profiles, found=True), profiles.values()
    assert "softmax(W x)" in caption and "Entropy is left out: no head." in caption
    assert f"block {first.turn} of nano-llama, block {second.turn} of organisation/model, " in caption


def test_paths_of_models_stand_side_by_side():
    panels = np.reshape(trajectories.draw_paths(trajectories.take_paths(UNLIKE)).axes, (6, 3))
    assert titles(panels[0]) == SHORT
    parts = ("all blocks", "shallow", "deep")
    rows = [f"{network}, {part}" for network in ("untrained", "trained") for part in parts]
    assert [axes.get_ylabel() for axes in panels[:, 0]] == rows
    deep = UNLIKE["organisation/model"].sel(network="trained").path.values[6:13, 0, 0]
    assert_allclose(panels[5, 1].lines[0].get_xdata(), deep)
    alone = UNLIKE | {"organisation/model": BOTH.drop_vars(PATHS)}
    assert len(trajectories.draw_paths(trajectories.take_paths(alone)).axes) == 6 * 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_last_token_path_has_the_text_colour(theme):
    with style.theme(theme):
        panels = trajectories.draw_paths(trajectories.take_paths(BOTH)).axes[:3]
        ink = style.colour("text")
    path = STATES["untrained"].path.values
    for axes, levels in zip(panels, trajectories.path_ranges(6).values(), strict=True):
        last = next(line for line in axes.lines if line.get_color() == ink and line.get_linestyle() == "-")
        assert_allclose(np.transpose(last.get_data()), path[list(levels), -1])
    assert titles(panels) == ["all blocks", "shallow: blocks 1-3", "deep: blocks 4-6"]


def test_paths_hold_every_token_at_every_level():
    taken = trajectories.take_paths(BOTH)
    trained = taken.sel(network="trained", level=range(7), token=range(1, 5))
    assert_allclose([trained.component_1, trained.component_2], np.moveaxis(TRAINED.path.values, -1, 0))
    assert trained.text.values.tolist() == [["It", " was", " the", " best"]] * 7
    assert trained.share.values.tolist() == [0.5, 0.25]
    columns = ["text", "component_1", "component_2"]
    table, empty = frame(taken[columns]), trajectories.take_paths(BOTH.drop_vars(PATHS))
    assert len(table) == 2 * 7 * 4
    assert frame(empty).empty and set(frame(empty).columns) == set(table.columns)
    assert_text_is_inside(trajectories.draw_paths(empty))


def test_tables_and_quoted_numbers_are_medians_with_quartiles():
    table = trajectories.take_conventions(TRAINED)
    assert table.index.tolist() == ["line_shape_score", "expodistance", "equidistance"]
    assert table.columns.tolist() == ["default", "without embedding", "normed end", "both"]
    assert_allclose(table, TRAINED.readings.median("prompt").T)
    low, middle, high = np.quantile(TRAINED.line_shape_score, QUARTILES)
    line = trajectories.take_summary({"model": BOTH}).loc["model", "trained", "line-shape score"]
    assert line[["low", "median", "high"]].tolist() == approx([low, middle, high])
    quoted = trajectories.numbers_of(BOTH)
    change = np.median((TRAINED.readings - STATES["untrained"].readings)[:, 3, 1])
    wanted = {"line-shape-score-trained": middle, "line-shape-score-trained-high": high, "prompts": 5}
    wanted |= {"change-expodistance-both": change}
    assert {name: quoted[name] for name in wanted} == approx(wanted)
    assert len([name for name in quoted if not name.startswith("change")]) == 2 * 3 * 3 + 1


def test_line_marks_the_given_or_turning_block():
    bent = TRAINED.copy(deep=True)
    bent["norm"][:] = np.exp([0, 1, 2, 3, 3.1, 3.2, 3.3])
    found = trajectories.take_profiles(side_by_side(**STATES | {"trained": bent}), turn=-1)
    given, none = (trajectories.take_profiles(BOTH, **turn) for turn in ({"turn": 2}, {}))
    assert (found.turn, given.turn) == (3, 2) and "turn" not in none.attrs
    for axes in trajectories.draw_profiles(found).axes:
        assert [line.get_xdata() for line in axes.lines if len(set(line.get_xdata())) == 1] == [[3, 3]]
    caption = trajectories.profile_caption
    assert caption(given).endswith(" The vertical line marks block 2.")
    assert caption(found, found=True).endswith("fits the logarithm of the trained model's norm best if it bends there.")
    assert "line marks" not in caption(none)
