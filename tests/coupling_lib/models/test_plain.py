"""Networks that are no transformers models: a GPT in plain PyTorch, and models of nnsight."""

import copy

import numpy as np
import pytest
import torch
from nnsight import TransformersModel
from plain_gpt import GPT
from refusals import refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError

IDS = torch.tensor([[5, 17, 3, 40, 64, 0, 22, 9]])


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    made = GPT()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def states(gpt):
    """The stream before each block and after the last, in float64, by calling the network's parts."""
    parts = copy.deepcopy(gpt).double().eval().transformer
    stream = [parts["wte"](IDS) + parts["wpe"](torch.arange(IDS.shape[1]))]
    for block in parts["h"]:
        stream.append(block(stream[-1]))
    return [x.detach() for x in stream], parts["h"]


@pytest.mark.parametrize(("token_in", "token_out"), [(7, 7), (2, 2), (1, 6)])
def test_jacobians_of_a_plain_gpt_are_exact(gpt, token_in, token_out):
    trace = cl.trace(cl.wrap_model(gpt, blocks="transformer.h"), IDS)
    stream, blocks = states(gpt)
    for number, (x, block) in enumerate(zip(stream, blocks, strict=False)):

        def branch(row, x=x, block=block):
            moved = torch.cat([x[0, :token_in], row[None], x[0, token_in + 1 :]])[None]
            return (block(moved) - moved)[0, token_out]

        reference = torch.autograd.functional.jacobian(branch, x[0, token_in])
        found = trace.jacobian(number, token_in, token_out).dense().double()
        assert (found - reference).norm() < 2e-6 * reference.norm()
        step = 1e-5 * torch.randn(x.shape[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        ends = branch(x[0, token_in] + step) - branch(x[0, token_in] - step)
        torch.testing.assert_close(found @ step, ends / 2, rtol=1e-4, atol=1e-4 * float(ends.norm()))
    np.testing.assert_allclose(trace.hidden, torch.cat(stream), atol=1e-5)


def test_plain_networks_and_nnsight_models_are_measured(gpt):
    gpt.train()
    model = cl.wrap_model(gpt, blocks="transformer.h", name="mine")
    assert (model.name, model.n_blocks, model.d_model, model.precision) == ("mine", 3, 24, "float32")
    assert model.blocks.modules is gpt.transformer["h"] and not gpt.training
    depth = cl.measure_depth(model, [IDS], ks=(5,))
    whole = cl.trace(model, IDS)
    J = [whole.jacobian(block).dense() for block in (0, 2)]
    one = 1 - float(depth.normalized_miscoupling.sel(k=5).isel(prompt=0, block_1=0, block_2=2))
    assert cl.coupling(*J, k=5).coupling == pytest.approx(one, abs=1e-5)
    behind_norm = whole.jacobian(2, boundary="hidden_states")
    refused(UnsupportedModelError, "GPT is no transformers model and has no hidden_states", behind_norm.dense)
    path = cl.measure_trajectories(model, [IDS])  # whose readings behind the final norm are left out
    assert float(path.line_shape_score[0]) == pytest.approx(float(cl.line_shape_score(whole.hidden[:, -1])), abs=1e-6)
    hf = cl.load_model("nano-neox").hf
    model = cl.wrap_model(hf, blocks="gpt_neox.layers")
    assert model.blocks.path == "gpt_neox.layers" and model.n_blocks == 12
    plain = cl.load_model("nano-neox")
    model = cl.wrap_model(TransformersModel(plain.hf, tokenizer=plain.tokenizer, task="text-generation"))
    text = "It was the best of times"
    found, expected = (cl.trace(one, text).jacobian(4).dense() for one in (model, plain))
    assert torch.equal(found, expected) and model.tokenizer is plain.tokenizer
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 8), nn.Sequential(*(_Numbered(number) for number in range(5))))
    with pytest.raises(UnsupportedModelError, match="block 2 .*: autograd's derivative is not the derivative"):
        cl.wrap_model(net, blocks="1")


class _Reads(nn.Module):
    """What reads something else than token ids, or runs none of its blocks."""

    def __init__(self, embeds: bool):
        super().__init__()
        self.embed = nn.Embedding(9, 8) if embeds else nn.Linear(7, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        return self.embed(x)


class _Numbered(nn.Module):
    """A block through which, where it has a certain number, no derivative passes."""

    def __init__(self, layer_idx: int):
        super().__init__()
        self.layer_idx, self.inner = layer_idx, nn.Linear(8, 8)

    def forward(self, x):
        return x + self.inner(x.detach() if self.layer_idx == 1 else x).tanh()


class _Casts(nn.Linear):
    """A block with weights in a number format that its own code casts to."""

    def forward(self, x):
        return x + super().forward(x.bfloat16()).float()


class _InPlace(nn.Linear):
    """A block that writes over the stream that it reads."""

    def forward(self, x):
        x += super().forward(x).tanh()
        return x


class _Checkpointed(nn.Module):
    """A block that keeps nothing of its branch for the pass backwards."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + checkpoint(self.inner, x, use_reentrant=False)


UNNAMED = "no transformers model; name the list of its blocks, such as blocks='transformer.h'"
OVER = UnsupportedModelError, r"block 1 of .* two runs; is it in training mode, or does it write over .* \(x \+="
CASTS = UnsupportedModelError, r"block 1 of .* does not run in torch.float32, take out casts: .*dtype"


@pytest.mark.parametrize(
    ("made", "path", "error", "message"),
    [
        (GPT, None, ParameterError, UNNAMED),
        (GPT, "h", ParameterError, "blocks is 'h', where GPT has no list of blocks; its lists are 'transformer.h'"),
        (GPT, 3, ParameterError, "blocks is 3, where GPT has no list of blocks"),
        (lambda: nn.Linear(2, 2), "h", ParameterError, "Linear has no list of blocks; it has no list of modules"),
        (lambda: _Reads(True), "blocks", UnsupportedModelError, "does not run the blocks named; what reads token ids"),
        (lambda: _Reads(False), "blocks", UnsupportedModelError, "does not run on 7 token ids alone, .*wrap what does"),
        (lambda: nn.Sequential(nn.Embedding(9, 8), nn.Sequential(_Casts(8, 8).bfloat16())), "1", *CASTS),
        (lambda: nn.Sequential(nn.Embedding(9, 8), nn.Sequential(_InPlace(8, 8))), "1", *OVER),
        (lambda: "gpt2", "h", ParameterError, "hf_model is a str; a transformers model or nn.Module was expected"),
    ],
)
def test_networks_without_suitable_blocks_are_refused(made, path, error, message):
    refused(error, message, cl.wrap_model, made(), blocks=path)


def test_checkpointed_block_is_refused_in_one_line():
    net = nn.Sequential(nn.Embedding(9, 8), nn.Sequential(_Checkpointed()))
    J = cl.trace(cl.wrap_model(net, blocks="1"), IDS % 9).jacobian(0)
    for use in (J.dense, lambda: J @ torch.ones(8), lambda: J.svd(2)):
        refused(UnsupportedModelError, "under torch.utils.checkpoint, .*; switch checkpointing off", use)


class _Encoder(nn.Module):
    """A stack of torch's own layers, whose fast path for inference rounds otherwise."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal, self.embed = causal, nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        n = ids.shape[1]
        return self.stack(self.embed(ids), mask=torch.full((n, n), -torch.inf).triu(1) if self.causal else None)


@pytest.mark.parametrize("causal", [False, True])
def test_encoder_layers_of_torch_are_measured(causal):
    torch.manual_seed(0)
    trace = cl.trace(cl.wrap_model(net := _Encoder(causal), blocks="stack.layers"), IDS % 9)
    x, layer = trace.hidden[1].double(), copy.deepcopy(net.stack.layers[1]).double()
    mask = torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1) if causal else None

    def branch(row):
        return layer(torch.cat([x[:4], row[None], x[5:]])[None], mask)[0, 6]

    found, wanted = trace.jacobian(1, 4, 6).dense().double(), torch.autograd.functional.jacobian(branch, x[4])
    assert (found - wanted).norm() < 1e-5 * wanted.norm() and torch.backends.mha.get_fastpath_enabled()
