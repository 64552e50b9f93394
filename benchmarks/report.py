"""Tables out of the benchmarks' JSON, for the terminal and for the page of the book.

    python -m benchmarks.report

writes `results/book/benchmarks.md` from `benchmarks/latest.json` and `benchmarks/latest_gpu.json`, the latest runs on
a quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.child import MEMORY_KEPT
from benchmarks.goals import judged
from benchmarks.other_tables import (
    checks_table,
    closed_form_table,
    gpu_tables,
    lens_table,
    of_products,
    peers_table,
    real_size_row,
    unformed_tables,
)
from benchmarks.tables import NB, STAGE_NAMES, STAGES, goals_table, machine_line, power, seconds, table
from coupling_lib import paths

HERE = Path(__file__).parent
OUT = paths.RESULTS / "book" / "benchmarks.md"
TABLES = {
    "_unformed": unformed_tables,
    "_closed_form": closed_form_table,
    "_lens": lens_table,
    "_peers": peers_table,
    "_checks": checks_table,
}


def case_line(case: dict[str, Any]) -> str:
    """Format the outcome of one case in a line, for the terminal."""
    total = {method: seconds(case["seconds"][method]["total"]) for method in ("released", "ours")}
    return (
        f"{case['shape']} n={case['n']}: released {total['released']} ({case['basis']}), ours {total['ours']}, "
        f"{case['ratio']['total']:.1f}x; Jacobians at {case['fraction_of_peak']:.0%} of the matrix peak; "
        f"values differ by {case['agreement']['metric_relative']:.1e}"
    )


def speed_page(run: dict[str, Any]) -> str:
    """Format all tables of a CPU run."""
    cases = run["cases"]
    whole = [
        (
            case["shape"],
            *(str(case[name]) for name in ("d", "L", "n")),
            seconds(case["seconds"]["released"]["total"]),
            seconds(case["seconds"]["ours"]["total"]),
            f"{case['ratio']['total']:.1f}×",
            case["basis"],
            power(case["agreement"]["metric_relative"]),
        )
        for case in cases
    ]
    by_stage = [
        (
            *_which(case),
            method if method == "ours" else f"{method} ({case['released_attention']})",
            *(seconds(case["seconds"][method][s]) for s in STAGES),
        )
        for case in cases
        for method in ("released", "ours")
    ]
    peak = [
        (
            *_which(case),
            f"{case['flop_per_block'] / 1e9:.3g}",
            f"{case['jacobian_flop_per_second'] / 1e9:.0f}",
            f"{case['matrix_peak'] / 1e9:.0f}",
            f"{case['fraction_of_peak']:.0%}",
            f"{case['complete_flop_per_block'] / 1e9:.3g}",
            f"{case['complete_fraction_of_peak']:.0%}",
        )
        for case in cases
    ]
    parts = [
        machine_line(run["machine"]),
        "### Whole prompt\n",
        table("model | d | L | n | released | this library | ratio | released Jacobians | values differ by", whole),
        *_memory_kept(cases),
        "### Each stage\n",
        table(f"model | n | method | {STAGE_NAMES}", by_stage),
        "### Jacobians against the matrix peak\n",
        "The count is of the products that are done. Products with unit vectors are not: rows of the weights are taken "
        "in their place. The last two columns set the time beside that of all products at the peak.\n",
        table("model | n | GFLOP per block | GFLOP/s | peak GFLOP/s | fraction | GFLOP of all | against all", peak),
        "### Roofline\n",
        "No method that forms the Jacobians is faster than their matrix products at the machine's peak. The ceiling is "
        "the released method's time over that of the products done here, as if states, SVD and pairs took no time. The "
        "released method pulls every cotangent back through the whole sequence. The last column says at which part of "
        "the peak its products ran.\n",
        table(
            "model | n | Jacobians at the peak | Jacobians | SVD, pairs, states | ceiling | ratio | "
            "released, of the peak",
            [_roofline_row(case) for case in cases],
        ),
        *_memory(run["memory"]),
        "### Growth\n",
        table("stage | grows with | fixed | measured | exponent", [_growth_row(curve) for curve in run["growth"]]),
        _embedded(run["embedded_prompt"]),
        "### Against the goals\n",
        goals_table(judged(run)),
    ]
    return "\n".join(parts)


def _which(case: dict[str, Any]) -> tuple[str, str]:
    return case["shape"], str(case["n"])


def _memory_kept(cases: list[dict[str, Any]]) -> list[str]:
    compared = [(case, case["memory_kept"]) for case in cases if "memory_kept" in case]
    if not compared:
        return []
    rows = [
        (
            *_which(case),
            *(seconds(run["seconds"][method]["total"]) for method in ("released", "ours") for run in (case, kept)),
            f"{case['ratio']['total']:.1f}×",
            f"{kept['ratio']['total']:.1f}×",
        )
        for case, kept in compared
    ]
    paragraph = (
        "The released method takes and frees tensors of tens of megabytes all the time. By default the C library gives "
        "many of them back to the system and gets them again page by page, zeroed. *Kept* is one more "
        f"round in a process that keeps what is freed (`{' '.join(map('='.join, MEMORY_KEPT.items()))}`), the released "
        "method's Jacobians scaled from three blocks at most.\n"
    )
    head = "model | n | released | … kept | this library | … kept | ratio | … kept"
    return ["### Whole prompt, with memory kept\n", paragraph, table(head, rows)]


def _roofline_row(case: dict[str, Any]) -> tuple[str, ...]:
    floor = case["flop_per_block"] * case["L"] / case["matrix_peak"]
    ours, theirs = (case["seconds"][method] for method in ("ours", "released"))
    # Every weight meets every cotangent at every token; attention's own products are left out, so it is a bit more.
    part = case["complete_flop_per_block"] * case["n"] * case["L"] / case["matrix_peak"] / theirs["jacobians"]
    return (
        *_which(case),
        seconds(floor),
        seconds(ours["jacobians"]),
        seconds(ours["total"] - ours["jacobians"]),
        f"{theirs['total'] / floor:.1f}×",
        f"{case['ratio']['total']:.1f}×",
        f"{part:.0%}",
    )


def _memory(records: list[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    rows = [
        (m["shape"], str(m["n"]), m["method"], *(f"{m[part] / 1e6:.0f}{NB}MB" for part in ("peak", "store", "trace")))
        for m in records
    ]
    head = "model | n | method | peak above the weights | of it kept Jacobians | of it states, keys, values"
    held = (
        "Coupling of all pairs of blocks needs all Jacobians at the end. Until they are formed it needs the states, "
        "keys and values. The rest of the peak is work space, and memory that the allocator holds back.\n"
    )
    first = records[0].get("uncounted")
    note = f"A prompt of {first} tokens goes first, uncounted, because it reads the code of the linear algebra.\n"
    return ["### Memory\n", held, *([note] if first else []), table(head, rows)]


def _embedded(prompt: dict[str, Any]) -> str:
    return (
        f"One prompt of {prompt['shape']} ({prompt['n']} tokens; {prompt['call']}): {seconds(prompt['seconds'])}, the "
        f"median of {prompt['rounds']} calls that took {seconds(prompt['fastest'])} to {seconds(prompt['slowest'])}. "
        "Command: `python -m benchmarks.embedded`.\n"
    )


def _growth_row(curve: dict[str, Any]) -> tuple[str, ...]:
    points = ", ".join(f"{value}: {seconds(time)}" for value, time in curve["points"])
    return curve["stage"], curve["variable"], curve["fixed"], points, f"{curve['exponent']:.2f}"


def page(records: Path = HERE) -> str:
    """Write the page of the book from the latest runs, or write that there is none."""

    def latest(name: str) -> Any:
        file = records / f"latest{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    speed, runs, gpu = map(latest, ("", "_real_size", "_gpu"))
    parts = ["## Two cores\n"]
    parts.append(speed_page(speed) if speed else "Not measured yet. `make bench` measures and prints these tables.\n")
    parts.append("## At real size\n")
    if runs:
        head = "model | precision | depth notebook, one prompt | largest process | forming would be"
        parts += [f"**{run['parameters']['precision']}.** {machine_line(run['machine'])}" for run in runs]
        parts += [table(head, [real_size_row(run) for run in runs])]
        parts.append("Pages of mapped files are resident while there is room; the system takes them back at need.\n")
        parts += [] if all(run["formed"] for run in runs) else [of_products(runs, latest("_unformed"))]
        ran = {run["parameters"]["precision"] for run in runs}
        for precision in (one for one in ("float32", "nf4") if one not in ran):
            command = f"`python -m benchmarks.real_size --precision {precision}`"
            parts.append(f"In {precision} it was not measured here; {command} does it.\n")
    else:
        parts.append("The record is still to be made, on a quiet machine: `python -m benchmarks.real_size`.\n")
    for name, tabulated in TABLES.items():
        if record := latest(name):
            parts += tabulated(record)
    lacking = "The GPU figures are still to be measured, on a machine with a card: `python -m benchmarks.gpu`.\n"
    return "\n".join([*parts, "## GPU\n", gpu_tables(gpu) if gpu and gpu["gpu_measured"] else lacking])


if __name__ == "__main__":
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(page(), encoding="utf-8")
    print(f"written to {OUT}")
