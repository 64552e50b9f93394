"""Lenses written and read back, those of other programs among them, and files that are none."""

from __future__ import annotations

import pytest
import torch

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.store.lens_files import read_lens, write_lens

J = {depth: torch.randn(4, 4, generator=torch.Generator().manual_seed(depth)) for depth in (1, 2, 5)}


def theirs(**changes) -> dict:
    """What others save, layers counted from 0."""
    layers = {depth - 1: matrix.half() for depth, matrix in J.items()}
    return {"J": layers, "n_prompts": 100, "source_layers": sorted(layers), "d_model": 4} | changes


def test_a_lens_comes_back_as_it_was_written(tmp_path):
    write_lens(tmp_path / "lens.safetensors", J, n_prompts=16)
    found = read_lens(tmp_path / "lens.safetensors", width=4)
    assert (found.n_prompts, found.d_model, list(found.J)) == (16, 4, [1, 2, 5])
    assert all(torch.equal(found.J[depth], J[depth]) for depth in J)


def test_a_file_of_another_program_is_read_one_depth_further(tmp_path):
    torch.save(theirs(), tmp_path / "lens.pt")
    found = read_lens(tmp_path / "lens.pt")
    assert found.n_prompts == 100 and sorted(found.J) == [1, 2, 5]
    assert all(torch.equal(found.J[depth], J[depth].half().float()) for depth in J)


def test_a_file_is_read_out_on_a_trace_by_the_models_own_head(tmp_path):
    traced = cl.trace(cl.load_model("nano-neox"), "It was the best of times, it was the worst of")
    own = cl.lens(traced, token=3)
    layers = {depth - 1: own[depth] for depth in (4, 9)}
    torch.save({"J": layers, "n_prompts": 1, "source_layers": [3, 8], "d_model": 96}, tmp_path / "lens.pt")
    read, wanted = read_lens(tmp_path / "lens.pt").readout(traced, k=3, token=3), own.readout(k=3)
    assert read.depths == [4, 9, 12] and wanted.depths == list(range(13))
    assert torch.equal(read.ids, wanted.ids[read.depths]) and read.tokens == [wanted.tokens[at] for at in read.depths]
    torch.testing.assert_close(read.logits, wanted.logits[read.depths], rtol=1e-4, atol=1e-3)
    torch.save(theirs(), tmp_path / "other.pt")
    with pytest.raises(
        ParameterError, match=r"is 4 wide and has depths \[1, 2, 5\]; nano-neox is 96 wide and 12 blocks"
    ):
        read_lens(tmp_path / "other.pt").readout(traced)


class Harmful:
    """What runs when a pickle of it is opened."""

    def __reduce__(self):
        return (print, ("this ran",))


def test_code_in_a_file_never_runs(tmp_path, capsys):
    torch.save(theirs(n_prompts=Harmful()), tmp_path / "lens.pt")
    with pytest.raises(ParameterError, match=r"'lens\.pt' holds more than tensors, and code in it would run"):
        read_lens(tmp_path / "lens.pt")
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (theirs(d_model=5), r"has shapes \[\(4, 4\)\]; \(5, 5\) is expected"),
        ({"J": {}}, r"is no Jacobian lens \(KeyError\)"),
        (theirs(J=[1, 2]), r"is no Jacobian lens \(AttributeError\)"),
        (theirs(J={}), r"has shapes \[\]"),
    ],
)
def test_what_is_no_lens_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "lens.pt")
    with pytest.raises(ParameterError, match=message):
        read_lens(tmp_path / "lens.pt")


def test_bad_files_and_matrices_are_one_line(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 20)
    write_lens(tmp_path / "good.safetensors", J, 1)
    for call, message in (
        (lambda: read_lens(tmp_path / "none.pt"), "there is no file"),
        (lambda: read_lens(tmp_path / "broken.safetensors"), r"is no Jacobian lens \(SafetensorError\)"),
        (lambda: read_lens(tmp_path / "good.safetensors", width=8), r"\(8, 8\) is expected"),
        (lambda: write_lens(tmp_path / "lens.pt", J, 1), "is written as .safetensors"),
        (lambda: write_lens(tmp_path / "a.safetensors", {0: J[1]}, 1), r"depths from 1 with one \(d, d\)"),
        (lambda: write_lens(tmp_path / "a.safetensors", {1: J[1][:3]}, 1), r"depths from 1 with one \(d, d\)"),
    ):
        with pytest.raises(ParameterError, match=message):
            call()
