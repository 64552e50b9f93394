"""Token figures: what is drawn is what was measured, on one scale per side, with labels that can be read."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.figures import tokens, tokens_data
from tests.figures.drawn import assert_repeats, assert_text_inside

NAME = "normalized_miscoupling"
K, FULL, TOKENS = 3, 4, 5
TEXTS = [["What", " is", "$", "\n"], ["It", " was", " unbelievable", "", ""]]


def make_tokens(strength: float, kind: str = "self", other: int = 3, seed: int = 0, texts: bool = True) -> xr.Dataset:
    """A comparison of two prompts, the first of 4 tokens and the second of 3, filled up to 5."""
    rng = np.random.default_rng(seed)
    count = np.array([FULL, 3])
    there = np.arange(TOKENS) < count[:, None]
    pairs = there[:, :, None] & there[:, None, :]
    values = np.where(pairs, 1 - strength + 0.02 * rng.standard_normal(pairs.shape), np.nan)
    matrix = np.where(pairs[0][..., None, None], rng.standard_normal((TOKENS, TOKENS, K, K)), np.nan)
    singular_values = np.sort(rng.uniform(1, 3, (2, TOKENS, K)))[..., ::-1]
    words = np.array([[*TEXTS[0], ""], TEXTS[1]]) if texts else np.full((2, TOKENS), "")
    both = ("prompt", "token_1")
    return xr.Dataset(
        {
            NAME: (("prompt", "token_1", "token_2"), values),
            "matrix": (("token_1", "token_2", "row", "column"), matrix),
            "singular_values": ((*both, "rank"), np.where(there[..., None], singular_values, np.nan)),
            "position": (both, np.where(there, np.arange(TOKENS) + 6, -1)),
            "text": (both, words),
            "fixed_text": (("prompt",), [" is" if texts else "", "It"]),
            "fixed_position": (("prompt",), [-1 if kind == "self" else 1, 0]),
        },
        coords={"prompt": ["a", "b"]},
        attrs={"kind": kind, "block": 2, "other": other, "k": K},
    )


def networks(**changes) -> dict[str, xr.Dataset]:
    return {"untrained": make_tokens(0.05, seed=1, **changes), "trained": make_tokens(0.3, seed=2, **changes)}


def reports(pair_other: int = 3) -> dict[str, dict[str, xr.Dataset]]:
    kinds = {
        f"{kind} 3-{o + 1}": {"kind": kind, "other": o} for o in (pair_other, 2) for kind in tokens_data.KIND_NAMES
    }
    return {name: {key: networks(**how)[name] for key, how in kinds.items()} for name in ("untrained", "trained")}


NULL = {"value": ("jacobian", [0.94, 0.96]), "error": ("jacobian", [1e-5, 3e-5])}
DRAWN = {"draws": (("sample", "jacobian"), np.linspace(0.9, 1.0, 102).reshape(51, 2))}
NULLS = {name: xr.Dataset(NULL | DRAWN) for name in reports()["trained"]}
FIGURES = {
    "grids": lambda: tokens.token_grids(networks(), NAME, null=0.95),
    "grids of one block": lambda: tokens.token_grids(networks(other=2, kind="input"), NAME, null=0.95),
    "grids without tokenizer": lambda: tokens.token_grids(networks(kind="output", texts=False), NAME),
    "grids of one network": lambda: tokens.token_grids({"model": make_tokens(0.3)}, NAME),
    "summary": lambda: tokens.token_summary(reports(), NAME, NULLS),
    "summary of one block": lambda: tokens.token_summary(reports(2), NAME, NULLS),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte_and_keeps_its_text_inside(figure, theme):
    assert_repeats(FIGURES[figure], theme)
    assert_text_inside(FIGURES[figure], theme)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" is", "␣is"),
        ("\n", r"\n"),
        ("\u200b", r"\u200b"),
        ("漢", r"\u6f22"),
        ("$x$", r"\$x\$"),
        ("unbelievable", "unbeliev…"),
        ("", ""),
    ],
)
def test_every_character_of_a_token_can_be_seen(text, label):
    assert tokens_data.token_label(text) == label


def test_labels_are_the_first_prompts_tokens_or_their_positions():
    assert tokens_data.token_labels(make_tokens(0.1)) == ["What", "␣is", r"\$", r"\n"]
    assert tokens_data.token_labels(make_tokens(0.1, texts=False)) == ["7", "8", "9", "10"]
    assert "token 2 (␣is)" in tokens_data.comparison_name(make_tokens(0.1, "input"))
    assert "token 2," in tokens_data.comparison_name(make_tokens(0.1, "output", texts=False))


def test_grids_show_matrices_relative_to_the_rows_jacobian_beside_their_mismatch():
    both = networks()
    figure = tokens.token_grids(both, NAME)
    grid, map_ = (axes.images[0].get_array() for axes in figure.axes[2:4])
    data = both["trained"]
    expected = abs(data.matrix.values[1, 2]) / data.singular_values.values[0, 1, 0]
    assert grid.shape == (FULL * (K + 1) - 1,) * 2
    assert np.allclose(grid[4:7, 8:11], expected)
    assert np.allclose(map_, data[NAME].values[0, :FULL, :FULL])


@pytest.mark.parametrize(("other", "masked"), [(3, 0), (2, FULL)])
def test_a_token_with_itself_is_left_out_within_one_block_only(other, masked):
    both = networks(other=other)
    figure = tokens.token_grids(both, NAME, null=0.99)
    panels = figure.axes[:4]
    maps = [axes.images[0] for axes in (panels[1], panels[3])]
    assert [int(np.ma.getmaskarray(image.get_array()).sum()) for image in maps] == [masked] * 2
    off = ~np.eye(FULL, dtype=bool) if masked else np.ones((FULL, FULL), dtype=bool)
    values = [data[NAME].values[0, :FULL, :FULL][off] for data in both.values()]
    assert {image.get_clim() for image in maps} == {(np.min(values), max(np.max(values), 0.99))}
    grids = [tokens_data.relative_token_matrices(data)[off] for data in both.values()]
    assert {axes.images[0].get_clim() for axes in (panels[0], panels[2])} == {(0, np.max(grids))}


def test_coupling_of_a_prompt_is_the_mean_over_its_pairs_of_different_tokens():
    for other in (3, 2):
        data = make_tokens(0.2, other=other)
        found = tokens_data.prompt_couplings(data, NAME)
        for prompt, count in enumerate((FULL, 3)):
            pairs = [1 - data[NAME].values[prompt, i, j] for i in range(count) for j in range(count) if i != j]
            assert found[prompt] == pytest.approx(np.mean(pairs))


def test_tables_hold_what_the_figures_show():
    both = networks()
    table = tokens_data.matrix_table(both, NAME)
    assert len(table) == 2 * FULL * FULL * K and list(table.columns[-2:]) == ["column_2", "column_3"]
    line = table[(table.network == "trained") & (table.token_jacobian == 8) & (table.token_vectors == 9)].iloc[1]
    assert line.row == 2 and line[NAME] == pytest.approx(both["trained"][NAME].values[0, 1, 2], abs=1e-3)
    expected = abs(both["trained"].matrix.values[1, 2, 1, 0]) / both["trained"].singular_values.values[0, 1, 0]
    assert line.column_1 == pytest.approx(expected, abs=1e-3)
    table = tokens_data.prompt_table(reports(), NAME)
    assert len(table) == 2 * 6 * 2 and set(table.kind) == {"self", "fixed input", "fixed output"}
    assert set(zip(table.block_jacobian, table.block_vectors, strict=True)) == {(3, 4), (3, 3)}


def test_summary_holds_means_intervals_and_the_null_and_names_them_for_the_book():
    found = reports()
    table = tokens_data.summary_table(found, NAME, NULLS)
    values = tokens_data.prompt_couplings(found["trained"]["input 3-4"], NAME)
    line = table.loc["input 3-4"]
    assert line["trained"] == pytest.approx(values.mean())
    expected = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    assert (line["trained low"], line["trained high"]) == pytest.approx(expected)
    assert line["random bases"] == pytest.approx(0.05) and line["random bases error"] == pytest.approx(2e-5)
    book = tokens_data.remembered(table, between=["input 3-4"])
    assert book["tokens-between-input-trained-low"] == line["trained low"] and len(book) == 8


def test_summary_draws_every_prompt_the_mean_and_the_spread_of_single_random_pairs():
    found = reports()
    left = tokens.token_summary(found, NAME, NULLS).axes[0]
    trained = [tokens_data.prompt_couplings(found["trained"][f"{kind} 3-4"], NAME) for kind in tokens_data.KIND_NAMES]
    dots = [c.get_offsets()[:, 1] for c in left.collections if len(c.get_offsets()) == 2]
    assert np.allclose(dots[3:], trained)
    shade = left.collections[-1].get_paths()[0].get_extents()
    assert (shade.y0, shade.y1) == pytest.approx((0.0025, 0.0975))
    assert "random bases ± 0.00002" in left.get_legend_handles_labels()[1]
    assert tokens_data.null_coupling(NULLS["self 3-4"]) == pytest.approx((0.05, 0.0025, 0.0975))


def test_one_prompt_has_no_interval_and_a_mismatch_without_coupling_is_refused():
    one = make_tokens(0.2).isel(prompt=[0])
    mean, low, high = tokens_data.mean_and_interval(tokens_data.prompt_couplings(one, NAME))
    assert np.isfinite(mean) and np.isnan([low, high]).all()
    with pytest.raises(ParameterError, match="variant is 'miscoupling'"):
        tokens_data.token_mismatches(one, "miscoupling")


def test_captions_name_kind_and_blocks():
    assert tokens_data.grid_caption(make_tokens(0.1)).startswith("Self-coupling, blocks 3 and 4.")
    caption = tokens_data.grid_caption(make_tokens(0.1, "output", other=2))
    assert caption.startswith("Context coupling with a fixed output token, block 3.")
