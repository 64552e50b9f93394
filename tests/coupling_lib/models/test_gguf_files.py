"""GGUF files written here from random weights, and read back against the formats' definitions."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from huggingface_hub import constants
from refusals import refused
from tiny_gguf import write
from transformers import AutoTokenizer

from coupling_lib import provenance
from coupling_lib.blocks import placing
from coupling_lib.errors import ModelUnavailableError, ParameterError, UnsupportedModelError
from coupling_lib.models import packages
from coupling_lib.models.load import load_model
from coupling_lib.store.key import fingerprint


@pytest.fixture(scope="module")
def q4(tmp_path_factory):
    write(file := tmp_path_factory.mktemp("q4") / "tiny.Q4_1.gguf")
    return SimpleNamespace(folder=file.parent, file=file, model=load_model(file, device="cpu"))


@pytest.mark.parametrize(("kind", "worst"), [("Q4_1", 0.2), ("Q8_0", 0.02), ("F16", 0.001)])
def test_every_weight_is_what_the_format_defines(tmp_path, monkeypatch, kind, worst):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    expected = write(tmp_path / "tiny.gguf", kind)
    model = load_model(tmp_path / "tiny.gguf", device="cpu")
    got = model.hf.state_dict()
    assert got.keys() == expected.keys() and {weight.dtype for weight in got.values()} == {torch.float32}
    for name, weight in expected.items():
        # Two roundings in float32 lie between: that of the product and that of the sum.
        np.testing.assert_allclose(got[name].numpy(), weight, rtol=0, atol=2**-23 * np.abs(weight).max(), err_msg=name)
    original = tiny.llama(seed=3).state_dict()
    off = max(((got[name] - weight).norm() / weight.norm()).item() for name, weight in original.items())
    assert (0.01 * worst) < off < worst
    assert f"({kind}, sha256 {packages.sha256(tmp_path / 'tiny.gguf')[:12]})" in model.source
    assert not (tmp_path / "home").exists()


def test_tokenizer_record_and_folder_are_the_files(q4, tmp_path):
    model, theirs = q4.model, AutoTokenizer.from_pretrained(q4.folder, gguf_file=q4.file.name)
    ids = [model.tokenizer(text).input_ids for text in tiny.TEXT]
    assert ids == [theirs(text).input_ids for text in tiny.TEXT]
    assert [model.tokenizer.decode(each) for each in ids] == tiny.TEXT
    assert getattr(model.hf.config, "quantization_config", None) is None
    assert (model.precision, model.revision, model.untrained, model.offloaded) == ("float32", None, False, False)
    record = provenance.provenance(model, ["Paris"])
    assert record["source"] == f"{q4.file} (Q4_1, sha256 {packages.sha256(q4.file)[:12]})"
    assert provenance.stored_as(record) == "Q4_1"
    assert (record["precision"], record["n_blocks"]) == ("float32", tiny.BLOCKS)
    found = load_model(q4.folder, device="cpu")
    assert tiny.same_weights(found.hf, q4.model.hf) and "Q4_1" in found.source
    saved = tiny.save_llama(tmp_path, seed=5)  # which goes before a GGUF file
    shutil.copy(q4.file, tmp_path)
    assert tiny.same_weights(load_model(tmp_path, device="cpu").hf, saved)


@pytest.mark.parametrize("precision", ["bfloat16", "nf4", "int8"])
def test_gguf_in_other_precisions_is_the_dense_model(q4, tmp_path, precision):
    q4.model.hf.save_pretrained(tmp_path)
    found, wanted = (load_model(where, device="cpu", precision=precision).hf for where in (q4.file, tmp_path))
    assert tiny.same_weights(found, wanted)


def test_gguf_blocks_on_disk_give_the_same_numbers(q4):
    least, ids = placing.plan(q4.model.hf).bytes(torch.float32), torch.arange(6)[None]
    apart, again = (load_model(q4.file, device="cpu", memory=least) for _ in range(2))
    assert apart.offloaded and torch.equal(apart.hf(ids).logits, q4.model.hf(ids).logits)
    assert fingerprint(apart) == fingerprint(again)


def test_untrained_gguf_needs_only_the_configuration(tmp_path):
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write(tmp_path / "new.gguf", "Q8_0", tokenizer=False, leave_out=("layers.1.mlp.up_proj",), keys=keys)
    model, again = (load_model(tmp_path / "new.gguf", device="cpu", untrained=True, seed=4) for _ in range(2))
    assert model.tokenizer is None and tiny.same_weights(model.hf, again.hf)
    assert (model.untrained, model.seed, model.d_model, model.n_blocks) == (True, 4, tiny.WIDTH, tiny.BLOCKS)
    assert model.hf.config.rope_parameters == {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}


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
NARROW = {"leave_out": ("model.norm",), "tensors": {"output_norm.weight": np.ones(16)}, "kind": "F16"}
APART = "'.*one.gguf' and their configuration do not belong together: model.norm.weight is 16, and .* asks for 32"
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
    (NARROW, UNSUPPORTED, APART),
]


@pytest.mark.parametrize(("holds", "error", "message"), FILES, ids=[message for *_, message in FILES])
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
    for name in ("parts", "parts/tiny-00001-of-00002.gguf"):
        refused(UNSUPPORTED, "'tiny-00001-of-00002.gguf' is one part .* join them", load_model, tmp_path / name)
    refused(UNAVAILABLE, "holds 2 GGUF files: a.gguf, b.gguf; name one of them", load_model, tmp_path / "two")
    for name in (tmp_path / "none.gguf", str(tmp_path / "none.gguf"), "none.gguf", "models/none.gguf"):
        refused(UNAVAILABLE, "the file '.*none.gguf' does not exist; check the path", load_model, name)
    refused(ParameterError, "revision is 'main', and the GGUF file .* has none", load_model, q4.file, revision="main")
    write(tmp_path / "tiny.gguf", "F16", tokenizer=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    refused(UNAVAILABLE, "cannot be written to .*No such file.*; free .*TMPDIR", load_model, tmp_path / "tiny.gguf")
