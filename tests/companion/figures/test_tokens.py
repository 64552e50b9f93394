"""Token figures: what is drawn is what was measured, on one scale per side, with labels that can be read."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from companion.figures import tokens
from companion.figures.show import frame
from coupling_lib.errors import ParameterError
from tests.companion.figures import made

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
    matrix = made.matrices(rng, values[0], K)
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


def networks(n: int = 2, **changes) -> xr.Dataset:
    """A comparison in several networks, the trained one more coupled than the others."""
    strengths = (0.05, 0.3, 0.1)
    return made.networks(n, lambda place: make_tokens(strengths[place], seed=place + 1, **changes))


def comparisons(n: int = 2, pair_other: int = 3) -> dict[str, xr.Dataset]:
    """Every kind of comparison, between two blocks and within one."""
    return {f"{kind} 3-{o + 1}": networks(n, kind=kind, other=o) for o in (pair_other, 2) for kind in tokens.KIND_NAMES}


def turned(found: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same comparisons with a null by conjugation, of each network and pair another."""
    added = {}
    for place, (name, ds) in enumerate(found.items()):
        rng = np.random.default_rng(place)
        values = np.where(np.isfinite(ds[NAME]), 0.9 + 0.02 * rng.standard_normal(ds[NAME].shape), np.nan)
        error = ("network", "prompt"), rng.uniform(0.001, 0.002, (ds.sizes["network"], 2))
        added[name] = ds.assign(conjugated=(ds[NAME].dims, values), conjugated_error=error)
    return added


NULL = {"value": ("jacobian", [0.94, 0.96]), "error": ("jacobian", [1e-5, 3e-5])}
DRAWN = {"draws": (("sample", "jacobian"), np.linspace(0.9, 1.0, 102).reshape(51, 2))}
NULLS = {name: xr.Dataset(NULL | DRAWN, attrs={"variant": NAME}) for name in comparisons()}
CHANCE = 0.95

CASES = {
    "draw_grid": (tokens.draw_grid, lambda n: tokens.take_grid(networks(n), NAME, CHANCE)),
    "draw_grid of one block": (
        tokens.draw_grid, lambda n: tokens.take_grid(networks(n, other=2, kind="input"), NAME, CHANCE),
    ),
    "draw_grid without tokenizer": (
        tokens.draw_grid, lambda n: tokens.take_grid(networks(n, kind="output", texts=False), NAME, CHANCE),
    ),
    "draw_summary": (tokens.draw_summary, lambda n: tokens.take_summary(comparisons(n), NAME, NULLS)),
    "draw_summary conjugated": (
        tokens.draw_summary, lambda n: tokens.take_summary(turned(comparisons(n)), NAME, NULLS),
    ),
    "draw_summary of one block": (tokens.draw_summary, lambda n: tokens.take_summary(comparisons(n, 2), NAME, NULLS)),
}  # fmt: skip


def pairs_of(ds, network, prompt, count):
    values = ds.sel(network=network)[NAME].values[prompt]
    return [1 - values[i, j] for i in range(count) for j in range(count) if i != j]


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
    assert tokens.token_label(text) == label


def test_labels_are_tokens_or_their_positions():
    assert tokens.take_grid(networks(), NAME, 0.95).tokens == ["What", "␣is", r"\$", r"\n"]
    assert tokens.take_grid(networks(texts=False), NAME, 0.95).tokens == ["7", "8", "9", "10"]
    assert "token 2 (␣is)" in tokens.take_grid(networks(kind="input"), NAME, 0.95).title
    assert "token 2," in tokens.take_grid(networks(kind="output", texts=False), NAME, 0.95).title


def test_the_matrices_of_another_prompt_are_refused():
    with pytest.raises(ParameterError, match="the first prompt here is not that of the coupling matrices"):
        tokens.take_grid(networks().isel(prompt=[1]), NAME, CHANCE)


def test_grid_is_relative_to_the_row_jacobian():
    both = networks()
    figure = tokens.draw_grid(tokens.take_grid(both, NAME, 0.95))
    assert [axes.get_title() for axes in figure.axes[:4]] == ["Trained", "Trained", "Untrained", "Untrained"]
    grid, map_ = (axes.images[0].get_array() for axes in figure.axes[:2])
    data = both.sel(network="trained")
    expected = abs(data.matrix.values[1, 2]) / data.singular_values.values[0, 1, 0]
    assert grid.shape == (FULL * (K + 1) - 1,) * 2
    assert np.allclose(grid[4:7, 8:11], expected)
    assert np.allclose(map_, 1 - data[NAME].values[0, :FULL, :FULL])
    table = frame(tokens.take_grid(both, NAME, 0.95))
    entries = table[table["row"].notna()]
    assert len(entries) == 2 * FULL * FULL * K and list(entries.columns[-2:]) == ["entry_2", "entry_3"]
    chosen = table[(table.network == "trained") & (table.token_jacobian == 8) & (table.token_vectors == 9)]
    assert chosen.coupling.dropna().item() == pytest.approx(1 - data[NAME].values[0, 1, 2])
    assert chosen[chosen["row"] == 2].entry_1.item() == pytest.approx(expected[1, 0])


@pytest.mark.parametrize(("other", "masked"), [(3, 0), (2, FULL)])
def test_token_with_itself_is_masked_within_a_block(other, masked):
    both = networks(other=other)
    grid = tokens.take_grid(both, NAME, 0.99)
    panels = tokens.draw_grid(grid).axes[:4]
    maps = [axes.images[0] for axes in (panels[1], panels[3])]
    assert [int(np.ma.getmaskarray(image.get_array()).sum()) for image in maps] == [masked] * 2
    off = ~np.eye(FULL, dtype=bool) if masked else np.ones((FULL, FULL), dtype=bool)
    values = 1 - both[NAME].values[:, 0, :FULL, :FULL][:, off]
    assert {image.get_clim() for image in maps} == {(min(np.min(values), 1 - 0.99), np.max(values))}
    grids = grid.entry.transpose("network", "token_jacobian", "token_vectors", ...).values[:, off]
    assert {axes.images[0].get_clim() for axes in (panels[0], panels[2])} == {(0, np.max(grids))}


def test_prompt_coupling_is_mean_over_different_tokens():
    found = comparisons()
    taken = tokens.take_summary(found, NAME, NULLS).coupling.sel(network="trained")
    for name in ("self 3-4", "self 3-3"):
        for prompt, count in enumerate((FULL, 3)):
            expected = np.mean(pairs_of(found[name], "trained", prompt, count))
            assert taken.sel(comparison=name)[prompt] == pytest.approx(expected)


def test_summary_has_means_intervals_and_chance():
    summary = tokens.take_summary(comparisons(), NAME, NULLS)
    table = tokens.summary_table(summary)
    values = summary.coupling.sel(network="trained", comparison="input 3-4").values
    line = table.loc["input 3-4"]
    assert line["trained"] == pytest.approx(values.mean())
    expected = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    assert (line["trained low"], line["trained high"]) == pytest.approx(expected)
    assert line["by chance"] == pytest.approx(0.05) and line["error by chance"] == pytest.approx(2e-5)
    book = tokens.numbers_of(summary, 0.02, between=["input 3-4"], within=["self 3-3"])
    assert book["between-input-trained-low"] == line["trained low"]
    assert len([name for name in book if name.startswith(("between", "within"))]) == 2 * 8
    assert book["coupled-between-input"] == pytest.approx(values.mean())
    blank = summary.coupling.sel(network="untrained", comparison="self 3-3").values
    lead = summary.coupling.sel(network="trained", comparison="self 3-3").values - blank
    assert book["emerged-within-self"] == pytest.approx(lead.mean())


def test_summary_draws_prompts_and_spread_of_chance():
    summary = tokens.take_summary(comparisons(), NAME, NULLS)
    left = tokens.draw_summary(summary).axes[0]
    trained = summary.coupling.sel(network="trained").transpose("comparison", "prompt").values[:3]
    dots = [c.get_offsets()[:, 1] for c in left.collections if len(c.get_offsets()) == 2]
    assert np.allclose(dots[3:], trained)
    shade = left.collections[-1].get_paths()[0].get_extents()
    assert (shade.y0, shade.y1) == pytest.approx((0.0025, 0.0975))
    assert len(frame(summary).coupling.dropna()) == 2 * 6 * 2
    assert set(summary.kind.values) == {"self", "fixed input", "fixed output"}
    assert set(summary.blocks.values) == {"blocks 3 and 4", "block 3"}
    assert "by chance" in left.get_legend_handles_labels()[1]
    null = summary.sel(comparison="self 3-4")
    found = [null.random_bases, null.random_bases_low, null.random_bases_high]
    assert found == pytest.approx([0.05, 0.0025, 0.0975])


def test_conjugation_null_is_drawn_at_its_network():
    found = turned(comparisons())
    summary = tokens.take_summary(found, NAME, NULLS)
    ds = found["input 3-4"].sel(network="trained")
    each = [
        np.mean([1 - ds.conjugated.values[prompt, i, j] for i in range(count) for j in range(count) if i != j])
        for prompt, count in enumerate((FULL, 3))
    ]
    at = summary.sel(network="trained", comparison="input 3-4")
    assert float(at.conjugated) == pytest.approx(np.mean(each))
    assert float(at.conjugated_error) == pytest.approx(np.hypot(*ds.conjugated_error.values) / 2)
    book = tokens.numbers_of(summary, 0.02, between=["input 3-4"], within=["self 3-3"])
    assert book["between-input-trained-conjugated"] == pytest.approx(np.mean(each))
    assert book["between-input-trained-conjugated-error"] == float(at.conjugated_error)
    panels = tokens.draw_summary(summary).axes
    dotted = [line for axes in panels for line in axes.lines if line.get_zorder() == 4]
    assert len(dotted) == 12
    assert sorted(line.get_ydata()[0] for line in dotted) == pytest.approx(
        np.sort(summary.conjugated.values, axis=None)
    )
    assert panels[0].get_legend_handles_labels()[1] == ["untrained", "trained", "conjugated", "by chance"]
    assert "conjugated" not in tokens.take_summary(comparisons(), NAME, NULLS)


def test_one_prompt_has_no_interval():
    found = {name: ds.isel(prompt=[0]) for name, ds in comparisons().items()}
    summary = tokens.take_summary(found, NAME, NULLS)
    assert np.isfinite(summary["mean"]).all() and np.isnan([summary.low, summary.high]).all()
    with pytest.raises(ParameterError, match="variant is 'miscoupling'"):
        tokens.take_grid(networks(), "miscoupling")


def test_captions_name_kind_and_blocks():
    assert tokens.grid_caption(make_tokens(0.1)).startswith("Self-coupling, blocks 3 and 4:")
    caption = tokens.grid_caption(make_tokens(0.1, "output", other=2))
    assert caption.startswith("Context coupling with a fixed output token, block 3:")
