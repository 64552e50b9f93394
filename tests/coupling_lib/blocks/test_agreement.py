"""A model is measured as it came: with its own attention, at the positions that matter, by a route that is exact."""

import copy
import operator

import pytest
import tiny
import torch
import transformers
from reference import brute_force_jacobian, relative_error
from refusals import refused
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import coupling_lib as cl
from coupling_lib.blocks import attention, attention_choice, model_config
from coupling_lib.blocks.agreement import replay_error
from coupling_lib.errors import CouplingError, ParameterError, UnsupportedModelError

IDS, LAST = torch.arange(1, 12)[None], 10
STACK = dict(tiny.STACK, vocab_size=64, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=0)
GQA = dict(STACK, num_key_value_heads=2, head_dim=8)
SIGLIP = dict(tiny.STACK, model_type="siglip_vision_model", image_size=16, patch_size=8)


def built(make, config: str, **arguments) -> PreTrainedModel:
    """A model as transformers makes it where no attention is named, with weights that are far from linear."""
    torch.manual_seed(0)
    hf = make(getattr(transformers, config)(**arguments)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim >= 2:
                weight.add_(0.15 * torch.randn(weight.shape, generator=generator))
    return hf


def causal(config: str, **arguments) -> PreTrainedModel:
    return built(AutoModelForCausalLM.from_config, config, **arguments)


def errors(hf: PreTrainedModel, block: int = 1) -> tuple[cl.Trace, float]:
    """Measure a copy of a model, and compare states and Jacobians of a block with the untouched one in float64."""
    reference = copy.deepcopy(hf).double()
    trace = cl.trace(cl.wrap_model(hf), IDS)
    module = reference.get_submodule(trace.model.blocks.path)[block]
    worst = 0.0
    for pair in ((LAST, LAST), (7, LAST)):
        wanted = brute_force_jacobian(reference, module, {"input_ids": IDS}, *pair)
        worst = max(worst, relative_error(trace.jacobian(block, *pair).dense(), wanted))
    with torch.no_grad():
        states = reference(input_ids=IDS, output_hidden_states=True).hidden_states
    far = max(relative_error(trace.hidden[number], states[number][0]) for number in range(trace.n_blocks))
    return trace, max(worst, far)


def test_attention_implementation_of_the_model_is_kept():
    hf = causal("FalconConfig", **STACK, alibi=True, multi_query=False)
    plain = copy.deepcopy(hf)
    plain.set_attn_implementation("eager")
    plain.config._attn_implementation_internal = "eager"
    states = [each(input_ids=IDS, output_hidden_states=True).hidden_states[2] for each in (hf, plain)]
    assert relative_error(*states) > 0.01  # alibi is added twice there
    trace, error = errors(hf)
    assert trace.model.blocks.attention == "sdpa" and error < 1e-5
    text, siglip = dict(GQA, model_type="gemma"), dict(SIGLIP)
    make = transformers.PaliGemmaForConditionalGeneration
    more = dict(projection_dim=32, image_token_index=63)
    hf = built(make, "PaliGemmaConfig", text_config=text, vision_config=siglip, **more)
    trace, error = errors(hf)
    assert trace.model.blocks.attention == "sdpa" and trace.route == "sequence" and error < 1e-5
    # Without types of tokens every one sees every other.
    assert trace.jacobian(1, LAST, 3).dense().norm() > 1e-3
    small = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
    experts = dict(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16)
    chosen = dict(index_topk=9, index_n_heads=8, index_head_dim=16, first_k_dense_replace=3)
    hf = causal("DeepseekV32Config", **STACK, num_key_value_heads=4, **small, **experts, **chosen)
    trace, error = errors(hf)
    assert trace.route == "sequence" and error < 1e-5


def test_attention_changed_after_wrapping_is_refused(monkeypatch):
    hf = causal("FalconConfig", **STACK, alibi=True, multi_query=False)
    llama = tiny.llama()
    for each, name in ((hf, "sdpa"), (llama, attention.NAME)):
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


FELL_BACK = {
    "gemma4_text": ("Gemma4TextConfig", dict(GQA, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64)),
    "doge": ("DogeConfig", GQA),
    "diffllama": ("DiffLlamaConfig", GQA),
    "jetmoe": ("JetMoeConfig", dict(GQA, kv_channels=8, num_local_experts=4, num_experts_per_tok=2)),
    "megatron-bert": ("MegatronBertConfig", dict(STACK, is_decoder=True)),
    "big_bird": ("BigBirdConfig", dict(STACK, is_decoder=True, attention_type="original_full")),
    "roformer": ("RoFormerConfig", dict(STACK, is_decoder=True)),
    "rembert": ("RemBertConfig", dict(STACK, is_decoder=True)),
}


@pytest.mark.parametrize("kind", FELL_BACK)
def test_next_route_is_exact_where_first_fails(kind):
    config, arguments = FELL_BACK[kind]
    trace, error = errors(causal(config, **arguments))
    assert trace.route in ("cache", "sequence") and error < 1e-5


def test_in_place_clipping_and_single_tokens_are_exact():
    hf = causal("OlmoConfig", **dict(STACK, hidden_size=512, intermediate_size=512), clip_qkv=1.0)
    trace, u = cl.trace(cl.wrap_model(hf), IDS), torch.ones(512)
    reference = copy.deepcopy(hf).double()
    wanted = brute_force_jacobian(reference, reference.model.layers[1], {"input_ids": IDS}, LAST, LAST)
    assert relative_error(trace.jacobian(1).T @ u, u.double() @ wanted) < 1e-5
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_heads=4, head_dim=16, state_size=8, n_groups=1)
    for limits in ([0.0, float("inf")], (0.0, float("inf"))):
        model = cl.wrap_model(causal("Mamba2Config", **sizes, time_step_limit=limits))
        assert model.blocks.route == "state"
    hf = built(AutoModelForMaskedLM.from_config, "ModernBertConfig", **STACK, cls_token_id=1, sep_token_id=2)
    reference, model = copy.deepcopy(hf).double(), cl.wrap_model(hf)
    for ids, token in ((torch.tensor([[5]]), 0), (IDS, LAST)):
        trace = cl.trace(model, ids)
        wanted = brute_force_jacobian(reference, reference.model.layers[1], trace.inputs, token, token)
        assert relative_error(trace.jacobian(1, token).dense(), wanted) < 1e-5


def llama4(**more) -> PreTrainedModel:
    experts = dict(intermediate_size_mlp=64, num_local_experts=4, attention_chunk_size=64, no_rope_layer_interval=2)
    return causal("Llama4TextConfig", **GQA, **experts, **more)


def test_positions_and_lengths_are_the_models_own():
    # As released, 8,192: no probe comes near it.
    model = cl.wrap_model(llama4(floor_scale=8192, attn_scale=1.0))
    assert model.blocks.routes == ("attention", "cache", "attention")
    for scale in (4, 8):
        trace, error = errors(llama4(floor_scale=scale, attn_scale=1.0))
        assert trace.routes[1] == "cache" and error < 1e-5
    hf = causal("MistralConfig", **GQA, sliding_window=4096)
    hf.config.rope_parameters["original_max_position_embeddings"] = 8192
    with model_config.shortened_lengths(hf):
        assert hf.config.sliding_window == 5
        assert hf.config.rope_parameters["original_max_position_embeddings"] == 5
    assert hf.config.sliding_window == 4096
    assert hf.config.rope_parameters["original_max_position_embeddings"] == 8192


def test_replay_error_is_relative_to_each_tokens_update():
    trace = cl.trace(cl.wrap_model(tiny.llama()), IDS)
    call = trace.calls[1]
    x, added = 100 * call.input, call.output - call.input
    off = x + added
    off[0, 3] += 0.01 * added[0, 3]
    assert replay_error(call, x + added, x + added, x) == 0
    # A hundredth of what is added to one token, a ten-thousandth of the stream.
    assert 5 < replay_error(call, off, x + added, x) < 11


def test_blocks_not_called_exactly_once_are_refused():
    hf = built(AutoModelForMaskedLM.from_config, "AlbertConfig", **STACK, inner_group_num=3, embedding_size=16)
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
    model = cl.wrap_model(causal("OPTConfig", **STACK, ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.5))
    model.hf.train()
    refused(ParameterError, r"in training mode, in which .* many answers; call model\.hf\.eval", cl.trace, model, IDS)


def test_jacobian_lost_in_rounding_is_refused_in_products():
    class Cancelling(nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, x):
            # An earlier token's part is taken away again, up to the rounding of two products.
            before = nn.functional.pad(x, (0, 0, 3, 0))[:, :-3]
            return self.mlp(x) + before * 41 * (1 / 41) - before

    hf = tiny.llama()
    for layer in hf.model.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: (0 * output[0], *output[1:]))
        layer.mlp = Cancelling(layer.mlp)
    trace = cl.trace(cl.wrap_model(hf.eval()), IDS)
    J, strong = trace.jacobian(1, 7, LAST), trace.jacobian(1, LAST)
    # Its true value is zero, so that all of it is error.
    assert 0 < float(J.dense().norm()) <= J.error < 1e-3 and J.vanishes()
    message = r"token 7 -> 10 is lost in rounding: it is \de-0\d long, and the bound on its error in torch.float32 is"
    for each in (J, trace.jacobian(1, 7, LAST)):
        for matrix in (each, each.T):
            refused(CouplingError, rf"{message} \de-0\d", operator.matmul, matrix, torch.ones(32))
        for formed in (True, False):
            refused(CouplingError, rf"{message} \de-0\d", each.svd, k=3, formed=formed)
        refused(CouplingError, rf"{message} \de-0\d", cl.coupling_matrix, each, strong.svd(k=3), k=3)
        refused(CouplingError, rf"{message} \de-0\d", cl.block_jacobians, each.trace, each.block, [(7, LAST)])
    assert strong.error < 1e-4 * float(strong.dense().norm()) and not strong.vanishes()
