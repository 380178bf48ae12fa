"""Which layers get our products for steps of few rows: those they suit, where they are right.

Knows layers and devices; does not know tiles or steps. A device on which ours does not compute what
torch's does, or does not compile, keeps torch's, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from verifier_service.engines.fused import Gated
from verifier_service.engines.skinny_gated import SkinnyGated, gated_on_cuda
from verifier_service.engines.skinny_products import (
    ALIGNMENT,
    SkinnyLinear,
    linear_on_cuda,
    multiprocessors,
)
from verifier_service.engines.skinny_tiles import BUCKETS, gated_tile_for

_log = logging.getLogger(__name__)

_CAPABILITY = (9, 0)
_DTYPES = (torch.bfloat16, torch.float16)
# Fewer weights are read in less time than a launch takes.
_LEAST_WEIGHTS = 1 << 22
# Both products round each output; sums in another order differ far less.
_TOLERANCE = 0.02

# Rows [M, K] to outputs [M, N].
_Product = Callable[[Tensor], Tensor]


class SkinnyProducts:
    """Gives layers our product where it suits them and is right; each shape is tried once.

    Trying also compiles the kernels and makes the counters, which a capture could not.
    """

    def __init__(self) -> None:
        self._right: dict[tuple[str, torch.Size, torch.dtype, bool], bool] = {}
        self._compiles = True

    def linear(self, layer: nn.Module) -> nn.Module:
        """What stands for `layer`: itself, where torch's product stays."""
        if type(layer) is not nn.Linear or not suits(layer.weight):
            return layer
        weight, bias = layer.weight, layer.bias

        def ours(x: Tensor) -> Tensor:
            return linear_on_cuda(x, weight, bias)

        return SkinnyLinear(layer) if self._is_right("product", layer, ours, layer) else layer

    def gated(self, joined: nn.Module) -> nn.Module:
        """What computes silu(gate) * up, of the layer that gives gates and behind them ups."""
        if type(joined) is nn.Linear and joined.bias is None and suits(joined.weight):
            weight = joined.weight
            count = multiprocessors(weight.device)
            if any(gated_tile_for(rows, weight.shape[0] // 2, count) for rows in BUCKETS):

                def ours(x: Tensor) -> Tensor:
                    return gated_on_cuda(x, weight)

                if self._is_right("gated product", joined, ours, Gated(joined)):
                    return SkinnyGated(joined)
        return Gated(self.linear(joined))

    def _is_right(self, kind: str, layer: nn.Linear, ours: _Product, torchs: _Product) -> bool:
        key = (kind, layer.weight.shape, layer.weight.dtype, layer.bias is not None)
        if key not in self._right:
            self._right[key] = self._compiles and self._try(kind, layer.weight, ours, torchs)
        return self._right[key]

    def _try(self, kind: str, weight: Tensor, ours: _Product, torchs: _Product) -> bool:
        outputs, depth = weight.shape
        try:
            wrong = disagreement(weight, ours, torchs)
        except Exception:
            # A compiler of another release may refuse it: decoding goes on, and the log says how.
            _log.exception("products of few rows are torch's")
            self._compiles = False
            return False
        if wrong:
            _log.warning("%s of few rows %d -> %d is torch's: %s", kind, depth, outputs, wrong)
        else:
            _log.info("%s of few rows %d -> %d runs through our kernel", kind, depth, outputs)
        return not wrong


def suits(weight: Tensor) -> bool:
    """Whether some number of rows is multiplied with `weight` [N, K] by our kernels."""
    if not weight.is_cuda or weight.dtype not in _DTYPES or weight.numel() < _LEAST_WEIGHTS:
        return False
    if torch.cuda.get_device_capability(weight.device) != _CAPABILITY:
        return False
    whole = weight.data_ptr() % ALIGNMENT == 0 and weight.shape[1] % ALIGNMENT == 0
    return whole and weight.is_contiguous()


def disagreement(weight: Tensor, ours: _Product, torchs: _Product) -> str:
    """How our product with `weight` differs from torch's, in words; empty where it does not.

    Each bucket is tried full and not, and again: parts are counted anew each time.
    """
    depth = weight.shape[1]
    generator = torch.Generator(device=weight.device).manual_seed(depth)
    x = torch.randn(BUCKETS[-1], depth, generator=generator, device=weight.device)
    x = x.to(weight.dtype)
    least = 1
    for bucket in BUCKETS:
        for rows in (bucket, least):
            wanted, found = torchs(x[:rows]).float(), ours(x[:rows])
            error = float((found.float() - wanted).abs().max())
            if not error <= _TOLERANCE * float(wanted.abs().max()):
                return f"{rows} rows are off by {error:.3g}"
            if not torch.equal(ours(x[:rows]), found):
                return f"{rows} rows are others the second time"
        least = bucket + 1
    return ""
