"""Estimated cost of a sweep before it runs: operations, hours, memory and disk of every job, and files already stored.

    python -m workflow.plan CONFIG

The figures follow from depth, width and parameters in `data/models.csv`. They are estimates, good to about a factor of
two for coupling across depth; the hours are at the rate that is named, and of a card one has to say it (`flops`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import machine
from companion.notebook.choices import chosen_prompts
from coupling_lib import store
from coupling_lib.blocks import weight_memory
from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.models import registry, sources
from coupling_lib.store.key import plain_settings
from coupling_lib.store.sweep import in_shard, prompt_numbers
from coupling_lib.svd.operators import NARROW_COST, product_columns
from workflow.records import run_command, write
from workflow.settings import MEASURES, read

# Python with its libraries, and how much more than the estimate a scheduler is asked for.
_LIBRARIES, _SPARE, _SLOWER = 1.5e9, 1.3, 4
_TOKENS_PER_LETTER = 0.25
_UNKNOWN = float("nan")


def estimate(plan: dict[str, Any]) -> pd.DataFrame:
    """Estimate every shard of every job, one row each; a job keeps as many shards as have something to measure."""
    rate = plan["flops"] or measured_rate()
    rows = []
    for name, job in plan["jobs"].items():
        prompts = chosen_prompts(job["prompts"], job["seed"])
        kept, given = stored(plan, job), [prompt.text for prompt in prompts]
        job["shards"] = min(job["shards"], max(prompt_numbers(given)) + 1)
        for number in range(1, job["shards"] + 1):
            shard = f"{number}/{job['shards']}"
            texts = [text for _, text in in_shard(given, shard)]
            left = [text for text in texts if text not in kept.index]
            tokens = [_TOKENS_PER_LETTER * len(text) for text in left]
            work, longer = (sum(operations(job, n, as_long) for n in tokens) for as_long in (1, NARROW_COST))
            each = kept["bytes"].mean() if len(kept) else record_bytes(job)
            row = {"job": name, "shard": shard, "prompts": len(texts), "stored": len(texts) - len(left), "flop": work}
            row |= {"hours": longer / rate / 3600, "memory": memory(job), "disk": each * len(left)}
            rows.append(row)
    return pd.DataFrame(rows)


def operations(job: Mapping[str, Any], n_tokens: float, as_long: float = 1) -> float:
    """Estimate the floating-point operations of one prompt; few products at once may take several times as long."""
    L, d, block = shape(job)
    forward = 2 * block * L * n_tokens
    if job["measure"] == "trajectories":
        return forward
    k = _largest_k(job)
    if not _forms(job):
        return forward + L * 2 * block * product_columns(k, L, as_long)
    # The Jacobian of a block pulls d cotangents back; each is multiplied with the vectors of every block.
    return forward + L * 2 * block * d + L * L * 2 * d * d * k


def memory(job: Mapping[str, Any]) -> float:
    """Estimate the memory of a job in bytes: weights, the float32 copy of a block, the Jacobians that are formed."""
    L, d, block = shape(job)
    entry = registry.lookup(job["model"])
    total = entry.parameters_b * 1e9 if entry and entry.parameters_b else block * L
    each = weight_memory.bytes_per_weight(job["precision"])
    held = weight_memory.parse(job["memory"]) if job["memory"] else each * total
    return _LIBRARIES + held + 4 * block + 4 * L * d * (d if _forms(job) else 2 * _largest_k(job))


def _largest_k(job: Mapping[str, Any]) -> int:
    return max([*job["settings"].get("ks", []), job["settings"].get("k", 0)]) or 50


def _forms(job: Mapping[str, Any]) -> bool:
    """Return whether a job forms Jacobians; it does unless `formed` is false."""
    return job["settings"].get("formed") is not False


def weights_bytes(model: Mapping[str, Any]) -> float:
    """Estimate the disk space that fetching a model takes; 0 where it is on the disk."""
    folder, entry = sources.find_local(model["model"])
    if folder is not None:
        return 0.0
    # Published weights take two bytes each.
    return entry.parameters_b * 2e9 if entry and entry.parameters_b else _UNKNOWN


def record_bytes(job: Mapping[str, Any]) -> float:
    """Estimate the file size of one prompt of coupling across depth, where none is stored yet."""
    L, d, _ = shape(job)
    ks = len(job["settings"].get("ks", [0]))
    return 4 * (len(VARIANTS) * ks * L * (L + 1) + L * d)


def shape(job: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return blocks, width and weights of a block; NaN where they are not recorded."""
    entry, config = registry.lookup(job["model"]), Path(job["model"]) / "config.json"
    if entry and entry.blocks and entry.width:
        L, d = entry.blocks, entry.width
        # Embeddings counted with the blocks would be half of a small model.
        return L, d, min(entry.parameters_b * 1e9 / L, 20.0 * d * d) if entry.parameters_b else 12.0 * d * d
    known = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    L, d = known.get("num_hidden_layers", _UNKNOWN), known.get("hidden_size", _UNKNOWN)
    return L, d, 12.0 * d * d


def stored(plan: Mapping[str, Any], job: Mapping[str, Any]) -> pd.DataFrame:
    """List the files of a job in the store, by prompt."""
    table = _listing(plan["store"])
    alike = (table["measure"] == job["measure"]) & (table["version"] == job["version"])
    alike &= (table["precision"] == job["precision"]) & (table["untrained"] == int(job["untrained"]))
    alike &= table["model"].isin([job["model"], getattr(registry.lookup(job["model"]), "alias", "")])
    last = sources.training_record(sources.find_local(job["model"])[0]).get("steps")
    alike &= table["revision"].isin([job["revision"]] if job["revision"] else ["", "main", f"step{last}"])
    if job["untrained"]:
        alike &= table["seed"] == job["seed"]
    wanted, width = plain_settings(MEASURES[job["measure"]], job["settings"]), shape(job)[1]
    if "ks" in wanted:  # those by default are as many as a model is wide
        wanted["ks"] = [k for k in wanted["ks"] if k <= width] or wanted["ks"]
    same = [json.loads(text) == wanted for text in table["settings"]]
    return table[alike & np.array(same, dtype=bool)].drop_duplicates("prompt").set_index("prompt")


@cache
def _listing(root: str) -> pd.DataFrame:
    return store.listing(root=root)


@cache
def measured_rate() -> float:
    """Measure the operations per second of a matrix product on this machine."""
    return machine.matrix_rate(1024)


def table(plan: dict[str, Any], rows: pd.DataFrame) -> str:
    """Write the plan for readers."""
    lines = [f"sweep {plan['name']}: {len(plan['weights'])} models, {len(plan['jobs'])} jobs in {len(rows)} shards, "
             f"{len(plan['figures'])} figures"]  # fmt: skip
    source = "as configured" if plan["flops"] else "of one matrix product, measured here"
    lines += [f"at {(plan['flops'] or measured_rate()) / 1e9:,.0f} GFLOP/s ({source})", ""]
    for name, model in plan["weights"].items():
        need = weights_bytes(model)
        lines.append(f"  fetch    {name}: {'at hand' if need == 0 else _size(need) + ' of weights'}")
    for row in rows.itertuples():
        time_needed = "unknown time" if math.isnan(row.hours) else "nothing to do" if row.prompts == row.stored else (
            f"{_flop(row.flop)}, {duration(row.hours * 3600)}")  # fmt: skip
        lines.append(f"  measure  {row.job} {row.shard}: {row.prompts} prompts, {row.stored} stored; {time_needed}; "
                     f"{_size(row.memory)} of memory, {_size(row.disk)} of disk")  # fmt: skip
    lines += [f"  figure   {name}" for name in plan["figures"]] + ["  book"] * plan["book"]
    total = rows["hours"].sum(skipna=False) * 3600
    left, disk = int((rows["prompts"] - rows["stored"]).sum()), rows["disk"].sum(skipna=False)
    long = "unknown time (a model's size is not known)" if math.isnan(total) else duration(total) if left else "no time"
    return "\n".join([*lines, "", f"in all {left} prompts to measure: {long} on one machine, {_size(disk)} of disk"])


def for_the_scheduler(plan: dict[str, Any], rows: pd.DataFrame) -> None:
    """Set the memory and the minutes that a scheduler is asked for in every job."""
    for name, job in plan["jobs"].items():
        mine = rows[rows["job"] == name]
        need, hours = mine["memory"].max(), mine["hours"].max()
        # Where they are unknown, nothing is asked for: the scheduler's default applies.
        job["mem_mb"] = None if math.isnan(need) else math.ceil(_SPARE * need / 1e6)
        job["minutes"] = None if math.isnan(hours) else math.ceil(15 + _SLOWER * 60 * hours)


def duration(seconds: float) -> str:
    """Format a time for readers."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _flop(count: float) -> str:
    for unit, factor in (("PFLOP", 1e15), ("TFLOP", 1e12)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1e9:,.1f} GFLOP"


def _size(size: float) -> str:
    return "an unknown amount" if math.isnan(size) else weight_memory.gb(int(size))


def _run(config: str, out: str) -> str:
    """Print what a sweep will take, and with --out write the plan that Snakemake works through."""
    plan = read(config)
    try:
        rows = estimate(plan)
    except ParameterError as error:
        raise CouplingError(f"{Path(config).name}: {error}") from None
    for_the_scheduler(plan, rows)
    if out:
        write(Path(plan["root"]) / "plan.json" if out == "-" else Path(out), plan)
    return table(plan, rows)


if __name__ == "__main__":
    sys.exit(run_command(_run, "plan", config=None, out=""))
