"""A block that multiplies its stream by a number is told by that number, and none other is."""

import warnings

import pytest
import tiny
import torch
from torch import nn

import coupling_lib as cl
from coupling_lib.errors import ScaledStreamWarning

IDS = torch.arange(3, 12)[None]


def scaled(share: float, *blocks: int):
    """A model some of whose blocks multiply what they give, as Gemma-4's do."""
    hf = tiny.llama()
    for block in blocks:
        hf.model.layers[block].register_forward_hook(lambda module, args, output: share * output)
    return hf


@pytest.mark.parametrize("share", [0.005, 0.057, 0.2, 0.6, 0.9, 0.97, 1.03, 2.0, -1.0])
def test_scaled_stream_is_warned_of_with_its_factor(share):
    message = f"scales its stream by {share:.3g} in block 1 .*the traceless part"
    with pytest.warns(ScaledStreamWarning, match=message) as seen:
        model = cl.wrap_model(scaled(share, 1), name="mine")
    assert [each.category for each in seen] == [ScaledStreamWarning] and "\n" not in str(seen[0].message)
    assert model.blocks.scales == {1: pytest.approx(share, rel=1e-2)} and not model.blocks.post_norm
    record = cl.measure_depth(model, [IDS], ks=(5,)).attrs
    assert record["stream_scales"] == f"block 1: {model.blocks.scales[1]:.3g}"


def test_only_blocks_scaled_away_from_1_count():
    with pytest.warns(ScaledStreamWarning, match="in 2 of 3 blocks, by 0.6 in block 0"):
        cl.wrap_model(scaled(0.6, 0, 2))
    model = cl.wrap_model(tiny.llama())
    handle = model.hf.model.layers[2].register_forward_hook(lambda module, args, output: 0.5 * output)
    assert cl.trace(model, IDS).blocks.scales == {2: pytest.approx(0.5, rel=1e-3)}
    handle.remove()
    assert not cl.trace(model, IDS).blocks.scales
    for share in [0.99, 1.0, 1.01]:
        with warnings.catch_warnings(action="error"):
            model = cl.wrap_model(scaled(share, 0, 1, 2))
        assert not model.blocks.scales
        assert "stream_scales" not in cl.measure_depth(model, [IDS], ks=(5,)).attrs


class Scaled(nn.Module):
    """A layer that multiplies by a weight of its own, as each block of Gemma-4 has one."""

    def __init__(self, layer, share: float):
        super().__init__()
        self.layer, self.layer_scalar = layer, nn.Parameter(torch.tensor([share]))

    def forward(self, hidden_states, attention_mask=None, **more):
        return self.layer(hidden_states, attention_mask, **more) * self.layer_scalar


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaling_weights_of_single_blocks_are_found(dtype):
    hf, shares = tiny.llama(num_hidden_layers=7), [1.0, 0.6, 1.0, 1.0, 1.0, 0.005, 1.0]
    hf.model.layers = nn.ModuleList(map(Scaled, hf.model.layers, shares))
    with pytest.warns(ScaledStreamWarning, match="in 2 of 7 blocks, by 0.60?2? in block 1"):
        found = cl.wrap_model(hf.to(dtype).eval()).blocks
    assert found.scales == {1: pytest.approx(0.6, rel=2e-2), 5: pytest.approx(0.005, rel=5e-2)}
