"""What bitsandbytes' int8 layers stand for: their weights, and the product in which activations are rounded as well."""

import torch
from torch import nn


def weights(layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Give the matrix that an int8 layer stands for: one scale a row."""
    scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
    return layer.weight.data.to(dtype) * (scale.to(dtype) / 127).unsqueeze(1)


def product(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Multiply rows as an int8 layer should: rounded to 8 bits a row, but for columns in which an outlier stands."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, half = x.to(wide), x.to(torch.float16).to(wide)
    outliers = half.abs() >= (layer.state.threshold or torch.inf)
    apart = outliers.any(dim=0)
    largest = half.masked_fill(outliers, 0).abs().amax(dim=1, keepdim=True)
    rounded = (half * (127 / largest)).round() * (largest / 127)
    bias = None if layer.bias is None else layer.bias.to(wide)
    return nn.functional.linear(torch.where(apart, x, rounded), weights(layer, wide), bias)
