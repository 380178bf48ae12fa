"""Linear layers for small batches on a CPU.

Knows matrix products; does not know models. A decode step multiplies few rows by every weight, so
it is bound by reading weights, and torch's own product for 2 to 32 rows reads them at a fraction
of the memory's speed. Two packed products do better:

- `half`: weights in half precision, activations and sums in float32 (FBGEMM). bfloat16 weights fit
  exactly where their magnitude is between 2^-14 and 65,504; smaller ones lose at most 2^-25. A
  row's result does not depend on the rows beside it.
- `float`: weights stay float32, in blocks prepared by MKL for the product.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch
from torch import Tensor, nn

_HALF_MAX = torch.finfo(torch.float16).max


class HalfLinear(nn.Module):
    """y = x W^T + b with W packed in half precision and everything else in float32."""

    packed: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        """`dtype` is what the weights are rounded to before they are packed."""
        super().__init__()
        weight = linear.weight.detach().to(dtype).float().contiguous()
        self.out_features = weight.shape[0]
        self.register_buffer(
            "packed",
            torch.ops._quantized.wrapped_fbgemm_pack_gemm_matrix_fp16(weight),
            persistent=False,
        )
        bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach()
        self.register_buffer("bias", bias.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops._quantized.wrapped_fbgemm_linear_fp16_weight(
            x.reshape(-1, x.shape[-1]), self.packed, self.bias, self.out_features
        )
        return y.view(*x.shape[:-1], self.out_features)


class FloatLinear(nn.Module):
    """y = x W^T + b with W in MKL's packed float32 form."""

    weight: Tensor
    packed: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float().contiguous()
        # The operator asks for the plain weight as well, and uses it only while packing.
        self.register_buffer("weight", weight, persistent=False)
        # MKL takes the number of rows as a hint; other numbers work too.
        self.register_buffer(
            "packed", torch.ops.mkl._mkl_reorder_linear_weight(weight, _ROWS_HINT), persistent=False
        )
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = torch.ops.mkl._mkl_linear(
            rows, self.packed, self.weight, self.bias, rows.shape[0]
        )
        return y.view(*x.shape[:-1], self.weight.shape[0])


_ROWS_HINT = 8


def pack_linears(model: nn.Module, dtype: torch.dtype) -> str:
    """Replace every nn.Linear of a float32 model by a packed one; returns the kind in words.

    `dtype` is the precision that weights are to be held in: half-size for bfloat16 and float16,
    float32 otherwise. Layers whose weights exceed half precision's range, and all layers on a
    processor without the kernels, keep torch's own product.
    """
    pack: Callable[[nn.Linear], nn.Module | None]
    if dtype in (torch.bfloat16, torch.float16) and _has_half_kernel():
        name = "half-precision weights (FBGEMM), float32 sums"

        def pack(linear: nn.Linear) -> nn.Module | None:
            fits = float(linear.weight.detach().abs().max()) <= _HALF_MAX
            return HalfLinear(linear, dtype) if fits else None

    elif torch.backends.mkl.is_available():
        name, pack = "float32 weights (MKL)", FloatLinear
    else:
        return "torch's own products"
    kept = _replace(model, pack)
    return name if not kept else f"{name}; {kept} layers keep torch's own products"


def _replace(module: nn.Module, pack: Callable[[nn.Linear], nn.Module | None]) -> int:
    """Pack what can be packed below `module`; how many layers could not."""
    kept = 0
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            packed = pack(child)
            if packed is None:
                kept += 1
            else:
                setattr(module, name, packed)
        else:
            kept += _replace(child, pack)
    return kept


def _has_half_kernel() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and "fbgemm" in (
        torch.backends.quantized.supported_engines
    )
