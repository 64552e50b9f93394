"""A model is measured as it came: with its own attention, at the positions that matter, by a route that is exact."""

import copy
import operator
from functools import partial

import pytest
import tiny
import tiny_families
import torch
import transformers
from families import BASE, GQA, Family
from reference import brute_force_jacobian, relative_error
from refusals import refused
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import coupling_lib as cl
from coupling_lib.blocks import attention, attention_choice, model_config
from coupling_lib.blocks.agreement import replay_error
from coupling_lib.errors import CouplingError, ParameterError, UnsupportedModelError

IDS, LAST = torch.arange(1, 12)[None], 10


def made(config: str, model: str | None = None, **arguments) -> PreTrainedModel:
    """A model in float32 with weights that are far from linear, and the attention that transformers chooses."""
    return Family("", config, arguments, model=model).build().float()


def falcon() -> PreTrainedModel:
    return made("FalconConfig", **BASE, alibi=True, multi_query=False)


def llama4(scale: int) -> PreTrainedModel:
    experts = dict(intermediate_size_mlp=64, num_local_experts=4, attention_chunk_size=64, no_rope_layer_interval=2)
    return made("Llama4TextConfig", **GQA, **experts, floor_scale=scale, attn_scale=1.0)


def pali_gemma() -> PreTrainedModel:
    return tiny_families.build("image and text", "paligemma", alone=False).eval()


GEMMA4 = dict(GQA, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64)
JETMOE = dict(GQA, kv_channels=8, num_local_experts=4, num_experts_per_tok=2)
DEEPSEEK = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, index_topk=9)
DEEPSEEK |= dict(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16)
DEEPSEEK |= dict(index_n_heads=8, index_head_dim=16, first_k_dense_replace=3, num_key_value_heads=4)
DECODER = dict(BASE, is_decoder=True)
# Models that the first route does not fit, the route that does, and the attention it is measured with.
FELL_BACK = {
    "falcon": (falcon, "cache", "sdpa"),
    "paligemma": (pali_gemma, "sequence", "sdpa"),
    "deepseek_v32": (lambda: made("DeepseekV32Config", **BASE, **DEEPSEEK), "sequence", "sdpa"),
    "gemma4_text": (lambda: made("Gemma4TextConfig", **GEMMA4), "sequence", attention.NAME),
    "doge": (lambda: made("DogeConfig", **GQA), "cache", attention.NAME),
    "diffllama": (lambda: made("DiffLlamaConfig", **GQA), "cache", attention.NAME),
    "jetmoe": (lambda: made("JetMoeConfig", **JETMOE), "cache", attention.NAME),
    "megatron-bert": (lambda: made("MegatronBertConfig", **DECODER), "cache", "eager"),
    "big_bird": (lambda: made("BigBirdConfig", **DECODER, attention_type="original_full"), "cache", "eager"),
    "roformer": (lambda: made("RoFormerConfig", **DECODER), "sequence", "eager"),
    "rembert": (lambda: made("RemBertConfig", **DECODER), "cache", "eager"),
    "llama4 of scale 4": (lambda: llama4(4), "attention and cache", attention.NAME),
    "llama4 of scale 8": (lambda: llama4(8), "attention and cache", attention.NAME),
}


@pytest.mark.parametrize(("build", "route", "name"), FELL_BACK.values(), ids=FELL_BACK)
def test_next_route_is_exact_where_first_fails(build, route, name):
    hf = build()
    reference = copy.deepcopy(hf).double()
    trace = cl.trace(cl.wrap_model(hf), IDS)
    assert (trace.route, trace.model.blocks.attention) == (route, name)
    module = reference.get_submodule(trace.model.blocks.path)[1]
    for pair in ((LAST, LAST), (7, LAST)):
        wanted = brute_force_jacobian(reference, module, {"input_ids": IDS}, *pair)
        assert relative_error(trace.jacobian(1, *pair).dense(), wanted) < 1e-5
    with torch.no_grad():
        states = reference(input_ids=IDS, output_hidden_states=True).hidden_states
    for found, wanted in zip(trace.hidden[:-1], states, strict=False):
        assert relative_error(found, wanted[0]) < 1e-5


def test_models_keep_their_own_lengths_and_directions():
    # Without types of tokens every one sees every other.
    assert cl.trace(cl.wrap_model(pali_gemma()), IDS).jacobian(1, LAST, 3).dense().norm() > 1e-3
    # As released, 8,192: no probe comes near it.
    assert cl.wrap_model(llama4(8192)).blocks.routes == ("attention", "cache", "attention")
    config = (hf := made("MistralConfig", **GQA, sliding_window=4096)).config
    config.rope_parameters["original_max_position_embeddings"] = 8192
    with model_config.shortened_lengths(hf):
        assert (config.sliding_window, config.rope_parameters["original_max_position_embeddings"]) == (5, 5)
    assert (config.sliding_window, config.rope_parameters["original_max_position_embeddings"]) == (4096, 8192)


def test_attention_changed_after_wrapping_is_refused(monkeypatch):
    llama = tiny.llama()
    for each, name in ((falcon(), "sdpa"), (llama, attention.NAME)):
        first, again = cl.wrap_model(each), cl.wrap_model(each)
        assert first.blocks.attention == again.blocks.attention == name
    assert attention_choice.default(llama) == "sdpa"
    model = cl.wrap_model(tiny.llama())
    model.hf.set_attn_implementation("sdpa")
    with pytest.raises(ParameterError, match="its attention was set to 'sdpa' after it was loaded, .* wrap it again"):
        cl.trace(model, IDS)

    def fails(*given, **named):
        raise NotImplementedError("no such kernel on this machine")

    monkeypatch.setitem(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", fails)
    assert refused(UnsupportedModelError, "", cl.wrap_model, tiny.llama()) == (
        "LlamaForCausalLM (model type 'llama') does not run on 7 random tokens with the attention that it came with, "
        "'sdpa' (no such kernel on this machine); if that attention is not installed here, load the model with "
        "attn_implementation='eager'"
    )


def test_in_place_clipping_and_single_tokens_are_exact():
    hf = made("OlmoConfig", **dict(BASE, hidden_size=512, intermediate_size=512), clip_qkv=1.0)
    trace, u, reference = cl.trace(cl.wrap_model(hf), IDS), torch.ones(512), copy.deepcopy(hf).double()
    wanted = u.double() @ brute_force_jacobian(reference, reference.model.layers[1], {"input_ids": IDS}, LAST, LAST)
    assert relative_error(trace.jacobian(1).T @ u, wanted) < 1e-5
    hf = made("ModernBertConfig", "ModernBertForMaskedLM", **BASE, cls_token_id=1, sep_token_id=2)
    reference, model = copy.deepcopy(hf).double(), cl.wrap_model(hf)
    for ids, token in ((torch.tensor([[5]]), 0), (IDS, LAST)):
        trace = cl.trace(model, ids)
        wanted = brute_force_jacobian(reference, reference.model.layers[1], trace.inputs, token, token)
        assert relative_error(trace.jacobian(1, token).dense(), wanted) < 1e-5
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_heads=4, head_dim=16, state_size=8, n_groups=1)
    for limits in ([0.0, float("inf")], (0.0, float("inf"))):
        assert cl.wrap_model(made("Mamba2Config", **sizes, time_step_limit=limits)).blocks.route == "state"


def test_replay_error_is_relative_to_each_tokens_update():
    trace = cl.trace(cl.wrap_model(tiny.llama()), IDS)
    call = trace.calls[1]
    x, added = 100 * call.input, call.output - call.input
    off = x + added
    off[0, 3] += 0.01 * added[0, 3]
    assert replay_error(call, x + added, x + added, x) == 0
    # A hundredth of what is added to one token, a ten-thousandth of the stream.
    assert 5 < replay_error(call, off, x + added, x) < 11
    # In a stream no longer than what is added, a difference of twice the tolerance of each number format.
    for dtype, tolerance in {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}.items():
        y, off = added.to(dtype), (added * (1 + 2 * tolerance)).to(dtype)
        assert 1.2 < replay_error(call, off, y, torch.zeros_like(y)) < 2.1, dtype


def test_blocks_not_called_exactly_once_are_refused():
    hf = made("AlbertConfig", "AlbertForMaskedLM", **BASE, inner_group_num=3, embedding_size=16)
    refused(UnsupportedModelError, "block 1 of AlbertForMaskedLM .* is called 3 times in one pass", cl.wrap_model, hf)

    class Again(LlamaDecoderLayer):
        def __call__(self, x, *args, **kwargs):
            return super().__call__(super().__call__(x, *args, **kwargs), *args, **kwargs)

    model = cl.wrap_model(tiny.llama())
    model.hf.model.layers[1].__class__ = Again
    refused(UnsupportedModelError, "block 2 of LlamaForCausalLM .* is called 2 times in one pass", cl.trace, model, IDS)
    hf = tiny.llama()
    hf.spare = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    refused(UnsupportedModelError, "block 1 of the 3 in 'spare' of LlamaForCausalLM .* does not run", cl.wrap_model, hf)
    model = cl.wrap_model(made("OPTConfig", **BASE, ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.5))
    model.hf.train()
    refused(ParameterError, r"in training mode, in which .* many answers; call model\.hf\.eval", cl.trace, model, IDS)


def test_jacobian_lost_in_rounding_is_refused_in_products():
    def cancelling(module, args, output):
        # An earlier token's part is taken away again, up to the rounding of two products.
        before = nn.functional.pad(args[0], (0, 0, 3, 0))[:, :-3]
        return output + before * 41 * (1 / 41) - before

    hf = tiny.llama()
    for layer in hf.model.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: (0 * output[0], *output[1:]))
        layer.mlp.register_forward_hook(cancelling)
    trace = cl.trace(cl.wrap_model(hf), IDS)
    J, strong = trace.jacobian(1, 7, LAST), trace.jacobian(1, LAST)
    # Its true value is zero, so that all of it is error.
    assert 0 < float(J.dense().norm()) <= J.error < 1e-3 and J.vanishes()
    assert strong.error < 1e-4 * float(strong.dense().norm()) and not strong.vanishes()
    message = (
        r"token 7 -> 10 is lost in rounding: it is \de-0\d long, and the bound on its error in torch.float32 is \d"
    )
    lost = partial(refused, CouplingError, rf"{message}e-0\d")
    for each in (J, trace.jacobian(1, 7, LAST)):
        for matrix in (each, each.T):
            lost(operator.matmul, matrix, torch.ones(32))
        for formed in (True, False):
            lost(each.svd, k=3, formed=formed)
        lost(cl.coupling_matrix, each, strong.svd(k=3), k=3)
        lost(cl.block_jacobians, each.trace, each.block, [(7, LAST)])
