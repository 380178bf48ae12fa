"""The product of rows with weights of one byte, on a GPU and elsewhere.

Knows matrices; does not know layers. A decoding step multiplies few rows by all weights and is
bound by reading these, so codes must not be written back to memory in a wider dtype: on CUDA a
Triton kernel widens them in registers. No sum is split between programs, so a row's result does
not depend on how many multiprocessors were free. Prefill's many rows are bound by arithmetic
instead: there the codes are widened once, for the vendor's product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to so many rows the kernel is taken; with more, widening all codes first costs less.
_MOST_KERNEL_ROWS = 256
# Layers with fewer outputs are cut finer, or they would keep few multiprocessors busy.
_SMALL_OUTPUT = 2048


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program of the kernel computes: `rows` x `columns`, `depth` products at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile_for(rows: int, outputs: int, fixed: bool) -> Tile:
    """The kernel's tile; with `fixed` it does not depend on `rows`.

    Rows share a tile up to 64; more rows than that repeat the reading of weights, from the cache.
    """
    columns = 16 if outputs <= _SMALL_OUTPUT else 32
    if fixed:
        return Tile(64, columns, 128, warps=4, stages=4)
    if rows <= 16:
        # Codes on their way must fill the memory's latency, with one program or two on each
        # multiprocessor: 24 KiB in flight.
        return Tile(16, columns, 256, warps=4, stages=4)
    if rows <= 32:
        return Tile(32, columns, 128, warps=4, stages=4)
    if rows <= 64:
        return Tile(64, 2 * columns, 64, warps=4, stages=4)
    return Tile(128, 64, 64, warps=8, stages=3)


def weight_only_product(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
    """x [M, K] times codes [N, K] transposed, scaled by [N]: [M, N] in x's dtype.

    With `fixed` one kernel with one tile serves any M.
    """
    y: Tensor = torch.ops.outrider.weight_only_product(x, weight, scale, fixed)
    return y


def _on_cpu(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
    return (F.linear(x.float(), weight.float()) * scale).to(x.dtype)


def _on_cuda(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
    # Half precision could not hold the sums of unscaled codes, up to 448 times too large.
    if not fixed and x.shape[0] > _MOST_KERNEL_ROWS and x.dtype != torch.float16:
        return (F.linear(x, weight.to(x.dtype)) * scale).to(x.dtype)
    return launch(x, weight, scale, tile_for(x.shape[0], weight.shape[0], fixed))


def launch(x: Tensor, weight: Tensor, scale: Tensor, tile: Tile) -> Tensor:
    """The Triton kernel over all tiles of the output."""
    x = x.contiguous()
    count, depth = x.shape
    outputs = weight.shape[0]
    y = x.new_empty(count, outputs)
    grid = (-(-outputs // tile.columns), -(-count // tile.rows))
    _kernel()[grid](
        x,
        weight,
        scale,
        y,
        count,
        outputs,
        depth,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


@cache
def _kernel() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines.quantized_triton import product

    return product


def _shape(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("weight_only_product(Tensor x, Tensor weight, Tensor scale, bool fixed) -> Tensor")
_library.impl("weight_only_product", _on_cpu, "CPU")
_library.impl("weight_only_product", _on_cuda, "CUDA")
torch.library.register_fake("outrider::weight_only_product", _shape, lib=_library)
