"""The gated feed-forward's first product, silu(gate) * up, for steps of few rows on a GPU.

Knows operators and launches; does not know which layers are such ones, or how tiles are chosen. One
kernel reads the weights of both halves and writes what they give together. Where it does not serve,
a product is followed by one kernel that joins its halves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.skinny_products import aligned, linear_on_cuda, multiprocessors
from verifier_service.engines.skinny_tiles import Tile, gated_tile_for

# Outputs that a program joins at once.
_BLOCK = 1024


class SkinnyGated(nn.Module):
    """silu(x G^T) * (x U^T): G and behind it U are the weights of `joined`, which are shared."""

    def __init__(self, joined: nn.Linear) -> None:
        super().__init__()
        self.weight = joined.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.outrider.skinny_gated(x, self.weight)
        return y


def launch(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """The kernel: x [M, K], weight [2 N, K] -> [M, N], all of one dtype."""
    x = aligned(x)
    count, depth = x.shape
    outputs, shape = weight.shape[0] // 2, tile.shape
    columns = shape.columns // 2
    y = x.new_empty(count, outputs)
    _kernels().product[(-(-outputs // columns),)](
        x,
        weight,
        y,
        count,
        outputs,
        depth,
        WHOLE_COLUMNS=outputs % columns == 0,
        WHOLE_DEPTH=depth % shape.depth == 0,
        ROWS=tile.rows,
        COLUMNS=columns,
        DEPTH=shape.depth,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return y


def join_halves(x: Tensor) -> Tensor:
    """silu(gate) * up of x [M, 2 N], gates and behind them ups, contiguous: [M, N]."""
    rows, both = x.shape
    y = x.new_empty(rows, both // 2)
    if rows:
        grid = (rows, -(-y.shape[1] // _BLOCK))
        _kernels().activation[grid](x, y, y.shape[1], BLOCK=_BLOCK, num_warps=4)
    return y


def gated_on_cuda(x: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) * up for rows [M, K], by whichever product serves so many."""
    tile = gated_tile_for(x.shape[0], weight.shape[0] // 2, multiprocessors(weight.device))
    return join_halves(linear_on_cuda(x, weight, None)) if tile is None else launch(x, weight, tile)


@cache
def _kernels() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines import skinny_gated_triton

    return skinny_gated_triton


def _gated_on_cpu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    return F.silu(gate) * up


def _gated_shape(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0] // 2)


# Opaque to torch.compile: which product serves is decided when the number of rows is known.
_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("skinny_gated(Tensor x, Tensor weight) -> Tensor")
_library.impl("skinny_gated", _gated_on_cpu, "CPU")
_library.impl("skinny_gated", gated_on_cuda, "CUDA")
torch.library.register_fake("outrider::skinny_gated", _gated_shape, lib=_library)
