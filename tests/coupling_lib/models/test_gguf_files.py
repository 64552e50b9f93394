"""Aliases of GGUF files: found in the folder that COUPLING_GGUF names, and known by their digests."""

import warnings

import pytest
from tiny_gguf import write

from coupling_lib.errors import CouplingError
from coupling_lib.models import packages, registry
from coupling_lib.models.load import load_model

ALIAS, FILE = "gemma3-270m", "gemma3-270m.gguf"


def refused(alias):
    with pytest.raises(CouplingError) as error:
        load_model(alias)
    return str(error.value)


@pytest.mark.parametrize("alias", packages.GGUF_FILES)
def test_a_file_has_its_row_in_the_registry(alias):
    entry, known = registry.lookup(alias), packages.GGUF_FILES[alias]
    assert entry.hub_id and entry.training_tokens_t and entry.training_tokens_source and known.licence
    assert known.file == f"{alias}.gguf" and len(known.sha256) == 64


def test_without_the_folder_or_the_file_one_line_says_what_to_do(tmp_path, monkeypatch):
    wanted = f"'{ALIAS}' is the file {FILE} (sha256 a5fd3b62230a)"
    instead = "or name 'google/gemma-3-270m' for the weights of the hub"
    monkeypatch.delenv("COUPLING_GGUF", raising=False)
    assert refused(ALIAS) == f"{wanted}; set COUPLING_GGUF to the folder that holds it, {instead}"
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    assert refused(ALIAS) == f"{wanted}, and COUPLING_GGUF is '{tmp_path}', without it; put it there, {instead}"


def test_another_file_of_that_name_runs_with_one_warning(tmp_path, monkeypatch):
    write(tmp_path / FILE)
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(ALIAS, device="cpu")
    seen = packages.sha256(tmp_path / FILE)[:12]
    (message,) = (str(one.message) for one in caught if issubclass(one.category, packages.OtherFileWarning))
    assert f"{FILE} has the digest {seen}; the file that was measured for the book has a5fd3b62230a" in message
    assert (model.name, model.source) == (ALIAS, f"{FILE} (Q4_1, sha256 {seen})")


def test_a_file_that_was_cut_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    monkeypatch.setenv("COUPLING_GGUF", str(tmp_path))
    with pytest.warns(packages.OtherFileWarning):
        text = refused(ALIAS)
    assert "\n" not in text and ALIAS in text
