"""Tables of measurements beside speed: on a GPU, at real size, Jacobians by other ways, of the checks."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import UNFORMED_GOALS, judged
from benchmarks.tables import NB, STAGE_NAMES, STAGES, goals_table, machine_line, power, seconds, table
from coupling_lib.svd.operators import NARROW_COST

CLOSED_FORM_GAIN = 1.2
"""Speed-up of a whole prompt from which closed-form Jacobians would be adopted."""


def gpu_tables(run: dict[str, Any]) -> str:
    """Tabulate a run of `gpu.py`."""
    peak = run["matrix_peak"]["float32"]
    ours = [_gpu_row(prompt, peak) for prompt in run["prompts"]]
    narrow = [(n, *cells) for n, _, *cells, _, _ in (_gpu_row(one, peak) for one in run["nf4"]["prompts"])]
    whole = {p["n"]: p["seconds"]["total"] for p in run["prompts"] if p["arithmetic"] == "float32"}
    theirs = [
        (
            str(p["n"]),
            f"{p['dtype']}, {p['attention']}",
            p["basis"],
            *(seconds(p["seconds"][s]) for s in STAGES),
            f"{p['seconds']['total'] / whole[p['n']]:.0f}×",
        )
        for p in run["released"]
    ]
    same = [(one["precision"], power(one["error"])) for one in run["precisions"]]
    times = [p["seconds"]["total"] / whole[p["n"]] for p in run["released"]]
    columns = "TFLOP/s | of float32 peak | memory above weights"
    peaks = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in run["matrix_peak"].items())
    model, weights = run["model"], run["nf4"]["weights"]
    held = f" and {weights / 1e9:.1f}{NB}GB of the card" if weights else ""
    parts = [
        f"A prompt takes this library {seconds(min(whole.values()))} to {seconds(max(whole.values()))} in float32, and "
        f"the released method {min(times):.0f} to {max(times):.0f} times as long.\n",
        machine_line(run["machine"]),
        f"{model['shape']}, d = {model['d']}, L = {model['L']}, weights {model['weights']}; matrix peak {peaks}. "
        "About half of the operations of complete products are not done, as above; the rates count those that are.\n",
        table(f"n | arithmetic | {STAGE_NAMES} | {columns} | J off by | values off by", ours),
        f"With weights in nf4, drawn in {seconds(run['nf4']['seconds_to_draw'])}{held}:\n",
        table(f"n | {STAGE_NAMES} | {columns}", narrow),
        "The released method, and how many times as long as this library in float32 it takes:\n",
        table(f"n | dtype, attention | basis | {STAGE_NAMES} | times", theirs),
        "### The same numbers on the card\n",
        "With weights in nf4, the card gives the processor's Jacobians to the rounding of float32. In bfloat16 and "
        "int8 it does not: states are rounded there, and a card sums them in another order.\n",
        table("precision | J of `nano-neox` off by, worst block", same),
    ]
    if families := run.get("families"):
        parts.append(
            f"Of {families['number']} tested families, tiny and random, Jacobians in float32 on the card are at most "
            f"{power(families['float32'])} from brute force in float64 on the processor. Command: "
            "`python tests/support/on_a_card.py`.\n"
        )
    return "\n".join([*parts, *run.get("notes", [])])


def _gpu_row(prompt: dict[str, Any], peak: float) -> tuple[str, ...]:
    return (
        str(prompt["n"]),
        prompt["arithmetic"],
        *(seconds(prompt["seconds"][stage]) for stage in STAGES),
        f"{prompt['jacobian_flop_per_second'] / 1e12:.3g}",
        f"{prompt['jacobian_flop_per_second'] / peak:.0%}",
        "" if prompt["memory_above_weights"] is None else f"{prompt['memory_above_weights'] / 1e9:.2f}{NB}GB",
        *("" if prompt[name] is None else power(prompt[name]) for name in _ERRORS),
    )


_ERRORS = ("jacobian_error", "metric_difference_from_float32")
_PEAKS = {"peak_own": "of its own", "peak_resident": "with mapped files"}


def real_size_row(run: dict[str, Any]) -> tuple[str, ...]:
    """Tabulate a run of `real_size.py` as a row of a table."""
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


def of_products(runs: list[dict[str, Any]], unformed: dict[str, Any] | None) -> str:
    """Describe what records without formed Jacobians lack, and its cost as far as it was measured."""
    which = " and ".join(run["parameters"]["precision"] for run in runs if not run["formed"])
    paragraph = (
        f"The run in {which} multiplied with Jacobians and did not form them. The notebook forms them, because the "
        "traceless part of coupling needs their trace. `python -m benchmarks.real_size` makes the record anew."
    )
    for case in unformed["cases"] if unformed else ():
        if (case["d"], case["k"]) == (4096, 10):
            longer = 2 * case["L"] * (case["seconds"]["formed"] - case["seconds"]["products"]) / 60
            paragraph += f" By the table below that takes {longer:.0f} minutes longer for both networks."
    return f"{paragraph}\n"


def unformed_tables(run: dict[str, Any]) -> list[str]:
    """Tabulate a run of `unformed.py`."""
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
    head = "model | d | K | forming | products | of forming | less time by the rule | basis | values differ by"
    paragraph = (
        "Coupling across depth needs K singular triplets of each Jacobian and its products with the vectors of all "
        "blocks. Either every Jacobian is formed, or it is only multiplied with. The two layers of a gated MLP are "
        "merged for both; with *gates apart* each is multiplied with by itself, as before they were merged. The table "
        "has seconds a block; the ways take turns. *Basis* is how many columns the triplets needed in the blocks "
        "measured; two products add 16. That depends on the spectrum. "
        f"A product of 16 columns waits for the weights: a column of it takes some {NARROW_COST} times as long "
        "as one of hundreds. `measure_depth` forms each Jacobian, because the traceless part needs its trace; products "
        "alone are `formed=False`, and `BlockJacobian.svd` takes what takes less time by its rule.\n"
    )
    parts = ["### Without forming the Jacobians\n", machine_line(run["machine"]), paragraph, table(head, rows)]
    return [*parts, goals_table(outcomes)] if (outcomes := judged(run, UNFORMED_GOALS)) else parts


def closed_form_table(run: dict[str, Any]) -> list[str]:
    """Tabulate a run of `closed_form.py`, and write the decision of the rule."""
    rows = [
        (
            case["shape"] if case["L"] > 2 else f"{case['shape']}, {case['L']} blocks",
            str(case["d"]),
            *(f"{case['flop'][way] / 1e9:.3g}" for way in ("pulled", "written")),
            *(seconds(case["seconds"][way]["jacobians"]) for way in ("pulled", "written")),
            *(f"{case['gain'][part]:.2f}×" for part in ("jacobians", "total")),
            power(case["difference"]),
        )
        for case in run["cases"]
    ]
    head = "model | d | GFLOP per block, pulled back | … written down | Jacobians, pulled back | … written down | gain"
    enough = all(case["gain"]["total"] >= CLOSED_FORM_GAIN for case in run["cases"])
    paragraph = (
        "A block of GPT-2's or Llama's kind has a {term}`Jacobian` that can be written down: attention's, the MLP's "
        "and their product. That takes fewer products than pulling cotangents back, but it has to be written for every "
        "family anew, and this library takes any. The ways take turns on prompts of "
        f"{run['cases'][0]['n']} tokens. The rule, made before the measurement: it is taken if a whole prompt gains at "
        f"least {CLOSED_FORM_GAIN} times at each of these widths. {'It is taken' if enough else 'It is not taken'}.\n"
    )
    return [
        "### In closed form\n",
        machine_line(run["machine"]),
        paragraph,
        table(f"{head} | gain of a prompt | J differs by", rows),
    ]


def lens_table(run: dict[str, Any]) -> list[str]:
    """Tabulate a run of `lens.py`."""
    rows = [
        (
            case["shape"],
            *(str(case[name]) for name in ("d", "n")),
            *(f"{case['flop'][way] / 1e12:.2g}" for way in ("own", "fit")),
            f"{case['ratio']['flop']:.0f}×",
            *(seconds(case["seconds"][way]) for way in ("own", "fit")),
            f"{case['ratio']['seconds']:.0f}×",
        )
        for case in run["cases"]
    ]
    paragraph = (
        "One token's own lens at every depth (chapter *Lenses*), beside the passes backwards through the whole "
        "model that fit one with futures, sixteen side by side.\n"
    )
    head = "model | d | n | TFLOP, own lens | passes backwards | ratio | time, own lens | passes backwards | ratio"
    return ["### Lenses\n", machine_line(run["machine"]), paragraph, table(head, rows)]


def peers_table(run: dict[str, Any]) -> list[str]:
    """Tabulate a run of `peers.py`, every ratio of every case."""
    rows = [
        (
            case["what"],
            case["shape"],
            case["peer"],
            *(seconds(case["seconds"][who]) for who in ("theirs", "ours")),
            ", ".join(f"{ratio:.3g}" for ratio in case["ratios"]),
            *(f"{case['memory'][who] / 1e6:.0f}{NB}MB" for who in ("theirs", "ours")),
            power(case["difference"]),
        )
        for case in run["cases"]
    ]
    paragraph = (
        "Each peer and this library take turns in one process, and compute the same numbers. Times are medians; "
        "ratios are those of every round. The released method measures the whole Jacobian alone, this library its "
        "traceless part as well. curvlinops multiplies with any function's Jacobian, here with a block's, through the "
        "whole sequence.\n"
    )
    head = "what | model | peer | its time | ours | times as long, by round | its memory | ours | values differ by"
    return ["### Beside its peers\n", machine_line(run["machine"]), paragraph, table(head, rows)]


def checks_table(run: dict[str, Any]) -> list[str]:
    """Tabulate a run of `checks.py`."""
    rows = [
        (
            case["shape"],
            str(case["d"]),
            seconds(case["seconds"]["load"]),
            # A run of before there were any has none.
            *((seconds(case["seconds"]["central"]), f"{case['slower']:.1%}") if "slower" in case else ("", "")),
            *(seconds(case["seconds"][what]) for what in ("bare", "hooked")),
            f"{1 + case['added']:.1f}×",
        )
        for case in run["cases"]
    ]
    checked = "check at load | of that central differences | loading is slower by"
    head = f"model | d | {checked} | Jacobians of a prompt | with a hook on every block | times as long"
    paragraph = (
        "Blocks are compared with plain autograd when a model is loaded, and one of each kind with central differences "
        "of its forward in float64. A block on which a hook stands is compared "
        "again: once a trace, and once for each pair of tokens.\n"
    )
    return ["### Checks\n", machine_line(run["machine"]), paragraph, table(head, rows)]
