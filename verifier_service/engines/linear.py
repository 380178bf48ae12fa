"""Linear layers for small batches on a CPU.

Knows matrix products; does not know models. A decode step multiplies few rows by every weight, so
it is bound by reading weights, and torch's own product for 2 to 32 rows reads them at a fraction
of the memory's speed. Two packed products do better:

- `half`: weights in half precision, activations and sums in float32 (FBGEMM). bfloat16 weights fit
  exactly where their magnitude is between 2^-14 and 65,504; smaller ones lose at most 2^-25. A
  row's result does not depend on the rows beside it.
- `float`: weights stay float32, in blocks prepared by MKL for the product.

Quantised layers take the first of these for their codes, which half precision holds exactly.
"""

from __future__ import annotations

import platform
from abc import abstractmethod
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from verifier_service.engines import half_product
from verifier_service.engines.quantized_linear import QuantizedLinear

_HALF_MAX = torch.finfo(torch.float16).max


class PackedLinear(nn.Module):
    """y = x W^T + b with W packed for the processor; `product` is the subclass's.

    Packed weights are no ordinary tensors, so torch.compile is shown an operator of ours that
    finds the layer by a handle.
    """

    handle: Tensor

    def __init__(self, linear: nn.Linear | QuantizedLinear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.register_buffer("handle", torch.tensor(id(self)), persistent=False)
        _layers[id(self)] = self

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        if torch.compiler.is_compiling():
            y: Tensor = torch.ops.outrider.packed_linear(rows, self.handle, self.out_features)
        else:
            y = self.product(rows)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], float32."""

    def agrees(self, linear: nn.Linear | QuantizedLinear) -> bool:
        """Whether it computes what `linear` does, for several numbers of rows."""
        for count in (1, 3, 17):
            x = torch.linspace(-1, 1, count * linear.in_features).view(count, -1)
            if not torch.allclose(self.product(x), linear(x), rtol=0.01, atol=0.01):
                return False
        return True


class HalfLinear(PackedLinear):
    """Weights in half precision (FBGEMM), everything else in float32."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        """`dtype` is what the weights are rounded to before they are packed."""
        super().__init__(linear)
        weight = linear.weight.detach().to(dtype).float().contiguous()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def product(self, rows: Tensor) -> Tensor:
        return half_product.half_product(rows, self.packed)


class CodesLinear(PackedLinear):
    """A quantised layer's codes in half precision (FBGEMM); outputs are scaled in float32."""

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__(layer)
        self.packed = torch.ops.quantized.linear_prepack_fp16(layer.weight.float(), None)
        self.scale = layer.scale
        self.bias = None if layer.bias is None else layer.bias.float()

    def product(self, rows: Tensor) -> Tensor:
        y = half_product.half_product(rows, self.packed).mul_(self.scale)
        return y if self.bias is None else y.add_(self.bias)


class FloatLinear(PackedLinear):
    """Weights in MKL's packed float32 form.

    MKL asks for the number of rows while packing. It serves others as well, which its manual does
    not promise: every layer is checked.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        # The operator takes the plain weight too, for row counts it was not told of.
        self.weight = linear.weight.detach().float().contiguous()
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.mkl._mkl_reorder_linear_weight(self.weight, _ROWS_HINT)

    def product(self, rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkl._mkl_linear.default(
            rows, self.packed, self.weight, self.bias, rows.shape[0]
        )
        return y


_ROWS_HINT = 8
_layers: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()


def _packed_linear(rows: Tensor, handle: Tensor, out_features: int) -> Tensor:
    return _layers[int(handle)].product(rows)


def _packed_linear_shape(rows: Tensor, handle: Tensor, out_features: int) -> Tensor:
    return rows.new_empty(rows.shape[0], out_features)


_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("packed_linear(Tensor rows, Tensor handle, int out_features) -> Tensor")
_library.impl("packed_linear", _packed_linear, "CPU")
torch.library.register_fake("outrider::packed_linear", _packed_linear_shape, lib=_library)


# What a packed layer is called with: rows [..., in] -> [..., out].
Product = Callable[[Tensor], Tensor]
Packer = Callable[[nn.Linear | QuantizedLinear], Product]


def packer(dtype: torch.dtype) -> tuple[str, Packer]:
    """How to pack layers whose weights are to be held in `dtype`, and that way's name.

    Layers whose weights exceed half precision's range, and all layers on a processor without the
    kernels, keep torch's own product. Quantised layers are packed as their codes, whatever `dtype`.
    """
    name, pack_plain = _plain_packer(dtype)

    def pack(linear: nn.Linear | QuantizedLinear) -> Product:
        return _pack_codes(linear) if isinstance(linear, QuantizedLinear) else pack_plain(linear)

    return name, pack


def _pack_codes(layer: QuantizedLinear) -> Product:
    if not _has_half_kernel():
        return layer
    packed = CodesLinear(layer)
    return packed if packed.agrees(layer) else layer


def _plain_packer(dtype: torch.dtype) -> tuple[str, Callable[[nn.Linear], Product]]:
    if dtype in (torch.bfloat16, torch.float16) and _has_half_kernel():

        def half(linear: nn.Linear) -> Product:
            if float(linear.weight.detach().abs().max()) > _HALF_MAX:
                return linear
            layer = HalfLinear(linear, dtype)
            return layer if layer.agrees(linear) else linear

        return "half-precision weights (FBGEMM), float32 sums", half
    if torch.backends.mkl.is_available():

        def whole(linear: nn.Linear) -> Product:
            layer = FloatLinear(linear)
            return layer if layer.agrees(linear) else linear

        return "float32 weights (MKL)", whole
    return "torch's own products", lambda linear: linear


def least_rows(dtype: torch.dtype) -> int:
    """The fewest rows that layers packed for `dtype` take as they are; to fewer they add some."""
    halves = dtype in (torch.bfloat16, torch.float16) and _has_half_kernel()
    return half_product.least_rows() if halves else 1


def pack_linears(module: nn.Module, pack: Packer) -> None:
    """Replace every nn.Linear and quantised layer below a float32 module by its packed form."""
    for name, child in module.named_children():
        if type(child) is nn.Linear or isinstance(child, QuantizedLinear):
            setattr(module, name, pack(child))
        else:
            pack_linears(child, pack)


def fuse(*layers: nn.Linear | QuantizedLinear) -> nn.Linear | QuantizedLinear:
    """One layer whose output is theirs side by side; all are quantised or none."""
    quantized = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    if quantized:
        return QuantizedLinear.joined(quantized)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    weight = torch.cat([linear.weight.detach() for linear in linears])
    fused = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    fused.register_parameter("bias", None)
    if any(linear.bias is not None for linear in linears):
        bias = [
            linear.bias.detach() if linear.bias is not None else torch.zeros(linear.out_features)
            for linear in linears
        ]
        fused.bias = nn.Parameter(torch.cat(bias), requires_grad=False)
    return fused


def _has_half_kernel() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and "fbgemm" in (
        torch.backends.quantized.supported_engines
    )
