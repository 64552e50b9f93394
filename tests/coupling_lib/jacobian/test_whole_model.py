"""What a lens needs of the whole model: that no way but the blocks' own maps leads from a token's state to its last."""

import pytest
import tiny_families
import torch
import transformers
from families import BASE, GQA, Family, loaded, named
from reference import outputs, relative_error
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import UnsupportedModelError
from coupling_lib.jacobian import whole_model

IDS = torch.randint(1, 64, (1, 9), generator=torch.Generator().manual_seed(1))
FURTHER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("float16", "nf4", "int8")]
V = torch.randn(32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def shares_keys(dtype=torch.float32) -> cl.Model:
    """Gemma-4, whose later blocks attend to the keys and values of earlier ones."""
    kinds = ["sliding_attention", "full_attention"] * 2
    given = dict(GQA, num_hidden_layers=4, num_kv_shared_layers=2, layer_types=kinds, sliding_window=4)
    given |= dict(global_head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64)
    return cl.wrap_model(Family("gemma4", "Gemma4TextConfig", given).build(seed=1).to(dtype))


def hands_on_router_states(dtype=torch.float32) -> cl.Model:
    """Zaya, whose routers read what the router of the block before has found."""
    return cl.wrap_model(tiny_families.build("causal", "zaya", alone=False).to(dtype))


def keeps_something_aside(dtype=torch.float32) -> cl.Model:
    """A Llama whose last block reads, from a place of its own, what its first block made."""
    model, kept = cl.wrap_model(named("llama").build().to(dtype)), []
    first, _, last = (block.mlp for block in model.blocks.modules)
    first.register_forward_hook(lambda module, args, output: kept.append(output))
    last.register_forward_hook(lambda module, args, output: output + torch.tanh(kept[-1].to(output)))
    return model


@torch.no_grad()
def slope(model: cl.Model, ids: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last state's derivative along v, by plain hooks and central differences with two steps."""
    first, *_, last = model.blocks.modules

    def moved(step: float) -> torch.Tensor:
        def change(stream):
            stream[0, -1] += step * v
            return stream

        return outputs(model.hf, {"input_ids": ids, "use_cache": False}, first, change, [last])[0][0, -1]

    whole, half = ((moved(h) - moved(-h)) / (2 * h) for h in (4e-3, 2e-3))
    return (4 * half - whole) / 3


BESIDE = [
    (shares_keys, "'shared_kv_states'", 0.1),
    (hands_on_router_states, "'prev_router_hidden_states'", 3e-4),
    (keeps_something_aside, "something", 0.05),
]


@pytest.mark.parametrize(("made", "argument", "far"), BESIDE)
def test_lens_refuses_paths_beside_the_residual_stream(made, argument, far, monkeypatch):
    message = rf"hands on {argument} from block to block beside its stream, .* targets='later'"
    for dtype in (torch.float64, torch.float32):
        refused(UnsupportedModelError, message, cl.lens, cl.trace(made(dtype), IDS))
    model = made(torch.float64)
    monkeypatch.setattr(whole_model, "refuse_other_paths", lambda *_: None)
    assert relative_error((cl.lens(cl.trace(model, IDS)) @ V)[0], slope(model, IDS, V)) > far


@pytest.mark.parametrize("made", [shares_keys, hands_on_router_states])
def test_lens_refuses_other_paths_without_a_graph(made, monkeypatch):
    monkeypatch.setattr(whole_model, "_arithmetics", lambda hf: [])
    refused(UnsupportedModelError, "hands on '.*states' from block to block", cl.lens, cl.trace(made(), IDS))


@pytest.mark.parametrize("n", [2, 9, 400])
def test_lens_refuses_bidirectional_models_at_every_length(n, monkeypatch):
    torch.manual_seed(0)
    config = transformers.BertConfig(**BASE | dict(max_position_embeddings=512))
    traced = cl.trace(cl.wrap_model(transformers.BertModel(config).eval()), torch.randint(1, 64, (1, n)))
    for arithmetics in (whole_model._arithmetics, lambda hf: []):
        monkeypatch.setattr(whole_model, "_arithmetics", arithmetics)
        for token in (0, -1):
            message = "is bidirectional: later tokens make .* causal decoders"
            refused(UnsupportedModelError, message, cl.lens, traced, token)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", *FURTHER])
def test_lens_accepts_models_of_every_precision(precision, monkeypatch):
    model = cl.load_model("nano-llama", precision=precision)
    traced = cl.trace(model, "It was the best of times, it was the worst of times, it was the age of wisdom")
    for arithmetics in (whole_model._arithmetics, lambda hf: [torch.float32], lambda hf: []):
        monkeypatch.setattr(whole_model, "_arithmetics", arithmetics)
        assert cl.lens(traced).shape == (13, 96, 96)


def test_lens_accepts_large_norms_and_tied_scores():
    for dtype in [torch.float32, torch.bfloat16]:
        hf = named("llama").build().to(dtype)
        hf.model.embed_tokens.weight[:, 3] = 3e4
        traced = cl.trace(cl.wrap_model(hf), IDS)
        assert float(traced.hidden.norm(dim=-1).min()) > 1e4 and cl.lens(traced).shape == (4, 32, 32)
    hf = tiny_families.build("causal", "deepseek_v32", alone=False).requires_grad_(False)
    for name, weight in hf.named_parameters():
        weight.mul_(0 if "indexer" in name else 1)
    assert cl.lens(cl.trace(cl.wrap_model(hf), IDS)).dense().isfinite().all()


@pytest.mark.parametrize("n", [16, 17, 40])
def test_lens_is_exact_around_the_original_length(n):
    rope = dict(rope_type="longrope", long_factor=[3.0] * 4, short_factor=[1.0] * 4, rope_theta=1e4)
    rope |= dict(original_max_position_embeddings=16)
    given = dict(GQA, rope_parameters=rope, original_max_position_embeddings=16)
    model = cl.wrap_model(Family("phi3", "Phi3Config", given).build())
    ids = torch.randint(1, 64, (1, n), generator=torch.Generator().manual_seed(3))
    assert relative_error((cl.lens(cl.trace(model, ids)) @ V)[0], slope(model, ids, V)) < 1e-3


def test_differentiated_pass_equals_its_trace():
    model = loaded(named("llama"), torch.float64)
    traced = cl.trace(model, IDS)
    seen = whole_model.differentiated(traced, torch.float64)
    assert torch.equal(torch.cat(seen.streams).detach(), traced.hidden) and not seen.beside
    row = whole_model._at_token(seen, V, 8)[0, 8]
    assert float(row @ V) == pytest.approx(float(V @ slope(model, IDS, V)), rel=1e-4)
