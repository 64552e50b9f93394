"""Aliases of GGUF files: found in the folder that COUPLING_GGUF names, and known by their digests."""

import warnings

import pytest
from refusals import refused
from tiny_gguf import write

from coupling_lib.errors import CouplingError
from coupling_lib.models import packages, registry
from coupling_lib.models.load import load_model

ALIAS, FILE = "gemma3-270m", "gemma3-270m.gguf"


def test_alias_without_its_gguf_file_is_refused(tmp_path, monkeypatch):
    for alias in packages.GGUF_FILES:
        entry, known = registry.lookup(alias), packages.GGUF_FILES[alias]
        assert entry.hub_id and entry.training_tokens_t and entry.training_tokens_source and known.licence
        assert known.file == f"{alias}.gguf" and len(known.sha256) == 64
    wanted = f"'{ALIAS}' is the file {FILE} (sha256 a5fd3b62230a)"
    instead = "or name 'google/gemma-3-270m' for the weights of the hub"
    monkeypatch.delenv("COUPLING_GGUF", raising=False)
    line = refused(CouplingError, "", load_model, ALIAS)
    assert line == f"{wanted}; set COUPLING_GGUF to the folder that holds it, {instead}"
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    line = refused(CouplingError, "", load_model, ALIAS)
    assert line == f"{wanted}, and COUPLING_GGUF is '{tmp_path}', without it; put it there, {instead}"


def test_gguf_with_another_digest_is_warned_of(tmp_path, monkeypatch):
    write(tmp_path / FILE)
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    with warnings.catch_warnings(record=True, action="always") as caught:
        model = load_model(ALIAS, device="cpu")
    seen = packages.sha256(tmp_path / FILE)[:12]
    (message,) = (str(one.message) for one in caught if issubclass(one.category, packages.OtherFileWarning))
    assert f"{FILE} has the digest {seen}; the file that was measured for the book has a5fd3b62230a" in message
    assert (model.name, model.source) == (ALIAS, f"{FILE} (Q4_1, sha256 {seen})")
    write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    with pytest.warns(packages.OtherFileWarning):
        text = refused(CouplingError, "", load_model, ALIAS)
    assert "\n" not in text and ALIAS in text
