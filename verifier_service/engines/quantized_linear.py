"""A linear layer whose weights are held in one byte each.

Knows codes, scales and products; does not know models. Weights are rounded symmetrically for each
output channel: w[n, k] ~ scale[n] * code[n, k], with codes in int8 (-127 to 127) or float8 e4m3
(up to 448). Both kinds of code are exact in bfloat16 and in half precision, and the scale is a
factor of the whole output channel: so a layer is one product of the input with the codes, summed
in float32, whose outputs are scaled. Inputs are never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verifier_service.engines.quantized_kernel import weight_only_product


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are rounded: codes of `dtype`, up to `largest` in magnitude."""

    name: str
    dtype: torch.dtype
    largest: float


INT8 = Scheme("int8", torch.int8, 127.0)
FP8 = Scheme("fp8", torch.float8_e4m3fn, torch.finfo(torch.float8_e4m3fn).max)


class QuantizedLinear(nn.Module):
    """y = x (scale * codes)^T + bias; x [..., in] float -> [..., out] in x's dtype.

    `weight` [out, in] holds the codes, `scale` [out] is float32. With `fixed_shapes` the product
    takes the same steps for a row whatever number of rows it stands among.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.fixed_shapes = False
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @classmethod
    def of(
        cls,
        linear: nn.Linear,
        scheme: Scheme,
        device: torch.device,
        weights: torch.dtype | None = None,
    ) -> QuantizedLinear:
        """`linear`, moved to `device` and rounded there.

        `weights` is the dtype that the layer would be held in otherwise; it is rounded to that
        first. Raises ValueError where a weight is not finite.
        """
        full = linear.weight.detach().to(device)
        if weights is not None:
            full = full.to(weights)
        codes, scale = round_channels(full, scheme)
        bias = None if linear.bias is None else linear.bias.detach().to(device)
        return cls(codes, scale, bias)

    @classmethod
    def joined(cls, layers: Sequence[QuantizedLinear]) -> QuantizedLinear:
        """One layer whose output is that of all, side by side.

        The layers' own codes become views of the joined ones: one copy in memory, and all run.
        """
        bias = None
        if any(layer.bias is not None for layer in layers):
            parts = [
                layer.bias if layer.bias is not None else layer.scale.new_zeros(layer.out_features)
                for layer in layers
            ]
            bias = torch.cat(parts)
        together = cls(
            torch.cat([layer.weight for layer in layers]),
            torch.cat([layer.scale for layer in layers]),
            bias,
        )
        together.fixed_shapes = any(layer.fixed_shapes for layer in layers)
        begin = 0
        for layer in layers:
            end = begin + layer.out_features
            layer.weight = together.weight[begin:end]
            layer.scale = together.scale[begin:end]
            begin = end
        return together

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y = weight_only_product(rows, self.weight, self.scale, self.fixed_shapes)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def dequantized(self) -> Tensor:
        """The weights [out, in] that this layer stands for, float32."""
        return self.weight.float() * self.scale.unsqueeze(1)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def round_channels(weight: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Codes [out, in] and scales [out] float32 of weights [out, in].

    Raises ValueError where a weight is not finite: a code would silently stand for something else.
    """
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    if not bool(largest.isfinite().all()):
        raise ValueError("a weight is infinite or not a number")
    # A channel of zeros, or one too small to divide by, has zeros for codes under any scale.
    scale = largest / scheme.largest
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scaled = wide / scale.unsqueeze(1)
    if not scheme.dtype.is_floating_point:
        scaled = scaled.round()
    return scaled.clamp(-scheme.largest, scheme.largest).to(scheme.dtype), scale
