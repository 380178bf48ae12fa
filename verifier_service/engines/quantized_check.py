"""Whether the products of quantised layers are what their codes say, tried where they will run.

Knows layers and their products; does not know how these are computed. A kernel that a compiler of
another release gets wrong would change the target's distribution, and nobody would be told.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from verifier_service.engines.quantized_kernel import weight_only_product
from verifier_service.engines.quantized_linear import QuantizedLinear

# Rows that take each tile of the kernel, and the way that prefill goes.
TRIED_ROWS = (1, 17, 33, 65, 257)
# Outputs that are compared, from both ends of a layer.
_COMPARED = 256
# Of the largest output: a few roundings of bfloat16. What stands in a wrong place is off by much.
_TOLERANCE = 0.02

WeightOnlyProduct = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def wrong_product(
    module: nn.Module, dtype: torch.dtype, product: WeightOnlyProduct = weight_only_product
) -> str:
    """What is wrong with a quantised layer's products of inputs in `dtype`; empty where nothing is.

    One layer of each shape is tried, on its device.
    """
    tried: set[tuple[int, int]] = set()
    for name, layer in module.named_modules():
        shape = getattr(layer, "out_features", 0), getattr(layer, "in_features", 0)
        if not isinstance(layer, QuantizedLinear) or shape in tried:
            continue
        tried.add(shape)
        for rows in TRIED_ROWS:
            found = _trial(layer, rows, dtype, product)
            if found:
                return f"layer {name}, {rows} rows: {found}"
    return ""


def _trial(
    layer: QuantizedLinear, rows: int, dtype: torch.dtype, product: WeightOnlyProduct
) -> str:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, layer.in_features, generator=generator).to(layer.weight.device, dtype)
    try:
        y = product(x, layer.weight, layer.scale, layer.fixed_shapes)
        error = largest = 0.0
        for part in (slice(None, _COMPARED), slice(-_COMPARED, None)):
            codes, scale = layer.weight[part].float(), layer.scale[part]
            wanted = (x.float() @ codes.T) * scale
            # A maximum of what is not a number is not a number.
            error = max(
                float((y[:, part].float() - wanted).abs().max().nan_to_num(torch.inf)), error
            )
            largest = max(float(wanted.abs().max()), largest)
    except Exception as failure:
        # A compiler or a driver may refuse the kernel in ways of its own.
        return f"the product does not run here: {type(failure).__name__}: {failure}"
    if error <= _TOLERANCE * largest:
        return ""
    return f"the product is off by {error:.3g}, where its largest value is {largest:.3g}"
