"""The command of the decisive test: what it prints and writes of a model, and what it says of one that is not here."""

import pandas as pd
import tiny

from coupling_lib import paths
from workflow import decisive


def test_model_is_measured_and_written_with_its_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    tiny.save_llama(tmp_path / "m")
    assert decisive.main([str(tmp_path / "m"), str(tmp_path / "none"), "--prompts", "1"]) == 0
    file, output = tmp_path / "results" / "m" / "decisive.csv", capsys.readouterr().out
    table, text = pd.read_csv(file, comment="#"), file.read_text()
    tenth = table[table.c_flat.notna() & (table.pairs == "different")].iloc[0]
    assert f"with K = {tenth.K}: trained {tenth.c_trace_trained:.4f}, random bases {tenth.c_trace_null:.4f}" in output
    assert tenth.c_trace_untrained != tenth.c_trace_trained
    command = "python workflow/decisive.py {} --prompts 1 --precision float32"
    assert command.format(tmp_path / "m") in text
    assert f"no digitised value; measure with: {command.format(tmp_path / 'none')}" in output
