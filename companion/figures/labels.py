r"""How mismatches are written in figures; $A=U_{l',K}^\top J_l V_{l',K}$, and $S_{l,K}$ holds singular values of $J_l$.

*Mis-coupling* looks beside the diagonal, *mismatch* at singular values. *Coupling* is 1 minus one of those below; the
unnormalised mis-coupling carries the units of the Jacobian and has none.
"""

from coupling_lib.errors import ParameterError

MISMATCHES = {
    "normalized_miscoupling": (r"\tilde m", r"\Vert A-\mathrm{Diag}\,A\Vert_F\,/\,\Vert A\Vert_F"),
    "mismatch": (r"m_K", r"\Vert A-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_2"),
    "mismatch_trace": (r"m_{K,1}", r"\Vert A-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_1"),
    "released_norm": (r"m_\mathrm{norm}", r"\Vert\,|A|-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_2"),
    "released_trace": (r"m_\mathrm{trace}", r"\Vert\,|A|-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_1"),
}
"""Symbol and formula of each mismatch whose 1 - m is a coupling."""


def symbol_and_formula(variant: str) -> tuple[str, str]:
    """Return how a mismatch is written in labels."""
    if variant not in MISMATCHES:
        raise ParameterError(f"variant is {variant!r}; it must be one of {', '.join(MISMATCHES)} to be drawn")
    return MISMATCHES[variant]


def coupling_label(variant: str, k: int) -> str:
    """Return the label of an axis of coupling."""
    return rf"coupling $1-{symbol_and_formula(variant)[0]}$  $(K={k})$"


def mismatch_label(variant: str, k: int, formula: bool = True) -> str:
    """Return the label of an axis of a mismatch: its name, its symbol and, unless there is no room, its formula."""
    symbol, written = symbol_and_formula(variant)
    name = "mis-coupling" if "miscoupling" in variant else "mismatch"
    return f"{name} ${symbol}{f'={written}' if formula else ''}$,  $K={k}$"
