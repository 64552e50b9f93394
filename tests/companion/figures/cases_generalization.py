"""Made-up tables of models, with the shape of real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.figures import generalization as figures
from companion.tables.regularised import difference_table, regularised
from coupling_lib.metrics.statistics import width_curve

VARIANTS = ("mismatch", "released_trace", "basis_vv")
LABELS = {"one": ("coupling", "score"), "two": ("relative coupling", "minus loss")}


def make_points(n: int = 8) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    width = np.array([768, 1024, 2048, 2560, 4096, 4096, 5120, 8192])[:n]
    coupling = width_curve(width) + 0.003 * rng.standard_normal(n)
    families = ["GPT-2", "Llama 2", "Llama 3", "Phi", "Gemma (v1)", "Nobody's", "Mistral", "Qwen"][:n]
    return pd.DataFrame(
        {
            "model": [f"model-{i}" for i in range(n)], "family": families, "width": width, "coupling": coupling,
            "score": 30 + 5 * rng.standard_normal(n), "how": "digitised",
        }
    )  # fmt: skip


def make_suite() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for number, (width, blocks) in enumerate([(32, 4), (32, 8), (64, 4), (64, 8), (96, 8)]):
        for step in (32, 100, 600):
            rows.append(
                {
                    "model": f"m{number}", "architecture": ("neox", "llama")[number % 2], "width": width,
                    "blocks": blocks, "parameters": 1000 * width * blocks, "step": step, "tokens": 1024 * step,
                    "final": step == 600, "validation_loss": (loss := 7 - np.log10(step) + 0.1 * rng.random()),
                    "negative_loss": -loss, "accuracy": rng.random(), "coupling": rng.random(),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def make_variants() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = [(name, k, *rng.uniform(-1, 1, 2)) for name in VARIANTS for k in ("5", "10", "tenth")]
    table = pd.DataFrame(rows, columns=["variant", "k", "r", "r_relative"])
    return table.assign(p_holm=[0.01, 0.2, 0.04, 0.05, 1, 0.001, 0.3, 0.02, 0.06])


def make_board() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(20 + 60 * rng.random((7, 6)), columns=list(figures.TASKS))
    table["average"] = table.mean(axis=1)
    table.loc[2, "GSM8K"] = np.nan
    table.loc[3, "ARC"] = np.nan
    names = ["Llama 2", "Llama 2", "Phi", "Gemma (v1)", "Nobody's", "GPT-2", "Qwen"]
    return table.assign(model=[f"b{i}" for i in range(7)], family=names, parameters_b=[7, 13, 2.7, 7, 1, 0.1, 0.5])


def make_shapes() -> dict[str, tuple[list[float], np.ndarray]]:
    x = np.linspace(0.2, 0.9, 9)
    return {"one": (list(x), 3 * x - 1), "two": (list(x[::-1]), np.exp(2 * x[::-1]))}


def make_sign() -> tuple[pd.DataFrame, pd.DataFrame]:
    signs = pd.DataFrame({"step": [32, 600], "r": [0.8, -0.5], "low": [0.6, -0.7], "high": [0.9, -0.2], "models": 9})
    table = pd.DataFrame(
        {"model": "m", "step": [0, 32, 100, 600], "tokens": 1, "validation_loss": [7, 6, 5, 4], "c": [0, 0.3, 0.4, 0.1]}
    )
    return signs, table


RUNS = regularised()
CHANGES = difference_table(RUNS)
CASES = {
    "draw_suite": (figures.draw_suite, lambda n: figures.take_suite(make_suite(), "coupling"), {"marked": "m3"}),
    "draw_leaderboard": (figures.draw_leaderboard, lambda n: figures.take_leaderboard(make_board()), {"marked": "b1"}),
}
"""Each figure: what draws it, what makes its data, and its options; the number of networks changes nothing here."""
