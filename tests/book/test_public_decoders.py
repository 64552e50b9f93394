"""The table of public decoders: numbers of those that were measured, a command for the others."""

from executed import executed
from public_decoders import NAMES, depth_of_decoders

from coupling_lib.models import registry

NUMBERS = {
    **{f"depth-coupled{end}": value for end, value in (("", 0.2), ("-low", 0.19), ("-high", 0.22))},
    **{f"depth-shared-coupled{end}": value for end, value in (("", 0.1), ("-low", 0.09), ("-high", 0.12))},
    "depth-neighbours-trained": 0.3, "depth-coupling-untrained": 0.051, "depth-coupling-null": 0.052,
}  # fmt: skip


def test_what_was_measured_has_a_line_and_what_was_not_a_command(tmp_path):
    executed(tmp_path / "gemma3-270m" / "depth.ipynb", NUMBERS)
    text = depth_of_decoders(tmp_path)
    (line,) = (line for line in text.splitlines() if line.startswith("| Gemma"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["Gemma 3 270M (Q4_K_M)", "18 of 640", "0.200 [0.190, 0.220]", "0.100 [0.090, 0.120]",
                     "0.300", "0.051", "0.052"]  # fmt: skip
    last = text.splitlines()[-1]
    assert all(name in last for model, name in NAMES.items() if model != "gemma3-270m")
    assert last.endswith("not measured here; `make decoders GGUF=FOLDER` measures them.")


def test_every_decoder_has_a_row_in_the_registry():
    assert all(registry.lookup(model).blocks and registry.lookup(model).width for model in NAMES)
