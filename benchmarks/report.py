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
from benchmarks.goals import UNFORMED_GOALS, judged
from benchmarks.tables import NB, machine_line, power, seconds, table
from coupling_lib import paths
from coupling_lib.svd.operators import FEW_AT_ONCE

LATEST = Path(__file__).parent / "latest.json"
LATEST_GPU = Path(__file__).parent / "latest_gpu.json"
LATEST_SIZE = Path(__file__).parent / "latest_real_size.json"
LATEST_UNFORMED = Path(__file__).parent / "latest_unformed.json"
LATEST_CHECKS = Path(__file__).parent / "latest_checks.json"
OUT = paths.RESULTS / "book" / "benchmarks.md"

STAGES = ("capture", "jacobians", "svd", "pairs", "total")
_STAGE_NAMES = ("states", "Jacobians", "SVD", "pairs", "total")


def case_line(case: dict[str, Any]) -> str:
    """Say the outcome of one case in a line, for the terminal.

    Args:
        case: a record of `comparison.compare`.

    Returns:
        the line.
    """
    total = {method: seconds(case["seconds"][method]["total"]) for method in ("released", "ours")}
    return (
        f"{case['shape']} n={case['n']}: released {total['released']} ({case['basis']}), ours {total['ours']}, "
        f"{case['ratio']['total']:.1f}x; Jacobians at {case['fraction_of_peak']:.0%} of the matrix peak; "
        f"values differ by {case['agreement']['metric_relative']:.1e}"
    )


def speed_page(run: dict[str, Any]) -> str:
    """Set all tables of a CPU run.

    Args:
        run: the record of `speed.run`.

    Returns:
        Markdown with headings of the third level.
    """
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
        table(
            ("model", "d", "L", "n", "released", "this library", "ratio", "released Jacobians", "values differ by"),
            whole,
        ),
        *_memory_kept(cases),
        "### Each stage\n",
        table(("model", "n", "method", *_STAGE_NAMES), by_stage),
        "### Jacobians against the matrix peak\n",
        "The count is of the products that are done. Products with unit vectors are not: rows of the weights are taken "
        "in their place. The last two columns set the time beside that of all products at the peak.\n",
        table(
            ("model", "n", "GFLOP per block", "GFLOP/s", "peak GFLOP/s", "fraction", "GFLOP of all", "against all"),
            peak,
        ),
        "### Roofline\n",
        "No method that forms the Jacobians is faster than their matrix products at the machine's peak. The ceiling is "
        "the released method's time over that of the products done here, as if states, SVD and pairs took no time. The "
        "released method pulls every cotangent back through the whole sequence. The last column says at which part of "
        "the peak its products ran.\n",
        table(
            (
                "model",
                "n",
                "Jacobians at the peak",
                "Jacobians",
                "SVD, pairs, states",
                "ceiling",
                "ratio",
                "released, of the peak",
            ),
            [_roofline_row(case) for case in cases],
        ),
        *_memory(run["memory"]),
        "### Growth\n",
        table(
            ("stage", "grows with", "fixed", "measured", "exponent"), [_growth_row(curve) for curve in run["growth"]]
        ),
        _embedded(run["embedded_prompt"]),
        "### Against the goals\n",
        _goals_table(judged(run)),
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
    said = (
        "The released method takes and frees tensors of tens of megabytes all the time. By default the C library gives "
        "many of them back to the system and gets them again page by page, zeroed. *Kept* is one more "
        f"round in a process that keeps what is freed (`{' '.join(map('='.join, MEMORY_KEPT.items()))}`), the released "
        "method's Jacobians scaled from three blocks at most.\n"
    )
    head = ("model", "n", "released", "… kept", "this library", "… kept", "ratio", "… kept")
    return ["### Whole prompt, with memory kept\n", said, table(head, rows)]


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
    head = ("model", "n", "method", "peak above the weights", "of it kept Jacobians", "of it states, keys, values")
    held = (
        "Coupling of all pairs of blocks needs all Jacobians at the end. Until they are formed it needs the states, "
        "keys and values. The rest of the peak is work space, and memory that the allocator holds back.\n"
    )
    first = records[0].get("uncounted")
    said = f"A prompt of {first} tokens goes first, uncounted, because it reads the code of the linear algebra.\n"
    return ["### Memory\n", held, *([said] if first else []), table(head, rows)]


def _embedded(prompt: dict[str, Any]) -> str:
    return (
        f"One prompt of {prompt['shape']} ({prompt['n']} tokens; {prompt['call']}): {seconds(prompt['seconds'])}, the "
        f"median of {prompt['rounds']} calls that took {seconds(prompt['fastest'])} to {seconds(prompt['slowest'])}. "
        "Command: `python -m benchmarks.embedded`.\n"
    )


def _growth_row(curve: dict[str, Any]) -> tuple[str, ...]:
    points = ", ".join(f"{value}: {seconds(time)}" for value, time in curve["points"])
    return curve["stage"], curve["variable"], curve["fixed"], points, f"{curve['exponent']:.2f}"


def _goals_table(outcomes: list[tuple[Any, float, bool]]) -> str:
    return table(("figure", "goal", "measured", ""), [_goal_row(*outcome) for outcome in outcomes])


def _goal_row(goal: Any, figure: float, reached: bool) -> tuple[str, ...]:
    bound = f"{'at least' if goal.at_least else 'at most'} {_figure(goal.wanted, goal.unit)}"
    return goal.text, bound, _figure(figure, goal.unit), "reached" if reached else "not reached"


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g}{unit.replace(' ', NB)}" if value > 1e-3 else power(value, 3)


def gpu_tables(run: dict[str, Any]) -> str:
    """Set the tables of a run of `gpu.py`.

    Args:
        run: its record.

    Returns:
        Markdown.
    """
    ours = [
        (
            str(p["n"]),
            p["arithmetic"],
            *(seconds(p["seconds"][s]) for s in STAGES),
            f"{p['jacobian_flop_per_second'] / 1e12:.3g}",
            f"{p['jacobian_flop_per_second'] / run['matrix_peak']['float32']:.0%}",
            "" if p["memory_above_weights"] is None else f"{p['memory_above_weights'] / 1e9:.2f}{NB}GB",
            power(p["jacobian_error"]),
            power(p["metric_difference_from_float32"]),
        )
        for p in run["prompts"]
    ]
    theirs = [
        (str(p["n"]), f"{p['dtype']}, {p['attention']}", p["basis"], *(seconds(p["seconds"][s]) for s in STAGES))
        for p in run["released"]
    ]
    columns = ("TFLOP/s", "of float32 peak", "memory above weights", "J off by", "values off by")
    peaks = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in run["matrix_peak"].items())
    model = run["model"]
    parts = [
        machine_line(run["machine"]),
        f"{model['shape']}, d = {model['d']}, L = {model['L']}, weights {model['weights']}; matrix peak {peaks}.\n",
        table(("n", "arithmetic", *_STAGE_NAMES, *columns), ours),
        "The released method:\n",
        table(("n", "dtype, attention", "basis", *_STAGE_NAMES), theirs),
    ]
    return "\n".join(parts)


_PEAKS = {"peak_own": "of its own", "peak_resident": "with mapped files"}


def real_size_row(run: dict[str, Any]) -> tuple[str, ...]:
    """Set a run of `real_size.py` as a row of a table.

    Args:
        run: its record.

    Returns:
        cells: model, precision, minutes, memory and what forming all Jacobians takes, a second, beside the matrix peak.
    """
    model, minutes = run["model"], run["seconds"] / 60
    shape = f"d = {model['d']}, L = {model['L']}, {model['bytes'] / 1e9:.1f} GB on disk"
    share = f"{run['flop'] / run['seconds'] / 1e9:.0f} of {run['matrix_peak'] / 1e9:.0f} GFLOP/s"
    return (
        shape,
        run["parameters"]["precision"],
        f"{minutes:.1f}{NB}min",
        "; ".join(f"{run[name] / 1e9:.1f} GB {what}" for name, what in _PEAKS.items() if name in run),
        share,
    )


def _of_products(latest_unformed: Path) -> str:
    """Say of records without formed Jacobians what they lack, and what it takes, as far as that was measured."""
    said = (
        "These runs multiplied with Jacobians and did not form them. The notebook forms them, because the shared "
        "part of coupling needs their trace. `python -m benchmarks.real_size` makes the records anew."
    )
    cases = json.loads(latest_unformed.read_text(encoding="utf-8"))["cases"] if latest_unformed.exists() else []
    for case in cases:
        if (case["d"], case["k"]) == (4096, 10):
            longer = 2 * case["L"] * (case["seconds"]["formed"] - case["seconds"]["products"]) / 60
            said += f" By the table below that takes {longer:.0f} minutes longer for both networks."
    return f"{said}\n"


def unformed_tables(run: dict[str, Any]) -> list[str]:
    """Set a run of `unformed.py`.

    Args:
        run: its record.

    Returns:
        parts of a page: what is compared, and the table.
    """
    rows = [
        (
            case["shape"],
            *(str(case[name]) for name in ("d", "k")),
            *(seconds(case["seconds"][way]) for way in ("formed", "products")),
            f"{case['ratio']:.2f}",
            "products" if case["prefers"] else "forming",
            f"{min(case['columns'])} to {max(case['columns'])}",
            power(case["difference"]),
        )
        for case in run["cases"]
    ]
    head = (
        *("model", "d", "K", "forming", "products", "of forming"),
        *("less time by the rule", "basis", "values differ by"),
    )
    said = (
        "Coupling across depth needs K singular triplets of each Jacobian and its products with the vectors of all "
        "blocks. Either every Jacobian is formed, or it is only multiplied with. The two layers of a gated MLP are "
        "merged for both; with *gates apart* each is multiplied with by itself, as before they were merged. The table "
        "has seconds a block; the ways take turns. *Basis* is how many columns the triplets needed in the blocks "
        "measured; two products add 16. That depends on the spectrum. "
        f"A product of 16 columns waits for the weights: a column of it takes some {FEW_AT_ONCE} times as long "
        "as one of hundreds. `measure_depth` forms every Jacobian, because the shared part needs its trace; products "
        "alone are `formed=False`, and `BlockJacobian.svd` takes what takes less time by its rule.\n"
    )
    parts = ["### Without forming the Jacobians\n", machine_line(run["machine"]), said, table(head, rows)]
    return [*parts, _goals_table(outcomes)] if (outcomes := judged(run, UNFORMED_GOALS)) else parts


def checks_table(run: dict[str, Any]) -> list[str]:
    """Set a run of `checks.py`.

    Args:
        run: its record.

    Returns:
        parts of a page: what is compared, and the table.
    """
    rows = [
        (
            case["shape"],
            str(case["d"]),
            *(seconds(case["seconds"][what]) for what in ("load", "bare", "hooked")),
            f"{1 + case['added']:.1f}×",
        )
        for case in run["cases"]
    ]
    head = ("model", "d", "check at load", "Jacobians of a prompt", "with a hook on every block", "times as long")
    said = (
        "Blocks are compared with plain autograd when a model is loaded. A block on which a hook stands is compared "
        "again: once a trace, and once for each pair of tokens.\n"
    )
    return ["### Checks\n", machine_line(run["machine"]), said, table(head, rows)]


def page(
    latest: Path = LATEST,
    latest_gpu: Path = LATEST_GPU,
    latest_size: Path = LATEST_SIZE,
    latest_unformed: Path = LATEST_UNFORMED,
    latest_checks: Path = LATEST_CHECKS,
) -> str:
    """Write the page of the book from the latest runs, or say that there is none.

    Args:
        latest: JSON of `speed.py`.
        latest_gpu: JSON of `gpu.py`.
        latest_size: JSON of the runs of `real_size.py`, a list.
        latest_unformed: JSON of `unformed.py`.
        latest_checks: JSON of `checks.py`.

    Returns:
        Markdown with headings of the second level.
    """
    parts = ["## Two cores\n", "Not measured yet. `make bench` measures and prints these tables.\n"]
    if latest.exists():
        parts[1] = speed_page(json.loads(latest.read_text(encoding="utf-8")))
    parts += ["## At real size\n"]
    if latest_size.exists():
        runs = json.loads(latest_size.read_text(encoding="utf-8"))
        head = ("model", "precision", "depth notebook, one prompt", "largest process", "forming would be")
        parts += [f"**{run['parameters']['precision']}.** {machine_line(run['machine'])}" for run in runs]
        parts += [table(head, [real_size_row(run) for run in runs])]
        parts.append("Pages of mapped files are resident while there is room; the system takes them back at need.\n")
        parts += [_of_products(latest_unformed)] if not all(run["formed"] for run in runs) else []
        ran = {run["parameters"]["precision"] for run in runs}
        for precision in (one for one in ("float32", "nf4") if one not in ran):
            command = f"`python -m benchmarks.real_size --precision {precision}`"
            parts.append(f"In {precision} it was not measured here; {command} does it.\n")
    else:
        parts.append("The record is still to be made, on a quiet machine: `python -m benchmarks.real_size`.\n")
    if latest_unformed.exists():
        parts += unformed_tables(json.loads(latest_unformed.read_text(encoding="utf-8")))
    if latest_checks.exists():
        parts += checks_table(json.loads(latest_checks.read_text(encoding="utf-8")))
    parts += ["## GPU\n"]
    run = json.loads(latest_gpu.read_text(encoding="utf-8")) if latest_gpu.exists() else None
    if run and run["gpu_measured"]:
        parts.append(gpu_tables(run))
    else:
        parts.append(
            "The GPU figures are still to be measured, on a machine with a card: `python -m benchmarks.gpu`.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(page(), encoding="utf-8")
    print(f"written to {OUT}")
