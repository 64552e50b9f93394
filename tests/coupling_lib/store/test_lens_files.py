"""Lenses written and read back, those of other programs among them, and files that are none."""

import torch
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.store.lens_files import read_lens, write_lens

J = {depth: torch.randn(4, 4, generator=torch.Generator().manual_seed(depth)) for depth in (1, 2, 5)}


def theirs(**changes) -> dict:
    """What others save, layers counted from 0."""
    layers = {depth - 1: matrix.half() for depth, matrix in J.items()}
    return {"J": layers, "n_prompts": 100, "source_layers": sorted(layers), "d_model": 4} | changes


def test_lenses_are_read_back_as_written(tmp_path):
    own, path = tmp_path / "lens.safetensors", tmp_path / "lens.pt"
    write_lens(own, J, n_prompts=16)
    torch.save(theirs(), path)
    for found, n_prompts, wanted in (
        (read_lens(own, width=4), 16, J),
        (read_lens(path), 100, {depth: matrix.half().float() for depth, matrix in J.items()}),
    ):
        assert (found.n_prompts, found.d_model, sorted(found.J)) == (n_prompts, 4, [1, 2, 5])
        assert all(torch.equal(found.J[depth], wanted[depth]) for depth in J)
    traced = cl.trace(cl.load_model("nano-neox"), "It was the best of times, it was the worst of")
    message = r"is 4 wide and has depths \[1, 2, 5\]; nano-neox is 96 wide and 12 blocks"
    refused(ParameterError, message, read_lens(path).readout, traced)
    lens = cl.lens(traced, token=3)
    torch.save({"J": {3: lens[4], 8: lens[9]}, "n_prompts": 1, "source_layers": [3, 8], "d_model": 96}, path)
    read, wanted = read_lens(path).readout(traced, k=3, token=3), lens.readout(k=3)
    assert read.depths == [4, 9, 12] and wanted.depths == list(range(13))
    assert torch.equal(read.ids, wanted.ids[read.depths]) and read.tokens == [wanted.tokens[at] for at in read.depths]
    torch.testing.assert_close(read.logits, wanted.logits[read.depths], rtol=1e-4, atol=1e-3)


class Harmful:
    """What runs when a pickle of it is opened."""

    def __reduce__(self):
        return (print, ("this ran",))


def test_bad_lens_files_are_refused_without_running_code(tmp_path, capsys):
    for content, message in (
        (theirs(d_model=5), r"has shapes \[\(4, 4\)\]; \(5, 5\) is expected"),
        ({"J": {}}, r"is no Jacobian lens \(KeyError\)"),
        (theirs(J=[1, 2]), r"is no Jacobian lens \(AttributeError\)"),
        (theirs(J={}), r"has shapes \[\]"),
        (theirs(J={2: torch.full((4, 4), torch.inf)}), "holds NaN or infinite values at depth 3"),
    ):
        torch.save(content, tmp_path / "lens.pt")
        refused(ParameterError, message, read_lens, tmp_path / "lens.pt")
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
        refused(ParameterError, message, call)
    torch.save(theirs(n_prompts=Harmful()), tmp_path / "lens.pt")
    message = r"'lens\.pt' holds more than tensors, and code in it would run"
    refused(ParameterError, message, read_lens, tmp_path / "lens.pt")
    assert "this ran" not in capsys.readouterr().out
