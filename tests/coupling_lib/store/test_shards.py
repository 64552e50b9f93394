"""Shards: what is measured is the same number, by whomever and however often it was divided."""

import itertools
import os

import pytest
import xarray as xr
from counted import Counted
from refusals import refused

import coupling_lib as cl
from coupling_lib import store
from coupling_lib.errors import ParameterError
from coupling_lib.store.sweep import in_shard, stream
from coupling_lib.store.sweep import prompt_numbers as numbered

TEXTS = [f"It was the {word} of times" for word in ("best", "worst", "first", "last", "age", "season", "epoch")]


def files_of(root) -> dict[str, int]:
    return {path: os.stat(path).st_mtime_ns for path in store.listing(root=root).path}


@pytest.mark.parametrize(
    ("name", "measure", "settings"),
    [
        pytest.param("nano-neox", cl.measure_depth, {"ks": (2,)}, marks=pytest.mark.thorough),
        pytest.param("tiny", cl.measure_depth, {"ks": (2,)}, marks=pytest.mark.thorough),
        ("tiny", cl.measure_trajectories, {}),
    ],
)
def test_merged_shards_equal_a_plain_run(model, tmp_path, name, measure, settings):
    model = model if name == "tiny" else cl.load_model(name)
    texts = [prompt.text for prompt in cl.load_prompts(n=23)]
    texts[9] = texts[2]
    parts = numbered(texts)
    assert parts == [*range(9), 2, *range(9, 22)]

    def swept(root: str, shard: str | None = None) -> xr.Dataset:
        return cl.sweep(measure, model, texts, store=tmp_path / root, shard=shard, **settings)

    whole = swept("plain").to_netcdf(engine="scipy")
    for count in ("2", "3"):
        for number in reversed(range(int(count))):
            part = swept(count, f"{number + 1}/{count}")
            mine = [text for text, its in zip(texts, parts, strict=True) if its % int(count) == number]
            assert part.prompt.values.tolist() == mine and part.attrs["n_prompts"] == len(mine)
        before = files_of(tmp_path / count)
        merged = swept(count)
        assert merged.to_netcdf(engine="scipy") == whole and merged.prompt.values.tolist() == texts
        assert files_of(tmp_path / count) == before and len(before) == 22


def test_each_prompt_is_measured_by_one_shard(model, tmp_path):
    counted, twice = Counted(), [*TEXTS[:3], TEXTS[0], *TEXTS[3:]]
    for number in (3, 1, 2):
        cl.sweep(counted, model, twice, store=tmp_path, shard=f"{number}/3")
    # The text that comes twice stands at places 0 and 3.
    assert sorted(counted.seen) == sorted(TEXTS)
    ds = cl.sweep(counted, model, twice, store=tmp_path)
    assert ds.prompt.values.tolist() == twice and len(counted.seen) == len(TEXTS)
    homes = [in_shard(twice, f"{number}/5") for number in range(1, 6)]
    assert sorted(itertools.chain(*homes)) == list(enumerate(twice)) == in_shard(twice, None)


def test_invalid_or_empty_shards_are_refused(model, tmp_path):
    def swept(shard, texts=TEXTS) -> xr.Dataset:
        return cl.sweep(Counted(), model, texts, store=tmp_path, shard=shard)

    for shard in ["0/2", "3/2", "1/0", "1", "-1/2", "1/2/3", " 1/2", "a/b", "1.0/2", "", 1, (1, 2), "²/3"]:
        refused(ParameterError, r"it must be a text i/n with i from 1 to n, such as '2/3'", swept, shard)
        assert store.listing(root=tmp_path).empty
    assert "shared" in swept("1/2") and "shared" not in swept("2/2")
    assert list(stream(Counted(), model, TEXTS[:2], store=tmp_path, shard="3/3")) == []
    refused(ParameterError, r"shard 3/3 of 2 prompts is empty; make at most 2 shards$", swept, "3/3", TEXTS[:2])
    refused(ParameterError, r"shard 2/2 of 3 prompts is empty; make at most 1 shard$", swept, "2/2", TEXTS[:1] * 3)
