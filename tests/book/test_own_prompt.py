"""What is written for the tab on one's own prompt: rounded weights, steps, and what stands without script."""

import base64
import gzip
import re

import numpy as np
import own_prompt
import pytest
import torch
import xarray as xr

import coupling_lib as cl


def small() -> cl.Model:
    return cl.load_model(own_prompt.MODEL, revision="step32")


def test_packed_weights_equal_the_rounded_model_exactly():
    model = small()
    raw, listed = own_prompt.weights_of(model), own_prompt.tensors(model)
    scales, entries, vectors = (unpacked(raw[key], kind) for key, kind in zip(raw, ("<f4", "i1", "<f4"), strict=True))
    before = dict(model.hf.named_parameters())
    shown = own_prompt.as_in_the_page(small())
    assert shown.hf.dtype == torch.float64 and shown.n_blocks == 12
    row = entry = number = 0
    for name, rows, columns in listed:
        got = dict(shown.hf.named_parameters())[name].numpy()
        if not columns:
            np.testing.assert_array_equal(vectors[number : number + rows], got)
            number += rows
            continue
        scale = scales[row : row + rows, None].astype(float)
        np.testing.assert_array_equal(entries[entry : entry + rows * columns].reshape(rows, columns) * scale, got)
        assert (np.abs(got - before[name].double().numpy()) <= scale * 0.5001).all()
        row, entry = row + rows, entry + rows * columns
    assert (row, entry, number) == (len(scales), len(entries), len(vectors))
    scales, bytes_ = own_prompt.rounded(torch.tensor([[1.0, -2.54, 0.013], [0.0, 0.0, 0.0]]))
    assert scales.dtype == np.float32 and scales.tolist() == [pytest.approx(0.02), 0]
    assert bytes_.tolist() == [[50, -127, 1], [0, 0, 0]]


def unpacked(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype)


def test_chosen_are_different_maps_and_most_coupled_steps():
    # On a line: the mean is 2.8; 10 lies farthest from it, 0 from 10, 4 from both, 2 from all three.
    at = np.array([0, 0, 1, 2, 2, 10, 4, 3.4])
    maps = np.broadcast_to(at[:, None, None, None], (8, 1, 3, 3)) * (1 - np.eye(3))
    ds = xr.Dataset({"normalized_miscoupling": (("prompt", "k", "block_1", "block_2"), maps)})
    chosen = own_prompt.gallery(ds)
    assert [at[number] for number in chosen][:4] == [10, 0, 4, 2] and len(set(chosen)) == own_prompt.GALLERY
    measured = {0: 0.05, 32: 0.2, 1000: 0.4, 3162: 0.3, 10000: 0.1}
    arrays = {step: torch.full((2,), value) for step, value in measured.items()}
    assert own_prompt.chosen_steps(arrays) == {0: "untrained", 1000: "step 1,000", 10000: "step 10,000 (trained)"}


def test_page_parts_state_values_and_command_prints_map(capsys):
    rounding, rows = {"untrained": 0.00011, "step 100": 0.00076}, {"untrained": 0.0514, "a < b": 0.4567}
    parts = own_prompt.parts_of(rows, 0.0516, rounding, [0, 100, 10_000], 48)
    part, rule = parts["own-prompt"], parts["own-prompt-gallery"]
    assert "by at most 0.0008." in parts["own-prompt-rounding"]
    assert rule == "The 8 prompts offered are those of our 48 whose maps at step 10,000 differ most.\n"
    assert part.startswith('```{raw} html\n<div id="own-prompt-here">') and "needs JavaScript" in part
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', part)
    assert rows == [("untrained", "0.051"), ("a &lt; b", "0.457"), ("by chance", "0.052")]
    code = parts["own-prompt-command"].removeprefix("```python\n").removesuffix("```\n")
    assert 'revision="step100"' in code
    exec(code, {})
    assert len(capsys.readouterr().out.splitlines()) == 14
