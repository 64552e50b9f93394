"""Coupling with and without the token that begins a text: rows against two measurements made by hand."""

import numpy as np
import pytest
import torch

import coupling_lib as cl
from companion.tables.files import read_table
from workflow import bos


def test_rows_measure_with_and_without_the_token(tmp_path):
    table = tmp_path / "bos.csv"
    for prompts in ("3", "2"):  # the second run takes the place of the first
        assert bos.main(["nano-llama", "--prompts", prompts, "--table", str(table)]) == 0
    found = read_table(table)
    assert found["part"].tolist() == ["whole", "traceless part"] and found["n"].tolist() == [2, 2]
    model = cl.load_model("nano-llama")
    token, usual = bos.first_token(model)
    assert not usual and not found["usual"].any()
    couplings = []
    for prompt in cl.load_prompts(n=2):
        ids = model.tokenizer(prompt.text)["input_ids"]
        both = [cl.measure_depth(model, torch.tensor([one]), ks=(10,)) for one in ([token, *ids], ids)]
        values = [ds.normalized_miscoupling.values.squeeze() for ds in both]
        couplings.append([1 - one[~np.eye(len(one), dtype=bool)].mean() for one in values])
    with_it, without = np.mean(couplings, axis=0)
    assert found["with"][0] == pytest.approx(with_it, rel=1e-5)
    assert found["without"][0] == pytest.approx(without, rel=1e-5)
    assert found["change"][0] == pytest.approx(with_it - without, abs=1e-6)
    assert found["low"][0] < found["change"][0] < found["high"][0]


@pytest.mark.parametrize("model", ["nano-vit", "no-such-model"])
def test_model_without_text_is_refused_in_one_line(model, tmp_path, capsys):
    assert bos.main([model, "--table", str(tmp_path / "bos.csv")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "bos.csv").exists()
