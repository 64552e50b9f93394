"""Blocks that normalise or scale their stream: told apart, warned of in every record, and measured without it."""

import warnings
from functools import partial
from itertools import product

import pytest
import tiny
import torch
import transformers
from families import BASE, FAMILIES, Family, each_family, loaded, named
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import postnorm, validate
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.record import Blocks
from coupling_lib.errors import ParameterError, PostNormWarning, ScaledStreamWarning, UnsupportedModelError
from coupling_lib.inputs.prompts import PARIS

IDS = torch.arange(3, 14)[None]
BERT = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384, vocab_size=64)
GPT = dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64)
DISTILBERT = dict(vocab_size=64, dim=32, n_layers=3, n_heads=4, hidden_dim=64, max_position_embeddings=64)
OPT_350M = dict(BASE, ffn_dim=64, word_embed_proj_dim=32, do_layer_norm_before=False)
BLOOM_AFTER = dict(vocab_size=64, hidden_size=32, n_layer=3, n_head=4, apply_residual_connection_post_layernorm=True)


def of_kind(kind: str) -> Family:
    return Family(kind, f"{kind}Config", BASE, model=f"{kind}Model")


# Families that normalise their stream, with the layers in which their sub-layers end, as their papers and code have it;
# and relatives of theirs that do not.
LIKE_BERT = named("bert"), named("roberta"), *map(of_kind, ("Electra", "XLMRoberta", "DebertaV2"))
POST_NORM = [
    *((family, ("attention.output.dense", "output.dense")) for family in LIKE_BERT),
    (of_kind("MPNet"), ("attention.attn.o", "output.dense")),
    (Family("distilbert", "DistilBertConfig", DISTILBERT, model="DistilBertModel"), ("attention.out_lin", "ffn.lin2")),
    (Family("openai-gpt", "OpenAIGPTConfig", GPT, model="OpenAIGPTModel"), ("attn.c_proj", "mlp.c_proj")),
    (Family("opt-350m", "OPTConfig", OPT_350M), ("self_attn.out_proj", "fc2")),
    # Its block does not end in a norm: what it adds to is its normalised input, so that it lets nothing through either.
    (Family("bloom-after", "BloomConfig", BLOOM_AFTER), ("self_attention.dense", "mlp.dense_4h_to_h")),
]
PRE_NORM = [of_kind(kind) for kind in ("RobertaPreLayerNorm", "XLMRobertaXL", "BioGpt", "Esm")]
EVERY = {family.name: family for family in [*FAMILIES, *PRE_NORM, *(family for family, _ in POST_NORM)]}
# By family, each block in whose stream there are norms, and their number. The first block of an RWKV normalises the
# embedding before it adds to it.
NORMS = {family.name: {0: 2, 1: 2, 2: 2} for family, _ in POST_NORM} | {"rwkv": {0: 1}}


def norms_of(blocks: Blocks) -> dict[int, int]:
    return {number: len(norms) for number, norms in blocks.post_norm.items()}


@each_family(EVERY.values())
def test_norm_position_is_found_in_every_family(family):
    found, wanted = loaded(family).blocks, NORMS.get(family.name, {})
    assert norms_of(found) == wanted and not found.scales
    assert found.norm_position == {0: "pre", 1: "mixed", 3: "post"}[len(wanted)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "openai-gpt", "llama", "gemma2-window", "gpt-neox", "mamba"])
def test_norm_position_is_found_in_half_precision(name, dtype):
    assert norms_of(loaded(EVERY[name], dtype).blocks) == NORMS.get(name, {})


def test_massive_activations_pass_and_nan_is_refused():
    """One block of a language model may write a thousand times what it read."""
    hf = named("llama").build()
    with torch.no_grad():
        hf.model.layers[0].mlp.down_proj.weight.mul_(1e5)
    assert validate.validate(hf).norm_position == "pre"

    class Overflowing(nn.Linear):
        def forward(self, hidden_states):
            return hidden_states + super().forward(hidden_states.square()) / 0.0

    block = Overflowing(4, 4).requires_grad_(False)
    call = BlockCall(block, torch.ones(1, 3, 4), torch.ones(1, 3, 4), "hidden_states", {})
    message = "Overflowing that is given its stream .* returns NaN or infinity"
    refused(UnsupportedModelError, message, postnorm.stream_behaviour, call, block)


def test_model_with_one_post_norm_block_is_mixed():
    hf = named("llama").build()
    hf.model.layers[1].last = transformers.models.llama.modeling_llama.LlamaRMSNorm(32).double()
    hf.model.layers[1].register_forward_hook(lambda block, args, output: block.last(output))
    with pytest.warns(PostNormWarning, match="1 of 3 blocks normalise their stream"):
        model = cl.wrap_model(hf)
    assert model.blocks.norm_position == "mixed" and model.blocks.post_norm == {1: ("last",)}
    trace = cl.trace(model, IDS)
    assert torch.equal(trace.jacobian(0, boundary="branch").dense(), trace.jacobian(0).dense())
    # Without the norm that was put behind it, the block is that of the plain model.
    plain = cl.trace(loaded(named("llama")), IDS).jacobian(1).dense()
    assert relative_error(trace.jacobian(1, boundary="branch").dense(), plain) < 1e-10
    assert relative_error(trace.jacobian(1).dense(), plain) > 0.1


@pytest.mark.parametrize(("family", "ends"), POST_NORM, ids=[family.name for family, _ in POST_NORM])
def test_branch_is_the_sum_of_sub_layer_outputs(family, ends):
    model = loaded(family)
    trace, V = cl.trace(model, IDS), torch.randn(32, 3, dtype=torch.float64)
    for block, pair in product((0, 2), ((-1, -1), (5, 5), (4, 8))):
        wanted = brute_force_jacobian(model.hf, model.blocks.modules[block], {"input_ids": IDS}, *pair, ends)
        lazy, formed = (trace.jacobian(block, *pair, boundary="branch") for _ in range(2))
        # OPT and BLOOM cast to float32 inside.
        assert relative_error(formed.dense(), wanted) < (1e-10 if family.model else 1e-6)
        torch.testing.assert_close((lazy @ V, lazy.T @ V), (formed.dense() @ V, formed.dense().T @ V))


def test_hooks_are_gone_after_a_branch_was_formed():
    model = cl.wrap_model(named("bert").build())  # transformers leaves hooks of its own where all states were asked for
    before = cl.trace(model, IDS).jacobian(1).dense()
    trace = cl.trace(model, IDS)
    trace.jacobian(1, boundary="branch").dense()
    assert torch.equal(trace.jacobian(1).dense(), before)
    assert not any(module._forward_hooks for module in model.blocks.modules.modules())


@pytest.mark.parametrize("seed", [0, 1])
def test_untrained_block_boundary_couples_and_branch_does_not(seed):
    """A BERT of random weights as the library draws them: nothing has been learned that could couple."""
    torch.manual_seed(seed)
    with pytest.warns(PostNormWarning):
        model = cl.wrap_model(transformers.BertModel(transformers.BertConfig(**BERT)))
    coupling = {}
    for boundary in ("block", "branch"):
        ds = cl.measure_depth(model, [IDS], ks=(10,), boundary=boundary)
        coupling[boundary] = 1 - float(ds.normalized_miscoupling.where(ds.block_1 != ds.block_2).mean())
    assert coupling["block"] > 0.9
    assert coupling["branch"] == pytest.approx(0.05, abs=0.015)
    # Why it couples: seen from the output, J has the eigenvalue -1 along both of these, in every block.
    trace = cl.trace(model, IDS)
    for block in range(4):
        J = trace.jacobian(block).dense()
        for fixed in (torch.ones(96, dtype=J.dtype), trace.hidden[block + 1, -1]):
            assert float((J.T @ fixed + fixed).norm() / fixed.norm()) < 1e-5


def test_branch_boundary_of_pre_norm_blocks_is_refused():
    trace = cl.trace(cl.load_model("nano-neox"), PARIS)
    assert not trace.post_norm
    message = "of nano-neox add to their stream.*pass boundary='block'"
    refused(ParameterError, message, trace.jacobian, 3, boundary="branch")
    for boundary, message in (("branch", "for post-norm blocks"), ("blocks", "'block', 'hidden_states', 'branch'")):
        refused(ParameterError, message, cl.measure_depth, trace.model, PARIS, boundary=boundary)


def test_norm_that_is_no_module_has_no_branch(monkeypatch):
    def forward(self, hidden_states, input_tensor):
        y = self.dense(hidden_states) + input_tensor
        return nn.functional.layer_norm(y, y.shape[-1:])

    monkeypatch.setattr(transformers.models.bert.modeling_bert.BertOutput, "forward", forward)
    with pytest.warns(PostNormWarning, match="trained or not; see Gotchas"):
        model = cl.wrap_model(named("bert").build(), name="closed")
    assert model.blocks.post_norm == {0: (), 1: (), 2: ()}
    trace, message = cl.trace(model, IDS), "the norms in the stream of block 0 of closed were not found"
    refused(ParameterError, message, trace.jacobian, 1, boundary="branch")
    assert trace.jacobian(1).dense().shape == (32, 32)


def test_post_norm_model_is_warned_of_and_recorded():
    with pytest.warns(PostNormWarning, match=r"bert: 3 of 3 .*pass boundary='branch'.*see Gotchas") as caught:
        post = cl.wrap_model(named("bert").build(), name="bert")
        assert cl.trace(post, IDS).post_norm
        branch = cl.measure_depth(post, [IDS], ks=(4,), boundary="branch").attrs
        assert (branch["norm_position"], branch["boundary"]) == ("post", "branch")
        measures = cl.measure_spectra, cl.measure_trajectories, cl.measure_dynamics, partial(cl.measure_depth, ks=(4,))
        assert [measure(post, [IDS]).attrs["norm_position"] for measure in measures] == ["post"] * 4
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings(action="error", category=PostNormWarning):
        pre = cl.wrap_model(named("llama").build())
    assert "norm_position" not in cl.measure_depth(pre, [IDS], ks=(4,)).attrs


@pytest.mark.parametrize("precision", ["nf4", "int8", "float16", "bfloat16"])
def test_branch_of_quantised_blocks_is_exact(tmp_path, precision):
    tiny.save_bert(tmp_path)
    with pytest.warns(PostNormWarning):
        model = cl.load_model(tmp_path, precision=precision)
    assert norms_of(model.blocks) == {0: 2, 1: 2, 2: 2}
    trace = cl.trace(model, IDS)
    J = trace.jacobian(1, boundary="branch").dense()
    copy = trace.block(1)
    x = trace.calls[1].input.float().requires_grad_(True)
    with torch.enable_grad():
        h = copy.attention.output.LayerNorm(added := copy.attention.output.dense(copy.attention.self(x)[0]) + x)
        f = (added - x) + copy.output.dense(copy.intermediate(h))
        wanted = rows(f[0, -1], x)[:, -1]
    assert J.dtype == torch.float32 and relative_error(J, wanted) < 1e-5


def test_branch_of_offloaded_blocks_is_the_same(tmp_path):
    hf = tiny.save_bert(tmp_path)
    size = sum(weight.numel() for weight in hf.parameters()) * 4
    with pytest.warns(PostNormWarning):
        models = [cl.load_model(tmp_path, memory=memory) for memory in (None, size - 1)]
    assert [model.offloaded for model in models] == [False, True]
    assert models[0].blocks.post_norm == models[1].blocks.post_norm
    assert torch.equal(*(cl.trace(model, IDS).jacobian(1, boundary="branch").dense() for model in models))


def scale(hf, share: float, *blocks: int) -> list:
    """Make some blocks of a model multiply what they give, as Gemma-4's do."""
    return [hf.model.layers[n].register_forward_hook(lambda module, args, output: share * output) for n in blocks]


@pytest.mark.parametrize("share", [0.005, 0.057, 0.2, 0.6, 0.9, 0.97, 1.03, 2.0, -1.0])
def test_scaled_stream_is_warned_of_with_its_factor(share):
    scale(hf := tiny.llama(), share, 1)
    message = f"scales its stream by {share:.3g} in block 1 .*the traceless part"
    with pytest.warns(ScaledStreamWarning, match=message) as seen:
        model = cl.wrap_model(hf, name="mine")
    assert [each.category for each in seen] == [ScaledStreamWarning] and "\n" not in str(seen[0].message)
    assert model.blocks.scales == {1: pytest.approx(share, rel=1e-2)} and not model.blocks.post_norm
    record = cl.measure_depth(model, [IDS], ks=(5,)).attrs
    assert record["stream_scales"] == f"block 1: {model.blocks.scales[1]:.3g}"


def test_scales_of_several_blocks_follow_the_hooks():
    scale(hf := tiny.llama(), 0.6, 0, 2)
    with pytest.warns(ScaledStreamWarning, match="in 2 of 3 blocks, by 0.6 in block 0"):
        cl.wrap_model(hf)
    model = cl.wrap_model(tiny.llama())
    (handle,) = scale(model.hf, 0.5, 2)
    assert cl.trace(model, IDS).blocks.scales == {2: pytest.approx(0.5, rel=1e-3)}
    handle.remove()
    assert not cl.trace(model, IDS).blocks.scales


@pytest.mark.parametrize("share", [0.99, 1.0, 1.01])
def test_scale_near_1_does_not_count(share):
    scale(hf := tiny.llama(), share, 0, 1, 2)
    with warnings.catch_warnings(action="error"):
        model = cl.wrap_model(hf)
    assert not model.blocks.scales
    assert "stream_scales" not in cl.measure_depth(model, [IDS], ks=(5,)).attrs


def scaled_by_its_weight(block, args, output):
    """Multiply by a weight of the block's own, as each block of Gemma-4 has one."""
    return output * block.layer_scalar


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaling_weights_of_single_blocks_are_found(dtype):
    hf, shares = tiny.llama(num_hidden_layers=7), [1.0, 0.6, 1.0, 1.0, 1.0, 0.005, 1.0]
    for block, share in zip(hf.model.layers, shares, strict=True):
        block.layer_scalar = nn.Parameter(torch.tensor([share]))
        block.register_forward_hook(scaled_by_its_weight)
    with pytest.warns(ScaledStreamWarning, match="in 2 of 7 blocks, by 0.60?2? in block 1"):
        found = cl.wrap_model(hf.to(dtype).eval()).blocks
    assert found.scales == {1: pytest.approx(0.6, rel=2e-2), 5: pytest.approx(0.005, rel=5e-2)}
