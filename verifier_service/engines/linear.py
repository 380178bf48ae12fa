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
from weakref import WeakValueDictionary

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
    """y = x W^T + b with W in MKL's packed float32 form.

    The packed weight is no ordinary tensor and MKL's operator is known to torch.compile only for
    weights that it packed itself, so an operator of our own finds this module by a handle.
    """

    handle: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # MKL's operator takes the plain weight too, for row counts it has not packed for.
        weight = linear.weight.detach().float().contiguous()
        self.packed = [torch.ops.mkl._mkl_reorder_linear_weight(weight, _ROWS_HINT)]
        self.plain = [weight, None if linear.bias is None else linear.bias.detach().float()]
        self.out_features = weight.shape[0]
        self.register_buffer("handle", torch.tensor(id(self)), persistent=False)
        _float_layers[id(self)] = self

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.outrider.float_linear(
            x.reshape(-1, x.shape[-1]), self.handle, self.out_features
        )
        return y.view(*x.shape[:-1], self.out_features)

    def agrees(self, linear: nn.Linear) -> bool:
        """Whether it computes what `linear` does for row counts other than the hint."""
        for rows in (1, 3, 17):
            x = torch.linspace(-1, 1, rows * linear.in_features).view(rows, -1)
            if not torch.allclose(self(x), linear(x), rtol=1e-3, atol=1e-3):
                return False
        return True


# MKL asks for the number of rows while packing. It serves others as well, which its manual does
# not promise: every layer is checked.
_ROWS_HINT = 8
_float_layers: WeakValueDictionary[int, FloatLinear] = WeakValueDictionary()


def _float_linear(x: Tensor, handle: Tensor, out_features: int) -> Tensor:
    layer = _float_layers[int(handle)]
    weight, bias = layer.plain
    y: Tensor = torch.ops.mkl._mkl_linear(x, layer.packed[0], weight, bias, x.shape[0])
    return y


def _float_linear_shape(x: Tensor, handle: Tensor, out_features: int) -> Tensor:
    return x.new_empty(x.shape[0], out_features)


_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("float_linear(Tensor x, Tensor handle, int out_features) -> Tensor")
_library.impl("float_linear", _float_linear, "CPU")
torch.library.register_fake("outrider::float_linear", _float_linear_shape, lib=_library)


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
        name = "float32 weights (MKL)"

        def pack(linear: nn.Linear) -> nn.Module | None:
            layer = FloatLinear(linear)
            return layer if layer.agrees(linear) else None

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
