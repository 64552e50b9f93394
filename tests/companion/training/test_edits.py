"""Edits against networks that were rebuilt with them, costs against the losses of whole models, and a stopped run."""

import argparse
import copy
import functools

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from refusals import refused
from torch import nn
from torch.nn import functional

import coupling_lib as cl
from companion.tables.edits import KEY, PAIRS, edits
from companion.training import edits as editing
from coupling_lib.errors import ParameterError

BLOCKS = 5
IDS = torch.randint(0, 280, (3, 12), generator=torch.Generator().manual_seed(0))


class Beside(nn.Module):
    """Two blocks that read one state: x + f(x) + g(x)."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, hidden_states, **more):
        return self.first(hidden_states, **more) + self.second(hidden_states, **more) - hidden_states


def averaged(first, second):
    both = copy.deepcopy(first)
    other = second.state_dict()
    both.load_state_dict({name: (value + other[name]) / 2 for name, value in first.state_dict().items()})
    return both


REBUILT = {
    ("skip", (1,)): lambda b: [b[0], *b[2:]],
    ("skip", (4,)): lambda b: b[:4],
    ("swap", (1, 3)): lambda b: [b[0], b[3], b[2], b[1], b[4]],
    ("replace", (1, 3)): lambda b: [b[0], b[1], b[2], b[1], b[4]],
    ("merge", (0, 2)): lambda b: [averaged(b[0], b[2]), b[1], averaged(b[0], b[2]), *b[3:]],
    ("parallel", (1, 2)): lambda b: [b[0], Beside(b[1], b[2]), *b[3:]],
    ("parallel", (0, 3)): lambda b: [Beside(b[0], b[3]), b[1], b[2], b[4]],
    ("remove", (0, 2, 4)): lambda b: [b[1], b[3]],
}


@pytest.fixture(scope="module")
def model():
    return cl.wrap_model(tiny.llama(num_hidden_layers=BLOCKS), tiny.tokenizer(), name="tiny")


@pytest.fixture(scope="module")
def reading(model):
    return editing.read_passages(model, IDS)


def logits_of(hf, blocks=None):
    """Logits of a whole model, its list of blocks taken for another."""
    hf = copy.deepcopy(hf)
    if blocks is not None:
        hf.model.layers = nn.ModuleList(blocks)
        hf.config.num_hidden_layers = len(blocks)
    with torch.no_grad():
        return hf(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize(("edit", "places"), REBUILT, ids=str)
def test_edited_network_equals_the_rebuilt_one(edit, places, model, reading):
    before = logits_of(model.hf)
    wanted = logits_of(model.hf, REBUILT[edit, places](list(model.hf.model.layers)))
    found = reading.head(editing.run(reading, editing.edited(reading.stages, edit, *places)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (found - before).abs().max() > 1e-4
    assert torch.equal(logits_of(model.hf), before)


def test_swapping_twice_restores_the_network(reading):
    twice = editing.edited(editing.edited(reading.stages, "swap", 1, 3), "swap", 1, 3)
    assert editing.run(reading, twice) is reading.states[-1]
    same = editing.run(reading, editing.edited(reading.stages, "merge", 2, 2))
    torch.testing.assert_close(same, reading.states[-1], rtol=1e-5, atol=1e-6)
    message = "edit is 'turn'; expected one of skip, swap"
    refused(ParameterError, message, editing.edited, reading.stages, "turn", 1, 3)


def test_cost_is_loss_rise_and_kl_divergence(model, reading):
    stages = editing.edited(reading.stages, "swap", 1, 3)
    own, other = logits_of(model.hf)[:, 5:-1], reading.head(editing.run(reading, stages))[:, 5:-1]
    rise = functional.cross_entropy(other.mT, IDS[:, 6:]) - functional.cross_entropy(own.mT, IDS[:, 6:])
    p, q = own.softmax(-1).double(), other.softmax(-1).double()
    cost = editing.cost(reading, stages)
    assert cost["loss_rise"] == pytest.approx(float(rise), abs=1e-6)
    assert cost["kl"] == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-3)
    assert cost["loss_rise_low"] < cost["loss_rise"] < cost["loss_rise_high"]
    assert set(editing.cost(reading, reading.stages).values()) == {0.0}


def test_predictors_are_those_of_the_states_and_jacobians(model):
    known = editing.predictors(model)
    one, two = editing.predicted(known, (2,)), editing.predicted(known, (1, 3))
    assert known["state_cosine"].shape == (BLOCKS, BLOCKS) and np.allclose(np.diag(known["state_cosine"]), 1)
    states = [cl.trace(model, prompt).hidden for prompt in cl.load_prompts(n=12)]
    cosines = [functional.cosine_similarity(x[2], x[3], dim=-1).mean() for x in states]
    assert one["influence"] == pytest.approx(1 - float(torch.stack(cosines).mean()), abs=1e-5)
    assert two["influence"] == pytest.approx((known["influence"][1] + known["influence"][3]) / 2)
    assert two["distance"] == 2 and not {"distance", "state_cosine"} & {*one}
    others = known["normalized_miscoupling_k10"][2, [0, 1, 3, 4]]
    assert one["normalized_miscoupling_k10"] == pytest.approx(np.mean(others))


def test_stopped_run_measures_only_missing_edits(tmp_path, monkeypatch):
    tiny.llama(num_hidden_layers=BLOCKS).save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    given = argparse.Namespace(near=2, orders=2, precision="float32", table=tmp_path / "edits.csv")
    monkeypatch.setattr(editing, "MOST_REMOVED", 2)
    measure = functools.partial(editing.measure, str(tmp_path / "m"))
    measure(IDS, given)
    table = edits(given.table)
    counts = table.groupby("edit").size().to_dict()
    # 7 pairs up to two apart, and 3 beyond that are swapped; 5 predictors, the best and two random orders, twice each.
    assert counts == {"skip": BLOCKS, "swap": 10, "remove": 16} | dict.fromkeys(PAIRS[1:], 7)
    best = table[(table["by"] == "best") & ~table["blocks"].str.contains(" ")]
    assert best["loss_rise"].item() == table.loc[table["edit"] == "skip", "loss_rise"].min()
    asked = []
    monkeypatch.setattr(editing, "cost", lambda *given, real=editing.cost: asked.append(given) or real(*given))
    table.drop(index=[0, 12]).to_csv(given.table, index=False)
    measure(IDS, given)
    again = edits(given.table)
    assert set(again[KEY].itertuples(index=False)) == set(table[KEY].itertuples(index=False))
    # One that is there, those two, removal by five predictors, and the search for the best.
    assert len(asked) == 1 + 2 + 10 + 5 + 4
    asks, takes = "has edits of .* in float32, and bfloat16 is asked for; take", "take the passages of before"
    for ids, changes, message in (
        (IDS, {"precision": "bfloat16"}, f"{asks} --precision float32, or another"),
        (IDS[:2], {}, f"skip 2 of .* raises the loss by .*, on these passages by .*; {takes}"),
        (None, {"passages": -1}, "--passages is -1; it must be a whole number from 1"),
    ):
        refused(ParameterError, message, measure, ids, argparse.Namespace(**vars(given) | changes))
    pd.testing.assert_frame_equal(edits(given.table), again)
