"""Quantization-aware training: products rounded as the int8 engines round them.

Each output's weights have one scale, and each token's activations. The gradient ignores the
rounding (the straight-through estimator; Bengio et al., 2013; Jacob et al., "Quantization and
Training of Neural Networks", 2018).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from peft.tuners.lora import Linear
from torch import nn
from torch.nn import functional

_WEIGHT_STEPS = 64
_ACTIVATION_STEPS = 127
"""As `preparation.quantize` has them: its weights leave a bit free, its activations none."""


def round_products(model: nn.Module) -> None:
    """Makes every adapted layer round its factors in training mode."""
    for layer in model.modules():
        if isinstance(layer, Linear):
            rounding = functools.partial(_product, layer, layer.forward)
            layer.forward = rounding  # type: ignore[method-assign]


def _product(
    layer: Linear, exact: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor
) -> torch.Tensor:
    if not layer.training:
        return exact(states)
    base = layer.get_base_layer()
    assert isinstance(base, nn.Linear)
    weight = rounded(base.weight + layer.get_delta_weight("default"), _WEIGHT_STEPS)
    return functional.linear(rounded(states, _ACTIVATION_STEPS), weight, base.bias)


def rounded(values: torch.Tensor, steps: int) -> torch.Tensor:
    """Rounds float [..., columns] to `steps` steps from zero to each row's largest value."""
    with torch.no_grad():
        scale = values.detach().abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / steps
        error = (values / scale).round_().mul_(scale).sub_(values)
    return values + error
