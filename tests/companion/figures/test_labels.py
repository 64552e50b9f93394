"""How mismatches are written in figures."""

import pytest

from companion.figures import labels
from coupling_lib.errors import ParameterError


def test_labels_have_name_symbol_formula_and_k():
    written = labels.mismatch_label("normalized_miscoupling", 10)
    assert written.startswith(r"mis-coupling $\tilde m=\Vert A-\mathrm{Diag}\,A") and written.endswith("$K=10$")
    assert labels.mismatch_label("mismatch", 3, formula=False) == "mismatch $m_K$,  $K=3$"
    assert labels.coupling_label("mismatch_trace", 3) == "coupling $1-m_{K,1}$  $(K=3)$"


def test_a_variant_without_a_coupling_is_refused():
    message = "variant is 'miscoupling'; it must be one of normalized_miscoupling, mismatch, .* to be drawn"
    with pytest.raises(ParameterError, match=message):
        labels.coupling_label("miscoupling", 3)
