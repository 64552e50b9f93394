"""The lines of the chapter on lenses run, and give what the library gives."""

import re

import torch

import coupling_lib as cl
from coupling_lib import paths


def test_lens_lines_run_and_average_all_tokens(tmp_path, monkeypatch):
    page = (paths.ROOT / "book" / "lenses.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```python\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(lines, known := {})
    read, prompts, model = known["read"], known["prompts"], known["model"]
    assert len(known["words"]) == 3 and all(isinstance(word, str) for word in known["words"])
    assert sorted(read.J) == list(range(1, 12)) and (read.n_prompts, read.d_model) == (2, 96)
    of_each = []
    for prompt in prompts:
        traced = cl.trace(model, prompt)
        pairs, M = [(token, token) for token in range(traced.n_tokens)], torch.eye(96, dtype=torch.float64)
        for block in range(6, 12):
            M = (torch.eye(96) + cl.block_jacobians(traced, block, pairs)).double() @ M
        of_each.append(M.mean(dim=0))
    torch.testing.assert_close(read.J[6].double(), torch.stack(of_each).mean(dim=0), rtol=1e-4, atol=1e-5)
