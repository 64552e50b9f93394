"""Products of 16-bit matrices: rounded once, whatever takes part in the product."""

import pytest
import torch

from coupling_lib.jacobian.bf16_matmul import RoundedProducts

NARROW = [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)]


def matrices(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in [(40, 300), (300, 20), (20,), (300,)])


@pytest.mark.parametrize(("dtype", "rounding"), NARROW)
def test_each_product_is_the_exact_one_rounded_once(dtype, rounding):
    a, b, bias, vector = matrices(dtype)
    exact = a.double() @ b.double()
    batch = torch.stack([a, 2 * a])
    with RoundedProducts():
        found = {
            "mm": (a @ b, exact),
            "bmm": (batch @ torch.stack([b, b]), torch.stack([exact, 2 * exact])),
            "addmm": (torch.addmm(bias, a, b), exact + bias.double()),
            "linear": (torch.nn.functional.linear(a, b.mT, bias), exact + bias.double()),
            "mv": (a @ vector, a.double() @ vector.double()),
        }
    for name, (value, wanted) in found.items():
        assert value.dtype == dtype, name
        # Half a step of the type, and what float32 adds to it.
        assert bool(((value.double() - wanted).abs() <= 0.5 * rounding * 2 * wanted.abs() + 1e-4).all()), name


def test_rounded_products_leave_other_types_alone():
    a, b, *_ = matrices(torch.float32)
    half = a.bfloat16()
    with RoundedProducts():
        assert torch.equal(a @ b, torch.mm(a, b)) and (a.double() @ b.double()).dtype == torch.float64
        assert torch.equal(half + half, 2 * half)
        a, b, *_ = matrices(torch.bfloat16)
        (gradient,) = torch.autograd.grad((a.requires_grad_(True) @ b).sum(), a)
    wanted = b.double().sum(dim=1).expand(40, 300)
    torch.testing.assert_close(gradient.double(), wanted, rtol=2.0**-8, atol=1e-4)
