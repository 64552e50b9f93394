"""What a pass changes in a model is undone, and done again where a block is differentiated."""

import copy

import numpy as np
import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from tiny import STACK, llama
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import state

pytestmark = pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")


def big_bird() -> transformers.BigBirdForMaskedLM:
    """A model whose sparse attention becomes a full one, for good, when it reads few tokens."""
    torch.manual_seed(0)
    sparse = dict(block_size=4, num_random_blocks=1, max_position_embeddings=1200)
    return (
        transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**STACK, **sparse, vocab_size=100)).eval().double()
    )


def ids_of(n: int) -> torch.Tensor:
    return torch.randint(5, 100, (1, n), generator=torch.Generator().manual_seed(n))


@torch.no_grad()
def passed(hf, n: int) -> torch.Tensor:
    return hf(input_ids=ids_of(n)).logits


@pytest.mark.parametrize("n", [12, 100, 1100])
def test_loading_and_tracing_leave_a_model_unchanged(n):
    model = cl.wrap_model(big_bird())
    for tokens in (12, 100):
        cl.trace(model, ids_of(tokens))
    assert torch.equal(passed(model.hf, n), passed(big_bird(), n))


@pytest.mark.parametrize("n", [12, 100])
def test_jacobian_uses_the_settings_of_its_pass(n):
    plain = big_bird()
    wanted = brute_force_jacobian(plain, plain.bert.encoder.layer[1], {"input_ids": ids_of(n)}, n - 1, n - 1)
    trace = cl.trace(cl.wrap_model(big_bird()), ids_of(n))
    cl.trace(trace.model, ids_of(112 - n))  # another pass, in which attention is of the other kind
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-8


class Counts(nn.Module):
    """A module in the place of another that changes as it runs: attributes, containers, buffers, random generators."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.calls, self.seen, self.kept = inner, 0, [], {}
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("longest", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(x.shape[1])
        self.kept["last"] = x
        self.total += 1
        self.longest = torch.ones(x.shape[1])
        torch.rand(1), np.random.rand()
        return self.inner(x)

    def as_at_first(self) -> bool:
        kept = self.calls, self.seen, self.kept, self.total.tolist(), self.longest.tolist()
        return kept == (0, [], {}, [0, 0, 0], [0, 0])


@pytest.mark.parametrize("where", ["model.layers.0.mlp.down_proj", "model.embed_tokens", "lm_head"])
def test_module_state_and_random_generators_are_restored(where):
    hf = llama()
    hf.set_submodule(where, counter := Counts(hf.get_submodule(where)))
    torch.manual_seed(5), np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    cl.trace(cl.wrap_model(hf), ids_of(9)).jacobian(0).dense()
    with state.restored(hf) as changes:
        passed(hf, 4)
    assert (0, 1) in [(each.before, each.after) for each in changes._changes]
    assert f"{where}.longest" not in dict(hf.named_parameters()) and counter.as_at_first()
    assert torch.equal(torch.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()


class OwnCache(nn.Module):
    """Attention that reads keys and values from buffers that it has just written, and keeps a tuple of tensors."""

    def __init__(self, d: int):
        super().__init__()
        self.q, self.k, self.v, self.last = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), None
        self.register_buffer("keys", torch.zeros(1, 32, d))
        self.register_buffer("values", torch.zeros(1, 32, d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values = self.keys[:, : x.shape[1]], self.values[:, : x.shape[1]]
        keys[:], values[:] = self.k(x), self.v(x)
        self.last = (keys.detach(), values.detach())
        return x + nn.functional.scaled_dot_product_attention(self.q(x), keys, values, is_causal=True)


@pytest.mark.parametrize(("token_in", "token_out"), [(4, 4), (2, 6)])
def test_jacobian_includes_buffers_that_a_block_writes(token_in, token_out):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(100, 12), nn.Sequential(OwnCache(12), OwnCache(12))).double()
    block = copy.deepcopy(net[1][1])
    trace = cl.trace(cl.wrap_model(net, blocks="1"), ids_of(9))
    wanted = torch.autograd.functional.jacobian(block, trace.calls[1].input)[0, token_out, :, 0, token_in]
    wanted = wanted - torch.eye(12).double() * (token_in == token_out)
    assert relative_error(trace.jacobian(1, token_in, token_out).dense(), wanted) < 1e-8
    assert not net[1][1].keys.any() and net[1][1].last is None


def test_overwritten_weights_are_warned_of():
    hf = llama()
    hf.lm_head.register_forward_hook(lambda module, args, y: y + 0 * module.weight.mul_(1)[0, 0])
    message = r"1 weights of LlamaForCausalLM \(lm_head\.weight, \.\.\.\) were written"
    with pytest.warns(UserWarning, match=message), state.restored(hf):
        passed(hf, 4)


def test_state_is_restored_after_an_error():
    hf = llama()
    hf.lm_head = Counts(hf.lm_head)
    with pytest.raises(ZeroDivisionError), state.restored(hf):
        passed(hf, 4)
        raise ZeroDivisionError
    assert hf.lm_head.as_at_first()


@pytest.mark.parametrize("name", ["llama", "bert", "mamba", "gptj", "vit", "qwen3-next", "mixtral"])
def test_forward_pass_leaves_plain_models_unchanged(name):
    model = cl.wrap_model(hf := named(name).build())
    given = torch.randn(1, 3, 16, 16) if name == "vit" else torch.arange(3, 12)[None]
    cl.trace(model, given)
    with state.restored(hf) as changes, torch.no_grad():
        hf(given)
    assert changes._changes == []


class RescaledOnce(nn.Linear):
    """A layer that halves its weights in its first pass, and notes that it did, as RWKV's blocks do."""

    rescaled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.rescaled:
            with torch.no_grad():
                self.weight.div_(2)
            self.rescaled = True
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:.*were written over")
def test_weights_rescaled_once_are_not_rescaled_again():
    """Undoing the note alone would halve them again in every pass."""
    hf = llama()
    layer = hf.model.layers[1].mlp.down_proj
    layer.__class__, wanted = RescaledOnce, layer.weight.detach() / 2
    model = cl.wrap_model(hf)
    for _ in range(2):
        cl.trace(model, ids_of(9)).jacobian(1).dense()
        assert layer.rescaled and torch.equal(layer.weight, wanted)
