"""What singular triplets satisfy by their definition."""

from typing import Any

import torch


def check_triplets(J: torch.Tensor, found: Any, rtol: float, atol: float, of_values: float = 0.0) -> None:
    """Values of LAPACK in float64; J V = U S and J^T U = V S, relative to s_1; orthonormal vectors; one or a stack."""
    (U, S, Vh), wanted = (part.double() for part in found[:3]), torch.linalg.svdvals(J.double())
    assert {part.dtype for part in found[:3]} == {J.dtype}
    k, J = S.shape[-1], J.double()
    torch.testing.assert_close(S, wanted[..., :k], rtol=rtol, atol=of_values)
    for left in (J @ Vh.mT - U * S[..., None, :], J.mT @ U - Vh.mT * S[..., None, :]):
        assert float((left.norm(dim=-2) / wanted[..., :1]).max()) <= atol
    for basis in (U.mT, Vh):
        assert float((basis @ basis.mT - torch.eye(k)).abs().max()) <= (
            5e-6 if found[0].dtype == torch.float32 else 1e-11
        )
