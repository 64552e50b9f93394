"""Samples of code on pages and in the README: they run, and give what the text around them and the library say."""

import re

import numpy as np
import peft
import plain_gpt
import pytest
import tiny
import torch

import coupling_lib as cl
from coupling_lib import paths, store

TEXTS = ["The capital of France is"]


def lines(page: str, heading: str = "") -> list[str]:
    text = (paths.ROOT / "book" / f"{page}.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}$(.+?)^## ", text, re.M | re.S)[1] if heading else text
    return re.findall(r"^```python\n(.+?)^```$", section, re.M | re.S)


def test_hooked_coupling_equals_that_of_edited_weights():
    hooked, _ = lines("own-model", "Under an intervention")
    assert len(hooked.splitlines()) == 5
    exec(hooked, known := {"cl": cl})
    changed, found = cl.load_model("nano-llama"), known["ds"]
    plain = cl.measure_depth(changed, TEXTS, ks=(10,))
    changed.hf.model.layers[5].mlp.down_proj.weight.data.zero_()
    wanted = cl.measure_depth(changed, TEXTS, ks=(10,))
    np.testing.assert_allclose(found.singular_values, wanted.singular_values, rtol=1e-4)
    np.testing.assert_allclose(found.normalized_miscoupling, wanted.normalized_miscoupling, atol=1e-4)
    assert float(abs(plain.singular_values / wanted.singular_values - 1).sel(block_1=5).max()) > 0.1
    # And the hook is gone.
    again = cl.measure_depth(known["model"], TEXTS, ks=(10,))
    np.testing.assert_allclose(again.singular_values, plain.singular_values, rtol=1e-5)


def test_measurements_under_a_hook_bypass_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    model = cl.load_model("nano-llama")
    cl.trace(model, TEXTS[0]).jacobian(-1, boundary="hidden_states").dense()  # lets hooks of transformers stand
    before = cl.sweep(cl.measure_depth, model, TEXTS, ks=(10,))
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == 1
    layer = model.hf.model.layers[5].mlp.down_proj
    for register, halve in (
        (layer.register_forward_hook, lambda module, given, output: output / 2),
        (layer.register_forward_pre_hook, lambda module, given: (given[0] / 2,)),
    ):
        hook = register(halve)
        wanted = cl.measure_depth(model, TEXTS, ks=(10,))
        warning = r"a hook stands on model.layers.5.mlp.down_proj of nano-llama, and"
        with pytest.warns(store.StoreWarning, match=warning):
            found = cl.measure_prompts(model, TEXTS, ks=(10,))
        hook.remove()
        np.testing.assert_allclose(found.singular_values, wanted.singular_values, rtol=1e-5)
        assert float(abs(found.singular_values / before.singular_values - 1).sel(block_1=5).max()) > 0.05
    assert list(tmp_path.rglob("*.safetensors")) == files


def test_the_lines_on_adapters_measure_the_merged_model(tmp_path):
    _, adapted = lines("own-model", "Under an intervention")
    tiny.save_llama(tmp_path / "base")
    model = peft.get_peft_model(tiny.llama(), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    exec(adapted.replace("path/to", str(tmp_path)), known := {"cl": cl})
    bare, merged = cl.load_model(tmp_path / "base"), cl.wrap_model(model.merge_and_unload())
    ids = torch.tensor([[5, 9, 2, 40]])
    ours, theirs, plain = (cl.trace(one, ids).jacobian(1).dense() for one in (known["model"], merged, bare))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert float((ours - plain).norm() / plain.norm()) > 1e-2
    assert known["model"].name == "LlamaForCausalLM with LORA 'default'"


def test_the_lines_on_plain_pytorch_measure_that_network():
    (sample,) = lines("own-model", "A network in plain PyTorch")
    torch.manual_seed(0)
    exec(sample.replace("ks=(10,)", "ks=(5,)"), known := {"cl": cl, "torch": torch, "GPT": lambda _: plain_gpt.GPT()})
    block, x = known["gpt"].transformer["h"][2], cl.trace(known["model"], known["ids"]).hidden[2:3]
    reference = torch.autograd.functional.jacobian(lambda row: block(torch.cat([x[:, :3], row], 1))[0, 3], x[:, 3:])
    torch.testing.assert_close(known["J"], reference[:, 0, 0] - torch.eye(24), rtol=1e-4, atol=1e-6)
    assert known["ds"].sizes["block_1"] == 3


def test_lens_lines_run_and_average_all_tokens(tmp_path, monkeypatch):
    (sample,) = lines("lenses")
    monkeypatch.chdir(tmp_path)
    exec(sample, known := {})
    read, prompts, model = known["read"], known["prompts"], known["model"]
    assert len(known["words"]) == 3 and all(isinstance(word, str) for word in known["words"])
    assert sorted(read.J) == list(range(1, 12)) and (read.n_prompts, read.d_model) == (2, 96)
    of_each = []
    for prompt in prompts:
        traced = cl.trace(model, prompt)
        pairs, M = [(token, token) for token in range(traced.n_tokens)], torch.eye(96, dtype=torch.float64)
        for block in range(6, 12):
            M = (torch.eye(96) + cl.block_jacobians(traced, block, pairs)).double() @ M
        of_each.append(M.mean(dim=0))
    torch.testing.assert_close(read.J[6].double(), torch.stack(of_each).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_readme_example_prints_what_stands_under_it(capsys):
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    code, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(code, {})
    assert capsys.readouterr().out == output
