"""Labels of coupling in figures: 1 minus a mismatch's symbol.

The unnormalised mis-coupling carries the units of the Jacobian and has no coupling.
"""

from coupling_lib.errors import ParameterError

SYMBOLS = {
    "normalized_miscoupling": r"\tilde m",
    "mismatch": "m_K",
    "mismatch_trace": "m_{K,1}",
    "released_norm": r"m_\mathrm{norm}",
    "released_trace": r"m_\mathrm{trace}",
}
"""Symbol of each mismatch m whose 1 - m is a coupling."""


def coupling_label(variant: str, k: int) -> str:
    """Return the label of an axis of coupling."""
    if variant not in SYMBOLS:
        raise ParameterError(f"variant is {variant!r}; it must be one of {', '.join(SYMBOLS)} to be drawn")
    if k < 2 and variant == "normalized_miscoupling":
        raise ParameterError(f"k is {k}; a matrix of one entry is diagonal whatever the blocks do; take k from 2")
    return rf"coupling $1-{SYMBOLS[variant]}$  $(K={k})$"
