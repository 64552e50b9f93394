"""What a long measurement says of itself, with a clock that only goes when it is told to."""

from __future__ import annotations

from functools import partial

import pytest
import tiny
import torch
import xarray as xr

import coupling_lib as cl
from coupling_lib import progress
from coupling_lib.inputs.given import prompt_inputs
from coupling_lib.measures import common
from coupling_lib.store import sweep as sweeping

TEXTS = ["It was the best of times", "it was the worst of times", "What is the capital?", "The capital is Paris."]


class Clock:
    """Seconds that pass when a measure says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "clock", clock)
    return clock


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save_llama(folder)
    return cl.load_model(folder)


def slow(clock: Clock, forward: float, block: float, rest: float = 0.0):
    """A measure that takes so many seconds for a forward pass, a block and what comes after them."""

    def measure_slowly(model, prompts) -> xr.Dataset:
        given = prompt_inputs(prompts)
        for _ in given:
            clock.now += forward
            for _ in range(model.n_blocks):
                with progress.block():
                    clock.now += block
            clock.now += rest
        return xr.Dataset({"n": ("prompt", [len(x) for x in given])}, {"prompt": given})

    return measure_slowly


def needs(model) -> str:
    # A measure that does not say what it holds has the weights alone counted.
    return f"{sum(p.nbytes for p in model.hf.parameters()) / 1e6:.1f} MB of memory for weights"


def test_the_first_block_says_how_long_all_will_take_and_lines_follow_with_the_time_left(
    model, tmp_path, clock, capsys
):
    cl.sweep(slow(clock, 40, 20), model, TEXTS, store=tmp_path)
    name = model.name
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: 3 blocks, 4 prompts; about 7 min in all (20.0 s a block, measured on the first); {needs(model)}; "
        "1 prompt takes about 2 min",
        f"{name}: prompt 1 of 4, block 3 of 3; about 5 min left",
        f"{name}: prompt 2 of 4, block 1 of 3; about 4 min left",
        f"{name}: prompt 2 of 4, block 3 of 3; about 3 min left",
        f"{name}: prompt 3 of 4, block 1 of 3; about 2 min left",
        f"{name}: prompt 3 of 4, block 3 of 3; about 2 min left",
        f"{name}: prompt 4 of 4, block 1 of 3; about 40 s left",
        f"{name}: prompt 4 of 4, block 3 of 3; about 1 s left",
    ]


def test_what_is_in_the_store_is_counted_and_takes_no_time(model, tmp_path, clock, capsys):
    measure = slow(clock, 1, 1)
    cl.sweep(measure, model, TEXTS[:2], store=tmp_path)
    assert capsys.readouterr().out == ""
    start = clock.now
    cl.sweep(measure, model, TEXTS[:2], store=tmp_path)
    assert clock.now == start and capsys.readouterr().out == ""


def test_prompts_that_are_kept_are_named_in_the_plan(model, tmp_path, clock, capsys):
    pace = {"block": 1.0}

    def measure_paced(model, prompts) -> xr.Dataset:
        return slow(clock, 0, pace["block"], rest=2)(model, prompts)

    cl.sweep(measure_paced, model, TEXTS[:1], store=tmp_path)
    pace["block"] = 30.0
    cl.sweep(measure_paced, model, TEXTS, store=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "3 blocks, 4 prompts, 1 of them in the store already; about 4 min in all (30.0 s a block" in lines[0]
    assert "prompt 1 of 3, block 2 of 3; about 4 min left" in lines[1]


def test_a_block_that_is_measured_in_two_parts_counts_once(model, tmp_path, clock, capsys):
    def measure_twice(model, prompts) -> xr.Dataset:
        for share, seconds in ((0.75, 75), (0.25, 25)):
            for _ in range(model.n_blocks):
                with progress.block(share):
                    clock.now += seconds
        return xr.Dataset({"n": ("prompt", [1])}, {"prompt": prompt_inputs(prompts)})

    cl.sweep(measure_twice, model, TEXTS[:1], store=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "about 5 min in all (100.0 s a block, measured on the first)" in lines[0]
    assert [line.rpartition(": ")[2] for line in lines[1:]] == [
        "prompt 1 of 1, block 2 of 3; about 2 min left",
        "prompt 1 of 1, block 3 of 3; about 75 s left",
        "prompt 1 of 1, block 3 of 3; about 25 s left",
    ]


def test_a_measure_without_blocks_is_timed_by_its_first_prompt(model, tmp_path, clock, capsys):
    def measure_whole(model, prompts) -> xr.Dataset:
        clock.now += 25.0
        return xr.Dataset({"n": ("prompt", [1])}, {"prompt": prompt_inputs(prompts)})

    cl.sweep(measure_whole, model, TEXTS, store=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "about 2 min in all (25 s a prompt, measured on the first)" in lines[0]
    assert lines[1:] == [f"{model.name}: measured: prompt 3 of 4; about 25 s left"]


def test_embedded_models_and_measures_outside_a_sweep_say_nothing(clock, tmp_path, model, capsys):
    cl.sweep(slow(clock, 100, 100), cl.load_model("nano-neox"), TEXTS[:2], store=tmp_path)
    slow(clock, 100, 100)(model, TEXTS)
    assert capsys.readouterr().out == ""


def test_jacobians_of_a_sweep_take_the_time(model, tmp_path, clock, capsys, monkeypatch):
    formed = common.form

    def slowly(*given, **options):
        clock.now += 10.0
        return formed(*given, **options)

    monkeypatch.setattr(common, "form", slowly)
    cl.sweep(cl.measure_spectra, model, torch.tensor([[5, 6, 7]]), store=tmp_path, k=2)
    assert "3 blocks, 1 prompt; about 30 s in all (10.0 s a block, measured on the first)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (89, "89 s"), (376, "6 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_times_are_written_for_readers(seconds, text):
    assert progress.duration(seconds) == text


def test_jacobians_that_products_do_not_form_are_not_counted(model):
    weights = sum(p.nbytes for p in model.hf.parameters())
    all_of_them = sum(p.nbytes for p in model.hf.parameters()) + 4 * tiny.BLOCKS * tiny.WIDTH**2

    def needs(**settings) -> str:
        return sweeping._needs(model, partial(cl.measure_depth.jacobian_bytes, model, settings))

    for settings in ({"ks": (2,)}, {"ks": (2,), "formed": True}):
        assert needs(**settings) == f"{all_of_them / 1e6:.1f} MB of memory for weights and Jacobians"
    assert needs(formed=False) == f"{weights / 1e6:.1f} MB of memory for weights"
