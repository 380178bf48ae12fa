"""Linear layers on a GPU for steps of few rows: which product serves how many.

Knows operators and launches; does not know which layers are such ones, or how tiles are chosen.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.skinny_tiles import COUNTERS, Tile, tile_for

# Torch promises this alignment of what it allocates; views may begin anywhere.
ALIGNMENT = 16


class SkinnyLinear(nn.Module):
    """y = x W^T + b through the operator below. Shares the weights of `linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y: Tensor = torch.ops.outrider.skinny_linear(rows, self.weight, self.bias)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
    """The product's kernel: x [M, K], weight [N, K], bias [N] -> [M, N], all of one dtype."""
    x = aligned(x)
    count, depth = x.shape
    outputs, shape = weight.shape[0], tile.shape
    y = x.new_empty(count, outputs)
    tiles = -(-outputs // shape.columns)
    parts, arrived = y, y
    if tile.split > 1:
        size = tile.split * tiles * shape.columns * tile.rows
        parts, arrived = x.new_empty(size, dtype=torch.float32), _counters(x.device)
    _kernels().product[(tiles * tile.split,)](
        x,
        weight,
        weight if bias is None else bias,
        y,
        parts,
        arrived,
        count,
        outputs,
        depth,
        HAS_BIAS=bias is not None,
        WHOLE_COLUMNS=outputs % shape.columns == 0,
        WHOLE_DEPTH=depth % shape.depth == 0,
        ROWS=tile.rows,
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        SPLIT=tile.split,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return y


def aligned(x: Tensor) -> Tensor:
    """Contiguous, and as allocations are: for other memory another kernel is made in mid-step."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT else x


@cache
def _counters(device: torch.device) -> Tensor:
    """Zero between products, each of which leaves them so: those of a device run in one stream.

    Made at the first trial, outside of captures, and never freed: captures hold its address.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _kernels() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines import skinny_triton

    return skinny_triton


def linear_on_cuda(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As F.linear for rows [M, K], by whichever product serves so many."""
    outputs, depth = weight.shape
    tile = tile_for(x.shape[0], outputs, depth, multiprocessors(weight.device))
    return F.linear(x, weight, bias) if tile is None else launch(x, weight, bias, tile)


def _linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


# Opaque to torch.compile: which product serves is decided when the number of rows is known.
_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("skinny_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("skinny_linear", _linear_on_cpu, "CPU")
_library.impl("skinny_linear", linear_on_cuda, "CUDA")
torch.library.register_fake("outrider::skinny_linear", _linear_shape, lib=_library)
