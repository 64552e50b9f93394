"""The table of public decoders: numbers of those that were measured, a command for the others."""

import public_decoders as tables
from executed import executed

from coupling_lib.models import registry


def effect(name, value):
    return {f"{name}{end}": value + off for end, off in (("", 0), ("-low", -0.01), ("-high", 0.02))}


OWN = ["Gemma 3 270M (Q4_K_M)", "18 of 640"]
NUMBERS = {
    "depth": effect("depth-coupled", 0.2) | effect("depth-shared-coupled", 0.1)
    | {"depth-coupling-untrained": 0.051, "depth-coupling-null": 0.052},
    "nulls": effect("nulls-stricter-coupled", 0.03) | effect("nulls-stricter-traceless-coupled", 0.04)
    | effect("nulls-decisive-trace-change", -0.066)
    | {"nulls-decisive-trace-trained": 0.806, "nulls-decisive-trace-untrained": 0.872}
    | {"nulls-decisive-trace-null": 0.81, "nulls-decisive-flat": 0.875},
    "trajectories": effect("trajectories-change-line-shape-score-all", -2.0)
    | effect("trajectories-change-expodistance-all", 0.5) | effect("trajectories-change-equidistance-all", 0.8)
    | effect("trajectories-change-expodistance-no-embedding", 1.2)
    | effect("trajectories-change-expodistance-normed-end", 255),
    "tokens": effect("tokens-between-self-trained", 0.3) | effect("tokens-between-self-traceless-part", 0.25)
    | {"tokens-between-self-by-chance": 0.052, "tokens-between-self-traceless-part-conjugated": 0.061}
    | {"tokens-between-self-trained-conjugated": 0.08, "tokens-null-spread": 0.02},
    "prompts": effect("prompts-step-by-step-change", 0.1) | effect("prompts-control-sentence-change", 0.2)
    | effect("prompts-step-by-step-over-control-sentence", -0.1),
    "spectra": effect("spectra-r2-change", -0.4),
    "dynamics": effect("dynamics-product-over-random", 0.3),
}  # fmt: skip


def line_of_gemma(text, hours=""):
    (line,) = (line for line in text.splitlines() if line.startswith("| Gemma"))
    last = text.splitlines()[-1]
    assert all(name in last for model, name in tables.NAMES.items() if model != "gemma3-270m")
    assert last.endswith(f"not measured here; `make decoders GGUF=FOLDER` measures it{hours}.")
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_measured_decoders_have_rows_and_others_a_command(tmp_path):
    rows = {
        "depth": "0.200 [0.190, 0.220] | 0.030 [0.020, 0.050] | 0.100 [0.090, 0.120] | 0.040 [0.030, 0.060] | "
        "0.051 | 0.052",
        "curve": "0.806 | 0.872 | 0.810 | 0.875 | -0.066 [-0.076, -0.046]",
        "trajectories": "-2.00 [-2.01, -1.98] | +0.50 [+0.49, +0.52] | +0.80 [+0.79, +0.82] | +1.20 [+1.19, +1.22] | "
        "+255 [+255, +255] | –",
        "tokens": "0.300 [0.290, 0.320] | 0.080 | 0.250 [0.240, 0.270] | 0.061 | 0.052 | 0.020",
        "instruction": "+0.1000 [+0.0900, +0.1200] | +0.2000 [+0.1900, +0.2200] | -0.1000 [-0.1100, -0.0800]",
        "linear": "+0.30 [+0.29, +0.32] | -0.40 [-0.41, -0.38] | – | –",
    }
    executed(tmp_path / "gemma3-270m" / "depth.ipynb", NUMBERS["depth"])
    alone = tables.decoders_table("depth", tmp_path)
    assert line_of_gemma(alone) == [*OWN, "0.200 [0.190, 0.220]", "–", "0.100 [0.090, 0.120]", "–", "0.051", "0.052"]
    assert alone.splitlines()[-1].startswith("A dash and SmolLM2")
    for notebook, numbers in NUMBERS.items():
        executed(tmp_path / "gemma3-270m" / f"{notebook}.ipynb", numbers)
    for table, cells in rows.items():
        hours = ", in about 3 hours of one core" * (table == "instruction")
        assert line_of_gemma(tables.decoders_table(table, tmp_path), hours) == [*OWN, *cells.split(" | ")]
    assert all(registry.lookup(model).blocks and registry.lookup(model).width for model in tables.NAMES)


def test_first_token_table_has_a_row_per_part(tmp_path):
    head = "# a comment\nmodel,part,first,usual,with,without,change,low,high"
    lines = ("gemma3-270m,whole,<bos>,True,0.07,0.08,-0.01,-0.02,0.005", "smollm2-135m,whole,<x>,False,0.1,0.1,0,-1,1")
    (tmp_path / "bos.csv").write_text("\n".join((head, *lines)))
    *_, gemma, smollm2, _, rest = tables.first_token_of_decoders(tmp_path / "bos.csv").strip().splitlines()
    assert rest.startswith("Qwen2.5-Coder-0.5B") and rest.endswith("`python workflow/bos.py MODEL` measures it.")
    cells = [cell.strip() for cell in gemma.strip("|").split("|")]
    assert cells == [OWN[0], "`<bos>`", "whole", "0.0700", "0.0800", "-0.0100 [-0.0200, +0.0050]"]
    assert smollm2.startswith("| SmolLM2-135M-Instruct (Q4_1) * |")
