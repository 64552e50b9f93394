"""Phases of training: the split of Jacobians into mean and fluctuation, and a checkpoint measured anew."""

import numpy as np
import pytest
import torch

import coupling_lib as cl
from companion.tables.phases import phases as shipped
from companion.training import phases


def test_split_estimates_the_share_of_the_mean():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 6, generator=generator).double()
    truth = float(mean.square().sum() / (mean.square().sum() + 36))
    found = [phases.split(mean + torch.randn(n, 6, 6, generator=generator).double()) for n in [4] * 400]
    assert np.mean(found) == pytest.approx(truth, abs=0.01)
    assert phases.split(mean.expand(5, 6, 6)) == pytest.approx(1.0)


def test_shipped_row_of_nano_neox_is_reproduced():
    row = shipped().set_index(["model", "step"]).loc["nano-neox", 100]
    found = phases.of_blocks(cl.load_model("nano-neox", revision="step100", device="cpu"))
    assert found == pytest.approx({name: row[name] for name in found}, rel=2e-3)
