"""What rivals coupling: spectra of weights as they are defined, and how much blocks turn states."""

import argparse

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import coupling_lib as cl
from companion.tables.files import read_table
from companion.training import rivals
from coupling_lib import paths
from coupling_lib.errors import ParameterError


@pytest.mark.parametrize("exponent", [2.0, 3.5])
def test_power_law_exponent_is_recovered(exponent):
    draw = np.random.default_rng(0)
    tail = (1 - draw.random(2000)) ** (-1 / (exponent - 1))
    assert rivals.power_law(np.r_[tail, draw.uniform(0.01, 1, 1000)]) == pytest.approx(exponent, abs=0.15)


def test_weight_spectra_follow_their_definitions():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(40, 60), nn.LayerNorm(60), nn.Linear(60, 40, bias=False)).double()
    of_matrices = []
    for weight in (block[0].weight, block[2].weight):
        values = np.linalg.eigvalsh((weight.T @ weight).detach().numpy())[-40:]
        exponent = rivals.power_law(values)
        of_matrices.append((exponent, exponent * np.log10(values[-1]), values.sum() / values[-1]))
    found = rivals.of_weights(block)
    assert list(found.values()) == pytest.approx(np.mean(of_matrices, axis=0), rel=1e-3)
    assert 1 < found["stable_rank"] < 40


def test_influence_is_one_minus_mean_cosine():
    model, prompt = cl.load_model("nano-neox"), cl.load_prompts(n=1)[0]
    hidden = cl.trace(model, prompt).hidden.double().numpy()
    unit = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
    cosines = (unit[:-1] * unit[1:]).sum(axis=-1)
    assert rivals.influence(model, [prompt]) == pytest.approx(1 - np.mean(cosines), abs=1e-6)


def test_measured_models_are_not_measured_again(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(rivals, "measured", lambda model, inputs: asked.append(model) or {"alpha": 2.0})
    given = argparse.Namespace(suite=tmp_path, vits=tmp_path, data=tmp_path, table=tmp_path / "rivals.csv")
    for photographs in ("a", "ac"):
        monkeypatch.setattr(rivals, "language_models", lambda *_: ((name, name, []) for name in "ab"))
        monkeypatch.setattr(rivals, "vision_models", lambda *_, names=photographs: ((name, name, []) for name in names))
        rivals.measure(given)
    assert asked == ["a", "b", "a", "c"]
    table, both = read_table(given.table), ["suite", "photographs"]
    assert table[["set", "model"]].values.tolist() == [[both[0], "a"], [both[0], "b"], [both[1], "a"], [both[1], "c"]]
    assert table["predictions_sha256"].str.len().eq(64).all()


def test_folder_without_runs_is_refused(tmp_path):
    message = "give the folder in which the models were trained"
    refused(ParameterError, message, next, rivals.language_models(tmp_path))


def test_shipped_table_holds_models_of_both_sets():
    table = read_table(paths.DATA / "rivals.csv")
    assert table.groupby("set").size().to_dict() == {"photographs": 64, "suite": 32}
    assert (table[["alpha", "stable_rank"]] > 1).all(axis=None) and table["influence"].between(0, 1).all()
    assert not table.duplicated(["set", "model"]).any()
