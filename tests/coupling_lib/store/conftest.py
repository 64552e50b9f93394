"""What the tests of the store measure: a tiny model in a folder."""

import pytest
import tiny

import coupling_lib as cl


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save_llama(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return cl.load_model(folder)
