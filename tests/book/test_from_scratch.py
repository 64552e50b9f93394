"""Programs that pages show: the coupling from scratch is the library's, and another one is not printed."""

import ast
import re

import pages
import pytest
import tiny

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.errors import UntrustworthyResultError


def test_program_prints_the_coupling_of_the_library(monkeypatch):
    text = pages.from_scratch_page()
    coupling, share = map(float, re.search(r"coupling (0\.\d+): (\d+)% of A", text).groups())
    assert 1 - (1 - share / 100) ** 0.5 == pytest.approx(coupling, abs=0.01) and coupling > 0.5
    monkeypatch.setattr(cl, "miscoupling", lambda A, normalized: 0.5)
    with pytest.raises(UntrustworthyResultError, match="not the library's number"):
        pages.from_scratch_page()


def test_program_needs_one_changed_line_per_model(tmp_path):
    tiny.save_llama(tmp_path)
    source = (paths.ROOT / "book" / "from_scratch.py").read_text(encoding="utf-8").replace("4, 6, 10", "0, 2, 4")
    line = f'NAME, TOKENIZER, BLOCKS = "{tmp_path}", "{tmp_path}", "model.layers"'
    exec(re.sub(r"(?<=# Change this line for your model.\n)NAME, .+", line, source), own := {})
    assert own["NAME"] == str(tmp_path)
    trace = cl.trace(cl.load_model(tmp_path), own["ids"])
    A = cl.coupling_matrix(trace.jacobian(0), trace.jacobian(2).svd(4), 4)
    assert 1 - float(cl.miscoupling(A, normalized=True)) == pytest.approx(own["coupling"], abs=1e-5)


def test_own_model_lines_print_coupling_beside_chance():
    own, text = pages.printed_by("own_lines.py")
    printed = ast.literal_eval(text.removeprefix("```text\n").removesuffix("```\n"))
    assert printed == {name: round(value, 3) for name, value in own["found"]._asdict().items()}
    assert printed["coupling"] > printed["conjugated"] + 2 * printed["conjugated_error"]
