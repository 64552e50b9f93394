"""Token figures: what is drawn is what was measured, on one scale per side, with labels that can be read."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from pytest import approx
from scipy.stats import sem
from scipy.stats import t as student

from companion.figures import tokens
from companion.figures.show import frame
from coupling_lib.errors import ParameterError
from tests.companion.figures import made
from tests.companion.figures.drawn import titles
from tests.companion.figures.made import case

NAME = "normalized_miscoupling"
K, FULL, TOKENS = 3, 4, 5
TEXTS = [["What", " is", "$", "\n"], ["It", " was", " unbelievable", "", ""]]


def make_tokens(strength: float, kind: str = "self", other: int = 3, seed: int = 0, texts: bool = True) -> xr.Dataset:
    """A comparison of two prompts, the first of 4 tokens and the second of 3, filled up to 5."""
    rng = np.random.default_rng([seed, other, len(kind)])
    there = np.arange(TOKENS) < [[FULL], [3]]
    pairs = there[:, :, None] & there[:, None, :]
    means = np.reshape([0.9, 1 - strength], (2, 1, 1, 1))
    turned, values = np.where(pairs, means + 0.02 * rng.standard_normal((2, *pairs.shape)), np.nan)
    # The largest entries are a token's with itself, which set the scale between two blocks and not within one.
    matrix = made.matrices(rng, values[0], K) * (1 + 9 * np.eye(TOKENS))[..., None, None]
    singular_values = np.sort(rng.uniform(1, 3, (2, TOKENS, K)))[..., ::-1]
    words = np.array([[*TEXTS[0], ""], TEXTS[1]]) if texts else np.full((2, TOKENS), "")
    each, both = ("prompt", "token_1"), ("prompt", "token_1", "token_2")
    variables = {NAME: (both, values), "conjugated": (both, turned), "text": (each, words)}
    variables |= {"matrix": (("token_1", "token_2", "row", "column"), matrix)}
    variables |= {"singular_values": ((*each, "rank"), np.where(there[..., None], singular_values, np.nan))}
    variables |= {"position": (each, np.where(there, np.arange(TOKENS) + 6, -1))}
    variables |= {"fixed_position": ("prompt", [-1 if kind == "self" else 1, 0])}
    variables |= {"fixed_text": ("prompt", [" is" if texts else "", "It"])}
    variables |= {"conjugated_error": ("prompt", rng.uniform(0.001, 0.002, 2))}
    return xr.Dataset(variables, {"prompt": ["a", "b"]}, {"kind": kind, "block": 2, "other": other, "k": K})


def networks(n: int = 2, **changes) -> xr.Dataset:
    """A comparison in several networks, the trained one more coupled than the others."""
    strengths = (0.05, 0.3, 0.1)
    return made.networks(n, lambda place: make_tokens(strengths[place], seed=place + 1, **changes))


def comparisons(n: int = 2, pair_other: int = 3) -> dict[str, xr.Dataset]:
    """Every kind of comparison, between two blocks and within one."""
    return {f"{kind} 3-{o + 1}": networks(n, kind=kind, other=o) for o in (pair_other, 2) for kind in tokens.KIND_NAMES}


def without_conjugation(n: int) -> dict[str, xr.Dataset]:
    return {name: ds.drop_vars(["conjugated", "conjugated_error"]) for name, ds in comparisons(n).items()}


NULL = {"value": ("jacobian", [0.94, 0.96]), "error": ("jacobian", [1e-5, 3e-5])}
DRAWN = {"draws": (("sample", "jacobian"), np.linspace(0.9, 1.0, 102).reshape(51, 2))}
NULLS = {name: xr.Dataset(NULL | DRAWN, attrs={"variant": NAME}) for name in comparisons()}
CHANCE = 0.95

CASES = {
    "draw_grid": case(tokens, "grid", networks, NAME, CHANCE),
    "draw_grid of one block": case(tokens, "grid", lambda n: networks(n, other=2, kind="input"), NAME, CHANCE),
    "draw_grid without texts": case(tokens, "grid", lambda n: networks(n, kind="output", texts=False), NAME, CHANCE),
    "draw_summary": case(tokens, "summary", without_conjugation, NAME, NULLS),
    "draw_summary conjugated": case(tokens, "summary", comparisons, NAME, NULLS),
    "draw_summary of one block": case(tokens, "summary", lambda n: comparisons(n, 2), NAME, NULLS),
}
FOUND, PLAIN = comparisons(), tokens.take_summary(without_conjugation(2), NAME, NULLS)
SUMMARY = tokens.take_summary(FOUND, NAME, NULLS)
GROUPS = {"between": ["input 3-4"], "within": ["self 3-3"]}


def means_of(values: np.ndarray) -> np.ndarray:
    """Mean coupling of the pairs of different tokens, prompt by prompt."""
    there = [values[..., place, :count, :count] for place, count in enumerate((FULL, 3))]
    return np.stack([1 - one[..., ~np.eye(one.shape[-1], dtype=bool)].mean(axis=-1) for one in there], axis=-1)


def test_every_character_of_a_token_can_be_seen():
    labels = {" is": "␣is", "\n": r"\n", "\u200b": r"\u200b", "漢": r"\u6f22", "$x$": r"\$x\$", "": ""}
    labels |= {"unbelievable": "unbeliev…"}
    assert {text: tokens.token_label(text) for text in labels} == labels


def test_labels_and_captions_name_tokens_and_blocks():
    assert tokens.take_grid(networks(), NAME, 0.95).tokens == ["What", "␣is", r"\$", r"\n"]
    assert tokens.take_grid(networks(texts=False), NAME, 0.95).tokens == ["7", "8", "9", "10"]
    assert "token 2 (␣is)" in tokens.take_grid(networks(kind="input"), NAME, 0.95).title
    assert "token 2," in tokens.take_grid(networks(kind="output", texts=False), NAME, 0.95).title
    assert tokens.grid_caption(make_tokens(0.1)).startswith("Self-coupling, blocks 3 and 4:")
    caption = tokens.grid_caption(make_tokens(0.1, "output", other=2))
    assert caption.startswith("Context coupling with a fixed output token, block 3:")


def test_other_prompts_and_mismatches_are_refused():
    with pytest.raises(ParameterError, match="the first prompt here is not that of the coupling matrices"):
        tokens.take_grid(networks().isel(prompt=[1]), NAME, CHANCE)
    with pytest.raises(ParameterError, match="variant is 'miscoupling'"):
        tokens.take_grid(networks(), "miscoupling")


def test_grid_is_relative_to_the_row_jacobian():
    both = networks()
    taken, data = tokens.take_grid(both, NAME, 0.95), both.sel(network="trained")
    entries = abs(data.matrix.values) / data.singular_values.values[0, :, :1, None, None]
    coupling = 1 - data[NAME].values[0, :FULL, :FULL]
    own = taken.sel(network="trained", token_jacobian=range(7, 11), token_vectors=range(7, 11))
    assert_allclose(own.entry.sel(row=[1, 2, 3], column=[1, 2, 3]), entries[:FULL, :FULL])
    assert_allclose(own.coupling, coupling)
    figure = tokens.draw_grid(taken)
    assert titles(figure.axes[:4]) == ["Trained", "Trained", "Untrained", "Untrained"]
    grid, map_ = (axes.images[0].get_array() for axes in figure.axes[:2])
    assert grid.shape == (FULL * (K + 1) - 1,) * 2
    assert_allclose(grid[4:7, 8:11], entries[1, 2])
    assert_allclose(map_, coupling)
    table = frame(taken)
    assert table["row"].notna().sum() == 2 * FULL * FULL * K and list(table.columns[-2:]) == ["entry_2", "entry_3"]


@pytest.mark.parametrize(("other", "masked"), [(3, 0), (2, FULL)])
def test_token_with_itself_is_masked_within_a_block(other, masked):
    both = networks(other=other)
    grid = tokens.take_grid(both, NAME, 0.99)
    grids, maps = np.reshape([axes.images[0] for axes in tokens.draw_grid(grid).axes[:4]], (2, 2)).T
    assert [int(np.ma.getmaskarray(image.get_array()).sum()) for image in maps] == [masked] * 2
    off = ~np.eye(FULL, dtype=bool) if masked else np.ones((FULL, FULL), dtype=bool)
    values = 1 - both[NAME].values[:, 0, :FULL, :FULL][:, off]
    assert {image.get_clim() for image in maps} == {(min(np.min(values), 1 - 0.99), np.max(values))}
    entries = grid.entry.transpose("network", "token_jacobian", "token_vectors", ...).values[:, off]
    assert {image.get_clim() for image in grids} == {(0, np.max(entries))}


def test_summary_has_means_intervals_and_chance():
    each = np.stack([means_of(ds[NAME].values) for ds in FOUND.values()])
    null = SUMMARY.sel(comparison="self 3-4")
    assert [null.random_bases, null.random_bases_low, null.random_bases_high] == approx([0.05, 0.0025, 0.0975])
    assert_allclose(SUMMARY.coupling.sel(comparison=list(FOUND)).transpose("comparison", "network", "prompt"), each)
    line, (untrained, values) = tokens.summary_table(SUMMARY).loc["input 3-4"], each[list(FOUND).index("input 3-4")]
    low, high = student.interval(0.95, len(values) - 1, values.mean(), sem(values))
    wanted = {"trained": values.mean(), "trained low": low, "trained high": high, "untrained": untrained.mean()}
    wanted |= {"by chance": 0.05, "error by chance": 2e-5}
    assert line[[*wanted]].to_dict() == approx(wanted)
    one = tokens.take_summary({name: ds.isel(prompt=[0]) for name, ds in FOUND.items()}, NAME, NULLS)
    assert np.isfinite(one["mean"]).all() and np.isnan([one.low, one.high]).all()  # one prompt has no interval
    book = tokens.numbers_of(PLAIN, 0.02, **GROUPS)
    assert book["between-input-trained-low"] == line["trained low"]
    assert len([name for name in book if name.startswith(("between", "within"))]) == 2 * 8
    blank, trained = each[list(FOUND).index("self 3-3")]
    effects = (book["coupled-between-input"], book["emerged-within-self"])
    assert effects == approx((values.mean(), (trained - blank).mean()))


def test_summary_draws_prompts_and_both_nulls():
    panels = tokens.draw_summary(SUMMARY).axes
    dots = [c.get_offsets()[:, 1] for c in panels[0].collections if len(c.get_offsets()) == 2]
    assert_allclose(dots[3:], SUMMARY.coupling.sel(network="trained").transpose("comparison", "prompt")[:3])
    shade = panels[0].collections[-1].get_paths()[0].get_extents()
    assert (shade.y0, shade.y1) == approx((0.0025, 0.0975))
    dotted = [line.get_ydata()[0] for axes in panels for line in axes.lines if line.get_zorder() == 4]
    assert sorted(dotted) == approx(np.sort(SUMMARY.conjugated.values, axis=None)) and len(dotted) == 12
    assert panels[0].get_legend_handles_labels()[1] == ["untrained", "trained", "conjugated", "by chance"]
    assert len(frame(PLAIN).coupling.dropna()) == 2 * 6 * 2
    assert set(SUMMARY.kind.values) == {"self", "fixed input", "fixed output"}
    assert set(SUMMARY.blocks.values) == {"blocks 3 and 4", "block 3"}


def test_conjugation_null_is_mean_over_prompts():
    assert "conjugated" not in PLAIN
    ds, at = FOUND["input 3-4"].sel(network="trained"), SUMMARY.sel(network="trained", comparison="input 3-4")
    wanted = (means_of(ds.conjugated.values).mean(), np.hypot(*ds.conjugated_error.values) / 2)
    assert (at.conjugated.item(), at.conjugated_error.item()) == approx(wanted)
    book = tokens.numbers_of(SUMMARY, 0.02, **GROUPS)
    assert tuple(book[f"between-input-trained-conjugated{end}"] for end in ("", "-error")) == approx(wanted)
