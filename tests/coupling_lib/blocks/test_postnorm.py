"""Post-norm blocks: told apart in every family, warned of in every record, and measured before their norms."""

import warnings

import pytest
import tiny
import torch
import transformers
from families import BASE, FAMILIES, Family, each_family, loaded
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import postnorm
from coupling_lib.blocks import validate as checks
from coupling_lib.blocks.call import BlockCall
from coupling_lib.errors import ParameterError, PostNormWarning, UnsupportedModelError
from coupling_lib.inputs.prompts import PARIS

IDS = torch.arange(3, 14)[None]
_SIZES = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384, vocab_size=64)
SMALL_BERT = transformers.BertConfig(**_SIZES)
GPT = dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64)
DISTILBERT = dict(vocab_size=64, dim=32, n_layers=3, n_heads=4, hidden_dim=64, max_position_embeddings=64)
OPT_350M = dict(BASE, ffn_dim=64, word_embed_proj_dim=32, do_layer_norm_before=False)
BLOOM_AFTER = dict(vocab_size=64, hidden_size=32, n_layer=3, n_head=4, apply_residual_connection_post_layernorm=True)

# Families that normalise their stream, with the layers in which their sub-layers end, as their papers and code have it;
# and relatives of theirs that do not.
BERT_LIKE = ("attention.output.dense", "output.dense")
POST_NORM = [
    (Family("bert", "BertConfig", BASE, model="BertModel"), BERT_LIKE),
    (Family("roberta", "RobertaConfig", BASE, model="RobertaModel"), BERT_LIKE),
    (Family("electra", "ElectraConfig", dict(BASE, embedding_size=32), model="ElectraModel"), BERT_LIKE),
    (Family("xlm-roberta", "XLMRobertaConfig", BASE, model="XLMRobertaModel"), BERT_LIKE),
    (Family("deberta-v2", "DebertaV2Config", BASE, model="DebertaV2Model"), BERT_LIKE),
    (Family("mpnet", "MPNetConfig", BASE, model="MPNetModel"), ("attention.attn.o", "output.dense")),
    (Family("distilbert", "DistilBertConfig", DISTILBERT, model="DistilBertModel"), ("attention.out_lin", "ffn.lin2")),
    (Family("openai-gpt", "OpenAIGPTConfig", GPT, model="OpenAIGPTModel"), ("attn.c_proj", "mlp.c_proj")),
    (Family("opt-350m", "OPTConfig", OPT_350M), ("self_attn.out_proj", "fc2")),
    # Its block does not end in a norm: what it adds to is its normalised input, so that it lets nothing through either.
    (Family("bloom-after", "BloomConfig", BLOOM_AFTER), ("self_attention.dense", "mlp.dense_4h_to_h")),
]
PRE_NORM = [
    Family("roberta-prelayernorm", "RobertaPreLayerNormConfig", BASE, model="RobertaPreLayerNormModel"),
    Family("xlm-roberta-xl", "XLMRobertaXLConfig", BASE, model="XLMRobertaXLModel"),
    Family("biogpt", "BioGptConfig", BASE, model="BioGptModel"),
    Family("esm", "EsmConfig", BASE, model="EsmModel"),
]
each_post_norm = pytest.mark.parametrize(("family", "ends"), POST_NORM, ids=lambda given: getattr(given, "name", ""))
EVERY = {family.name: family for family in [*FAMILIES, *PRE_NORM, *(family for family, _ in POST_NORM)]}


def named(name: str) -> Family:
    return EVERY[name]


@each_family(EVERY.values())
def test_norm_position_is_found_in_every_family(family):
    found, name = loaded(family).blocks, family.name
    # The first block of an RWKV normalises the embedding before it adds to it.
    post_norm = [0, 1, 2] if name in [family.name for family, _ in POST_NORM] else [0] if name == "rwkv" else []
    assert found.norm_position == {0: "pre", 1: "mixed", 3: "post"}[len(post_norm)]
    assert list(found.post_norm) == post_norm and not found.scales
    assert all(len(norms) == (1 if name == "rwkv" else 2) for norms in found.post_norm.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "openai-gpt", "llama", "gemma2-window", "gpt-neox", "mamba"])
def test_norm_position_is_found_in_half_precision(name, dtype):
    found = loaded(named(name), dtype).blocks
    assert found.norm_position == ("post" if name in ("bert", "openai-gpt") else "pre")
    assert all(len(norms) == 2 for norms in found.post_norm.values())


def test_massive_activations_pass_and_nan_is_refused():
    """Massive activations: one block of a language model may write a thousand times what it read."""
    hf = named("llama").build()
    with torch.no_grad():
        hf.model.layers[0].mlp.down_proj.weight.mul_(1e5)
    assert checks.validate(hf).norm_position == "pre"

    class Overflowing(nn.Linear):
        def forward(self, hidden_states):
            return hidden_states + super().forward(hidden_states.square()) / 0.0

    block = Overflowing(4, 4).requires_grad_(False)
    x = torch.ones(1, 3, 4)
    with pytest.raises(UnsupportedModelError, match="Overflowing that is given its stream .* returns NaN or infinity"):
        postnorm.stream_behaviour(BlockCall(block, x, x, "hidden_states", {}), block)


def test_model_with_one_post_norm_block_is_mixed():
    llama = transformers.models.llama.modeling_llama

    class EndsInNorm(llama.LlamaDecoderLayer):
        def forward(self, hidden_states, **rest):
            return self.last(super().forward(hidden_states, **rest))

    hf = named("llama").build()
    hf.model.layers[1].last = llama.LlamaRMSNorm(32).double()
    hf.model.layers[1].__class__ = EndsInNorm
    with pytest.warns(PostNormWarning, match="1 of 3 blocks normalise their stream"):
        model = cl.wrap_model(hf)
    assert model.blocks.norm_position == "mixed" and model.blocks.post_norm == {1: ("last",)}
    trace = cl.trace(model, IDS)
    assert torch.equal(trace.jacobian(0, boundary="branch").dense(), trace.jacobian(0).dense())
    # Without the norm that was put behind it, the block is that of the plain model.
    plain = cl.trace(loaded(named("llama")), IDS).jacobian(1).dense()
    assert relative_error(trace.jacobian(1, boundary="branch").dense(), plain) < 1e-10
    assert relative_error(trace.jacobian(1).dense(), plain) > 0.1


@each_post_norm
def test_branch_is_the_sum_of_sub_layer_outputs(family, ends):
    model = loaded(family)
    trace = cl.trace(model, IDS)
    for block in (0, 2):
        for pair in ((-1, -1), (5, 5), (4, 8)):
            wanted = brute_force_jacobian(model.hf, model.blocks.modules[block], {"input_ids": IDS}, *pair, ends)
            J = trace.jacobian(block, *pair, boundary="branch")
            # OPT and BLOOM cast to float32 inside.
            assert relative_error(J.dense(), wanted) < (1e-10 if family.model else 1e-6)
    lazy, V = trace.jacobian(2, boundary="branch"), torch.randn(32, 3, dtype=torch.float64)
    formed = trace.jacobian(2, boundary="branch").dense()
    torch.testing.assert_close(lazy @ V, formed @ V)
    torch.testing.assert_close(lazy.T @ V, formed.T @ V)


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
        model = cl.wrap_model(transformers.BertModel(SMALL_BERT))
    coupling = {}
    for boundary in ("block", "branch"):
        ds = cl.measure_depth(model, [IDS], ks=(10,), boundary=boundary)
        coupling[boundary] = 1 - float(ds.normalized_miscoupling.where(ds.block_1 != ds.block_2).mean())
    assert coupling["block"] > 0.9
    assert coupling["branch"] == pytest.approx(0.05, abs=0.015)


def test_post_norm_jacobian_has_eigenvalue_minus_one():
    """Why it couples: J has the eigenvalue -1 along both, in every block, seen from the output."""
    torch.manual_seed(0)
    with pytest.warns(PostNormWarning):
        trace = cl.trace(cl.wrap_model(transformers.BertModel(SMALL_BERT)), IDS)
    for block in range(4):
        J = trace.jacobian(block).dense()
        for fixed in (torch.ones(96, dtype=J.dtype), trace.hidden[block + 1, -1]):
            assert float((J.T @ fixed + fixed).norm() / fixed.norm()) < 1e-5


def test_branch_boundary_of_pre_norm_blocks_is_refused(monkeypatch):
    trace = cl.trace(cl.load_model("nano-neox"), PARIS)
    assert not trace.post_norm
    with pytest.raises(ParameterError, match="of nano-neox add to their stream.*pass boundary='block'"):
        trace.jacobian(3, boundary="branch")
    refused(ParameterError, "for post-norm blocks", cl.measure_depth, trace.model, PARIS, boundary="branch")
    with pytest.raises(ParameterError, match="'block', 'hidden_states', 'branch'"):
        cl.measure_depth(trace.model, PARIS, boundary="blocks")
    # A norm that is no module of its own: nothing inside the block gives what the block gives.
    block = transformers.models.bert.modeling_bert.BertOutput

    def forward(self, hidden_states, input_tensor):
        y = self.dense(hidden_states) + input_tensor
        return nn.functional.layer_norm(y, y.shape[-1:])

    monkeypatch.setattr(block, "forward", forward)
    with pytest.warns(PostNormWarning, match="trained or not; see Gotchas"):
        model = cl.wrap_model(named("bert").build(), name="closed")
    assert model.blocks.post_norm == {0: (), 1: (), 2: ()}
    with pytest.raises(ParameterError, match="the norms in the stream of block 0 of closed were not found"):
        cl.trace(model, IDS).jacobian(1, boundary="branch")
    assert cl.trace(model, IDS).jacobian(1).dense().shape == (32, 32)


def test_post_norm_model_is_warned_of_once():
    with pytest.warns(PostNormWarning, match=r"bert: 3 of 3 .*pass boundary='branch'.*see Gotchas") as caught:
        model = cl.wrap_model(named("bert").build(), name="bert")
        assert cl.trace(model, IDS).post_norm
        cl.measure_depth(model, [IDS], ks=(4,))
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings(action="error", category=PostNormWarning):
        cl.wrap_model(named("llama").build())
    post, pre = loaded(named("bert")), loaded(named("llama"))
    block = cl.measure_depth(post, [IDS], ks=(4,)).attrs
    branch = cl.measure_depth(post, [IDS], ks=(4,), boundary="branch").attrs
    other = cl.measure_depth(pre, [IDS], ks=(4,)).attrs
    assert block["norm_position"] == branch["norm_position"] == "post" and branch["boundary"] == "branch"
    assert "norm_position" not in other
    for measure in (cl.measure_spectra, cl.measure_trajectories, cl.measure_dynamics):
        assert measure(post, [IDS]).attrs["norm_position"] == "post"


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_norm_check_leaves_pre_norm_measurements_unchanged(name, monkeypatch):
    def measured():
        model = cl.load_model(name)
        return cl.measure_depth(model, [PARIS], ks=(10,)), model.blocks.post_norm

    asked, post_norm = measured()
    monkeypatch.setattr(postnorm, "stream_behaviour", lambda *_: postnorm.StreamBehaviour(False))
    unasked, _ = measured()
    assert post_norm == {} and asked.identical(unasked)


@pytest.mark.parametrize("precision", ["nf4", "int8", "float16", "bfloat16"])
def test_branch_of_quantised_blocks_is_exact(tmp_path, precision):
    tiny.save_bert(tmp_path)
    with pytest.warns(PostNormWarning):
        model = cl.load_model(tmp_path, precision=precision)
    assert [len(norms) for norms in model.blocks.post_norm.values()] == [2, 2, 2]
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
        whole, small = cl.load_model(tmp_path), cl.load_model(tmp_path, memory=size - 1)
    assert small.offloaded and not whole.offloaded
    assert small.blocks.post_norm == whole.blocks.post_norm
    ours, wanted = (cl.trace(model, IDS).jacobian(1, boundary="branch").dense() for model in (small, whole))
    assert torch.equal(ours, wanted)
