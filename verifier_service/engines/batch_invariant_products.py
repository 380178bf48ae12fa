"""Linear layers and norms on a GPU whose rows do not depend on the rows beside them.

Knows layers and tiles; does not know attention or what a step holds. A GPU library chooses tiles,
and whether a sum is split, by the number of rows. Here one Triton kernel takes every number: each
output is one sum over the depth, in one order, in a tile that follows from the layer alone. Many
rows would be faster in larger tiles, which are taken where a trial at start shows that they give
the same bits: the instructions that multiply go through the depth in the same steps.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.batch_invariant import in_fixed_tiles
from verifier_service.engines.quantized_linear import QuantizedLinear

_log = logging.getLogger(__name__)

# From so many rows on the larger tile is worth it.
_WIDE_FROM = 129
_TRIED_ROWS = 160
# Rows of a tile without a GPU, where torch's own product takes the kernel's place.
_CPU_ROWS = 8
# Torch promises this alignment of what it allocates; views may begin anywhere.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes: `rows` x `columns`, `depth` products at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def narrow_tile(outputs: int, itemsize: int) -> Tile:
    """The tile for few rows, which are bound by reading weights; it follows from the layer.

    64 rows are the fewest that Hopper's widest instruction multiplies, and the same instruction
    serves the larger tile. Few columns leave enough programs to keep all multiprocessors reading.
    """
    columns = 16 if outputs <= 4096 else 32 if outputs <= 32768 else 64
    # 96 KiB of shared memory at most, which smaller cards have as well.
    stages = 2 if itemsize == 4 else 3 if columns == 64 else 4
    return Tile(64, columns, 256 // itemsize, warps=4, stages=stages)


def wide_tile(itemsize: int) -> Tile:
    """The tile for many rows, which are bound by arithmetic."""
    return Tile(128, 128, 128 // itemsize, warps=8, stages=3 if itemsize == 2 else 2)


class FixedLinear(nn.Module):
    """y = x W^T + b, a row's bits whatever stands beside it. Shares the weights of `linear`.

    `wide` allows the larger tile where there are many rows.
    """

    def __init__(self, linear: nn.Linear, wide: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.wide = linear.weight, linear.bias, wide

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y: Tensor = torch.ops.outrider.fixed_linear(rows, self.weight, self.bias, self.wide)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)


class LinearFixer:
    """Makes linear layers fixed ones; layers of one shape are tried once."""

    def __init__(self) -> None:
        self._wide: dict[tuple[int, int, torch.dtype], bool] = {}

    def fixed(self, layer: nn.Module) -> nn.Module:
        """The fixed layer; in a module that is none, the layers below it are replaced."""
        if isinstance(layer, QuantizedLinear):
            layer.fixed_shapes = True
            return layer
        if type(layer) is not nn.Linear:
            for name, child in layer.named_children():
                setattr(layer, name, self.fixed(child))
            return layer
        key = (layer.in_features, layer.out_features, layer.weight.dtype)
        if key not in self._wide:
            self._wide[key] = layer.weight.is_cuda and wide_agrees(layer.weight)
            if layer.weight.is_cuda and not self._wide[key]:
                _log.warning(
                    "batch_invariant: products %d -> %d round otherwise in large tiles here: "
                    "prefill takes small ones and is slower",
                    *key[:2],
                )
        return FixedLinear(layer, self._wide[key])


def wide_agrees(weight: Tensor) -> bool:
    """Whether both tiles give the same bits for this layer's weights [N, K] on this device."""
    generator = torch.Generator(device=weight.device).manual_seed(weight.shape[1])
    x = torch.randn(_TRIED_ROWS, weight.shape[1], generator=generator, device=weight.device)
    x = x.to(weight.dtype)
    narrow = launch(x, weight, None, narrow_tile(weight.shape[0], weight.itemsize))
    return torch.equal(narrow, launch(x, weight, None, wide_tile(weight.itemsize)))


def fixed_rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last dimension, each row by a program of its own."""
    y: Tensor = torch.ops.outrider.fixed_rms(x, weight, epsilon)
    return y


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
    """The product's kernel: x [M, K], weight [N, K], bias [N] -> [M, N], all of one dtype."""
    x = _aligned(x)
    count, depth = x.shape
    outputs = weight.shape[0]
    y = x.new_empty(count, outputs)
    if count == 0:
        return y
    tiles = -(-outputs // tile.columns) * -(-count // tile.rows)
    _kernels().product[(tiles,)](
        x,
        weight,
        weight if bias is None else bias,
        y,
        count,
        outputs,
        depth,
        HAS_BIAS=bias is not None,
        WHOLE=depth % tile.depth == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        TOGETHER=8,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def launch_rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm's kernel: x [..., K], weight [K] -> [..., K], contiguous."""
    x = _aligned(x)
    y = torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    if rows:
        block = 1 << (width - 1).bit_length()
        warps = 1 if block <= 256 else 4 if block <= 4096 else 8
        _kernels().norm[(rows,)](x, weight, y, width, epsilon, WIDTH=block, num_warps=warps)
    return y


def _aligned(x: Tensor) -> Tensor:
    """Contiguous and aligned as allocations are: for other memory another kernel is made."""
    x = x.contiguous()
    return x if x.data_ptr() % _ALIGNMENT == 0 else x.clone()


@cache
def _kernels() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines import batch_invariant_triton

    return batch_invariant_triton


def _linear_on_cuda(x: Tensor, weight: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    large = wide and x.shape[0] >= _WIDE_FROM
    itemsize = weight.itemsize
    tile = wide_tile(itemsize) if large else narrow_tile(weight.shape[0], itemsize)
    return launch(x, weight, bias, tile)


def _linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    return in_fixed_tiles(lambda rows: F.linear(rows, weight, bias), x, _CPU_ROWS)


def _linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _rms_on_cpu(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return (wide.to(x.dtype) * weight).contiguous()


def _rms_shape(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x.new_empty(x.shape)


# Opaque to torch.compile, which would otherwise compile reductions of its own.
_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("fixed_linear(Tensor x, Tensor weight, Tensor? bias, bool wide) -> Tensor")
_library.impl("fixed_linear", _linear_on_cpu, "CPU")
_library.impl("fixed_linear", _linear_on_cuda, "CUDA")
torch.library.register_fake("outrider::fixed_linear", _linear_shape, lib=_library)
_library.define("fixed_rms(Tensor x, Tensor weight, float epsilon) -> Tensor")
_library.impl("fixed_rms", _rms_on_cpu, "CPU")
_library.impl("fixed_rms", launch_rms, "CUDA")
torch.library.register_fake("outrider::fixed_rms", _rms_shape, lib=_library)
