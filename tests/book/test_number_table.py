"""The table of all numbers: each stands there as its notebook stored it, beside functions that exist."""

import shutil
from importlib import import_module

import named_numbers
import pytest
from number_table import computed_by, number_table

from companion.tables import decoders
from coupling_lib import paths

NOTEBOOKS = sorted((paths.ROOT / "notebooks").glob("*.ipynb"))


def test_table_has_stored_effects_and_recorded_ones(tmp_path):
    (tmp_path / "nano-neox").mkdir()
    shutil.copy(paths.ROOT / "notebooks" / "depth.ipynb", tmp_path / "nano-neox")
    table = number_table(tmp_path)
    stored = named_numbers.remembered(tmp_path / "nano-neox" / "depth.ipynb")
    row = table[(table["model"] == "nano-neox") & (table["name"] == "depth-coupled")].iloc[0]
    assert float(row["value"]) == pytest.approx(stored["depth-coupled"], rel=1e-7)
    assert row["n"] == stored["depth-coupled-n"]
    assert [row["low"], row["high"]] == [stored["depth-coupled-low"], stored["depth-coupled-high"]]
    assert row["computed_by"] == "companion.figures.depth.numbers_of"
    assert {*table["model"]} == {"nano-neox", *decoders.MODELS}
    assert not table.duplicated(["model", "notebook", "name"]).any() and table["value"].notna().all()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_functions_beside_numbers_exist(notebook):
    functions = computed_by(notebook).split("; ")
    for module, _, name in (function.rpartition(".") for function in functions):
        assert callable(getattr(import_module(module), name))
