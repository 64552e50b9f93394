"""Shards and early ends: what is measured is the same number, by whomever and however often it was divided."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import xarray as xr

import coupling_lib as cl
from coupling_lib import store
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import prompt_inputs, prompt_name
from coupling_lib.measures.depth import coupling_of_blocks
from coupling_lib.provenance import provenance
from coupling_lib.store import limits
from coupling_lib.store.sweep import stream

TEXTS = [f"It was the {word} of times" for word in ("best", "worst", "first", "last", "age", "season", "epoch")]


class Counted:
    """A measure that writes down what it was called with: the value of a text is its number in a list."""

    __name__ = "measure_counted"

    def __init__(self, values=()) -> None:
        self.seen: list[str] = []
        self.values = dict(values)

    def __call__(self, model, prompts, scale: float = 1.0) -> xr.Dataset:
        texts = prompt_inputs(prompts)
        self.seen += map(prompt_name, texts)
        values = [[scale * self.values.get(prompt_name(x), len(prompt_name(x))), np.nan] for x in texts]
        ds = xr.Dataset({"value": (("prompt", "part"), values), "shared": ("place", [1, 2])})
        ds = ds.assign_coords(prompt=[prompt_name(x) for x in texts])
        return ds.assign_attrs(provenance(model, texts, measure="counted"))


def netcdf(ds: xr.Dataset) -> bytes:
    return bytes(ds.to_netcdf(engine="scipy"))


def files_of(root) -> dict[str, int]:
    return {path: os.stat(path).st_mtime_ns for path in store.listing(root=root).path}


@pytest.mark.parametrize(
    ("name", "measure", "settings"),
    [
        ("nano-neox", cl.measure_depth, {"ks": (2,)}),
        ("tiny", cl.measure_depth, {"ks": (2,)}),
        ("tiny", cl.measure_trajectories, {}),
    ],
)
def test_merged_shards_are_the_bytes_of_a_plain_run(model, tmp_path, name, measure, settings):
    model = model if name == "tiny" else cl.load_model(name)
    texts = [prompt.text for prompt in cl.load_prompts(n=23)]
    texts[9] = texts[2]
    parts = limits.parts(texts)
    assert parts == [*range(9), 2, *range(9, 22)]
    whole = cl.sweep(measure, model, texts, store=tmp_path / "plain", **settings)
    for count in (2, 3):
        store_of = tmp_path / str(count)
        for number in reversed(range(1, count + 1)):
            part = cl.sweep(measure, model, texts, store=store_of, shard=f"{number}/{count}", **settings)
            mine = [text for text, its in zip(texts, parts, strict=True) if its % count == number - 1]
            assert part.prompt.values.tolist() == mine and part.attrs["n_prompts"] == len(mine)
        before = files_of(store_of)
        merged = cl.sweep(measure, model, texts, store=store_of, **settings)
        assert netcdf(merged) == netcdf(whole) and merged.prompt.values.tolist() == texts
        assert files_of(store_of) == before and len(before) == 22


def test_a_sweep_that_goes_on_gives_the_bytes_of_an_undisturbed_run(tmp_path):
    neox, texts = cl.load_model("nano-neox"), [prompt.text for prompt in cl.load_prompts(n=20)]

    def swept() -> bytes:
        return netcdf(cl.sweep(cl.measure_depth, neox, texts, ks=(2,), store=tmp_path))

    whole, kept = swept(), store.listing(root=tmp_path).set_index("prompt").path
    for number in (0, 3, 4, 15, 17):
        os.remove(kept[texts[number]])
    left = files_of(tmp_path)
    assert len(left) == 15 and swept() == whole
    assert files_of(tmp_path).items() >= left.items()


def test_a_shard_measures_its_own_prompts_and_each_prompt_belongs_to_one(model, tmp_path):
    counted, twice = Counted(), [*TEXTS[:3], TEXTS[0], *TEXTS[3:]]
    for number in (3, 1, 2):
        cl.sweep(counted, model, twice, store=tmp_path, shard=f"{number}/3")
    # The text that comes twice stands at places 0 and 3.
    assert sorted(counted.seen) == sorted(TEXTS)
    ds = cl.sweep(counted, model, twice, store=tmp_path)
    assert ds.prompt.values.tolist() == twice and len(counted.seen) == len(TEXTS)
    homes = [limits.in_shard(twice, f"{number}/5") for number in range(1, 6)]
    assert sorted(itertools.chain(*homes)) == list(enumerate(twice))
    assert limits.in_shard(twice, None) == list(enumerate(twice))


def test_what_no_prompt_changes_comes_with_the_first_shard(model, tmp_path):
    first, second = (cl.sweep(Counted(), model, TEXTS, store=tmp_path, shard=shard) for shard in ("1/2", "2/2"))
    assert "shared" in first and "shared" not in second
    assert list(stream(Counted(), model, TEXTS[:2], store=tmp_path, shard="3/3")) == []
    with pytest.raises(ParameterError, match=r"shard 3/3 of 2 prompts is empty; make at most 2 shards$"):
        cl.sweep(Counted(), model, TEXTS[:2], store=tmp_path, shard="3/3")
    with pytest.raises(ParameterError, match=r"shard 2/2 of 3 prompts is empty; make at most 1 shard$"):
        cl.sweep(Counted(), model, TEXTS[:1] * 3, store=tmp_path, shard="2/2")


@pytest.mark.parametrize(
    "shard", ["0/2", "3/2", "1/0", "1", "-1/2", "1/2/3", " 1/2", "a/b", "1.0/2", "", 1, (1, 2), "²/3"]
)
def test_what_is_no_shard_is_refused(model, tmp_path, shard):
    with pytest.raises(ParameterError, match=r"it must be a text i/n with i from 1 to n, such as '2/3'"):
        cl.sweep(Counted(), model, TEXTS, store=tmp_path, shard=shard)
    assert store.listing(root=tmp_path).empty


def names(count: int) -> list[str]:
    return [f"prompt {number:03d}" for number in range(count)]


def test_a_sweep_ends_where_half_the_interval_is_below_what_was_asked(model, tmp_path):
    texts = names(200)
    draws = np.random.default_rng(0).normal(3.0, 0.5, len(texts))
    counted = Counted(zip(texts, draws, strict=True))
    ds = cl.sweep(counted, model, texts, store=tmp_path, until=0.1, of="value")
    n = ds.sizes["prompt"]
    # 1.96 * 0.5 / sqrt(n) is 0.1 at n = 96; the sample's own spread stands for 0.5.
    assert 70 < n < 130 and counted.seen == texts[:n]
    halves = [limits.mean_interval(draws[:m]) for m in (n - 1, n)]
    before, after = (float(found.high - found.low) / 2 for found in halves)
    assert after < 0.1 <= before and ds.attrs["half_width"] == after and ds.attrs["until"] == 0.1
    said = f"after {n} of 200 prompts: half width {after:.3g} of the 95 % interval of the mean value is below 0.1"
    assert ds.attrs["stopped"] == said and ds.attrs["n_prompts"] == n
    again = cl.sweep(counted, model, texts, store=tmp_path, until=0.1, of=lambda one: one.value.isel(part=0))
    assert len(counted.seen) == n and again.attrs["half_width"] == after
    assert netcdf(again.drop_attrs()) == netcdf(ds.drop_attrs())


def test_it_never_ends_before_the_fewest_and_says_where_it_was_not_reached(model, tmp_path):
    texts = names(12)
    ds = cl.sweep(Counted((text, 1.0) for text in texts), model, texts, store=tmp_path, until=0.01, of="value")
    assert ds.sizes["prompt"] == limits.FEWEST == 8 and ds.attrs["half_width"] == 0
    wide = Counted((text, float(place % 2)) for place, text in enumerate(texts))
    wide.version = 2
    ds = cl.sweep(wide, model, texts, store=tmp_path, until=0.01, of="value")
    assert ds.sizes["prompt"] == 12 and ds.attrs["half_width"] > 0.2
    assert ds.attrs["stopped"].startswith("not early, after 12 of 12 prompts: half width 0.3")
    assert "stopped" not in cl.sweep(wide, model, texts, store=tmp_path).attrs


def test_coupling_across_depth_has_a_main_number(model, tmp_path):
    ds = cl.sweep(cl.measure_depth, model, names(10), store=tmp_path, ks=(2, 4), until=0.9)
    assert ds.sizes["prompt"] == 8 and "of the mean coupling_of_blocks is below 0.9" in ds.attrs["stopped"]
    off = ~np.eye(model.n_blocks, dtype=bool)
    wanted = [1 - float(x[off].mean()) for x in ds.normalized_miscoupling.sel(k=4).values.astype(float)]
    np.testing.assert_allclose(coupling_of_blocks(ds), wanted, rtol=1e-6)
    half = limits.mean_interval(np.array(wanted))
    assert ds.attrs["half_width"] == pytest.approx(float(half.high - half.low) / 2, rel=1e-5)


@pytest.mark.parametrize("until", [0, -0.1, float("nan"), float("inf"), "0.01", True, [0.1]])
def test_what_is_no_width_is_refused(model, tmp_path, until):
    with pytest.raises(ParameterError, match=r"it must be a number above 0, the half width to reach, as 0\.01"):
        cl.sweep(Counted(), model, TEXTS, store=tmp_path, until=until, of="value")
    assert store.listing(root=tmp_path).empty


def test_what_until_looks_at_must_be_there(model, tmp_path):
    refused = [
        (Counted(), None, "measure_counted has no main one; give of= the name of one of its variables"),
        (Counted(), "shared", "of is 'shared', which is no variable of numbers of each prompt; give of= one of value,"),
        (Counted(), "vlaue", "give of= one of value, or a function of the data set"),
        (Counted(), 3, "of is 3; give of= one of value"),
        (Counted(), lambda ds: ds.value.isel(part=1), "of gives nan for the prompt 'It was the best of times'"),
    ]
    for measure, of, said in refused:
        with pytest.raises(ParameterError, match=said):
            cl.sweep(measure, model, TEXTS, store=tmp_path, until=0.1, of=of)
    with pytest.raises(ParameterError, match=r"until needs all prompts in one sweep, and shard is '1/2'"):
        cl.sweep(Counted(), model, TEXTS, store=tmp_path, until=0.1, of="value", shard="1/2")
