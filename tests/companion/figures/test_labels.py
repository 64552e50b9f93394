"""How coupling is written in figures."""

import pytest

from companion.figures import labels
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.variants import VARIANTS


def test_coupling_label_has_symbol_and_k():
    assert labels.coupling_label("normalized_miscoupling", 10) == r"coupling $1-\tilde m$  $(K=10)$"
    assert labels.coupling_label("mismatch_trace", 3) == "coupling $1-m_{K,1}$  $(K=3)$"
    assert set(labels.SYMBOLS) < set(VARIANTS)
    message = "variant is 'miscoupling'; it must be one of normalized_miscoupling, mismatch, .* to be drawn"
    with pytest.raises(ParameterError, match=message):
        labels.coupling_label("miscoupling", 3)
    with pytest.raises(ParameterError, match="k is 1; a matrix of one entry is diagonal"):
        labels.coupling_label("normalized_miscoupling", 1)
