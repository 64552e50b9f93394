"""Column heads of the tables in notebooks, in words."""

import pandas as pd

# Tables are shown whole: the longest has a row for each model.
pd.set_option("display.max_rows", 200)

_NULLS = {
    f"c_{short}_{column}": f"coupling, {name}, {words}"
    for short, name in {"norm": "normalised", "trace": "released trace"}.items()
    for column, words in {
        "trained": "trained", "untrained": "untrained", "null": "by chance", "null_error": "by chance, standard error",
    }.items()
}  # fmt: skip
HEADS = _NULLS | {
    "c_digitised": "coupling, digitised from the paper",
    "c_flat": "coupling by chance, flat spectrum",
    "n": "number",
    "low": "95 % from",
    "high": "95 % to",
    "r_low": "r, 95 % from",
    "r_high": "r, 95 % to",
    "r_squared": "R²",
    "p_holm": "p, Holm",
    "partial": "partial r",
    "partial_p": "p of partial r",
    "error": "standard error",
    "freedom": "degrees of freedom",
    "spearman": "Spearman's ρ",
    "sd_coupling": "SD of coupling left",
    "sd_score": "SD of score left",
    "explains_coupling": "of coupling explained",
    "explains_score": "of score explained",
    "says": "given",
    "p_families": "p, families",
    "wins": "draws won by the exponential",
    "seeds": "draws",
    "trace": "coupling, released trace",
    "normalized": "coupling, normalised",
}


def headed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its column heads in words."""
    return table.rename(columns=lambda name: HEADS.get(name, str(name).replace("_", " ")))
