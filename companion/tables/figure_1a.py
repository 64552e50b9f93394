r"""Relation of coupling and score in the paper's figure 1a beyond the width of its models.

Coupling as plotted follows $1 - 1/\sqrt{\lfloor 0.1\,d\rfloor}$, a curve of the width $d$ alone, and the score rises
with $\log d$ as well. So width has to be removed from *both* before they are compared: the residual of coupling alone
hides (suppresses) its relation to the raw score behind its own to $\log d$.

The form in which width is removed is a choice. The axis follows its own curve, the form required by the
argument; log d, d^-1/2, d, and the curve with log d are shown beside it.

Errors come from leaving out whole families, whose models share data and recipe. A tuned model belongs to the
family of its base (Vicuna to Llama-2); as a family of its own it narrows the interval, so both ways are shown.
"""

import numpy as np
import pandas as pd

from companion.tables.inference import Effect, p_value
from companion.tables.regression import lead_over, r_squared
from companion.tables.statistics import beyond_width, partial_correlation, partial_over, residuals, width_curve
from coupling_lib.datasets.statistics import linear_fit

RIVALS = {"width curve": "width_curve", "log parameters": "log_parameters", "blocks": "blocks"}
"""Rival explanations of the score: label and column of `prepared`."""
_ABOVE = 50


def base_family(family: pd.Series) -> pd.Series:
    """Return the family of each model's base, which is in brackets for a tuned model."""
    return family.str.extract(r"\((.+)\)", expand=False).fillna(family)


def prepared(points: pd.DataFrame) -> pd.DataFrame:
    """Add the variables of the statistics to the points of `generalization.figure_1a`."""
    return points.assign(
        root=base_family(points["family"]),
        log_width=np.log(points["width"]),
        root_width=points["width"] ** -0.5,
        log_parameters=np.log(points["parameters_b"]),
        width_curve=width_curve(points["width"]),
        beyond_width=beyond_width(points["coupling"], points["width"]),
    )


def statistics(points: pd.DataFrame) -> dict[str, float]:
    """Compute correlations and partial correlations among the points of the paper's figure 1a."""
    table = prepared(points)
    coupling, score = table["coupling"], table["score"]
    line = linear_fit(coupling, score)
    good = score > _ABOVE
    top = linear_fit(coupling[good], score[good])
    known = table["average"].notna()
    return {
        "n": float(len(table)),
        "slope": line.slope,
        "intercept": line.intercept,
        "r-squared": line.r_squared,
        "p-value": line.p_value,
        "width-r-squared": r_squared(table["width_curve"], score),
        "parameters-r-squared": r_squared(table["log_parameters"], score),
        "blocks-r-squared": r_squared(table["blocks"], score),
        "curve-r-squared": r_squared(table["width_curve"], coupling),
        "curve-scatter": float(residuals(coupling, table["width_curve"]).std(ddof=1)),
        "log-slope": linear_fit(table["log_width"], np.log(1 - coupling)).slope,
        "above-n": float(good.sum()),
        "above-r-squared": top.r_squared,
        "above-p": top.p_value,
        "registry-n": float(known.sum()),
        "registry-r-squared": r_squared(coupling[known], table["average"][known]),
        "suppressed-r-squared": r_squared(table["beyond_width"], score),
        "suppressor-r": float(np.corrcoef(table["beyond_width"], table["log_width"])[0, 1]),
    }


def subset_table(points: pd.DataFrame) -> pd.DataFrame:
    """Fit the line of figure 1a to subsets of its models (the paper's table 4)."""
    subsets = {
        "all": points,
        "base models": points[points["kind"] == "base"],
        f"score above {_ABOVE}": points[points["score"] > _ABOVE],
        f"score up to {_ABOVE}": points[points["score"] <= _ABOVE],
        "training tokens known": points[points["tokens_t"].notna()],
    }
    lines = {}
    for name, part in subsets.items():
        fit = linear_fit(part["coupling"], part["score"])
        r = float(np.sign(fit.slope)) * fit.r_squared**0.5
        lines[name] = {"n": fit.n, "r": r, "r_squared": fit.r_squared, "p": fit.p_value, "slope": fit.slope}
    return pd.DataFrame.from_dict(lines, orient="index").astype({"n": int})


def partial_table(points: pd.DataFrame) -> pd.DataFrame:
    """Correlate coupling and score with the width of the models held fixed, by form and by subset."""
    table = prepared(points)
    shared = table[table.groupby("width")["width"].transform("size") > 1]
    base = table[table["kind"] == "base"]
    each = pd.get_dummies(shared["width"], drop_first=True)
    width, size, curve = ["log_width"], ["log_width", "log_parameters"], ["width_curve"]
    ways = {
        "curve": ("the curve of width that explains the axis", table, "coupling", table[curve]),
        "root": ("d to the power of -1/2", table, "coupling", table[["root_width"]]),
        "linear": ("d", table, "coupling", table[["width"]]),
        "curve-and-log": ("the curve and log width", table, "coupling", table[[*curve, *width]]),
        "curve-base": ("the curve, base models alone", base, "coupling", base[curve]),
        "width": ("log width", table, "coupling", table[width]),
        "family": ("log width; tuned models as families of their own", table, "coupling", table[width]),
        "mismatch": ("log width; (1 - c) sqrt(0.1 d) in place of coupling", table, "beyond_width", table[width]),
        "parameters": ("log width and log parameters", table, "coupling", table[size]),
        "base": ("log width, base models alone", base, "coupling", base[width]),
        "within": ("width itself, where several models have it", shared, "coupling", each),
    }
    lines = {
        name: {"says": description} | _partial(part, x, given, part["family" if name == "family" else "root"])
        for name, (description, part, x, given) in ways.items()
    }
    return pd.DataFrame.from_dict(lines, orient="index")


def _partial(table: pd.DataFrame, x: str, given: pd.DataFrame, root: pd.Series) -> dict[str, float]:
    """Return the partial correlation of column x and score, with its error over families."""
    values, score = table[x].to_numpy(dtype=float), table["score"].to_numpy(dtype=float)
    given, root = given.to_numpy(dtype=float), root.to_numpy()
    found, over = partial_correlation(values, score, given), partial_over(values, score, given, root)
    kept = [root != family for family in np.unique(root)]
    without = [partial_over(values[rows], score[rows], given[rows]).value for rows in kept]
    line = {"n": len(table), "r": found.r, "p": found.p_value, "low": over.low, "high": over.high}
    line |= {"error": over.error, "freedom": over.freedom, "families": over.n, "p_families": p_value(over)}
    return line | {"least": min(without), "most": max(without)}


def gains(points: pd.DataFrame) -> dict[str, Effect]:
    """Compute how much better coupling explains the score than each rival: the difference of two R²."""
    table = prepared(points)
    own, score, root = table["coupling"], table["score"], table["root"]
    return {label: lead_over(own, table[column], score, root) for label, column in RIVALS.items()}
