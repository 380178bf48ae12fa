"""Linear layers on a GPU for steps of few rows: which product serves when, and in which tiles.

Knows layers, tiles and devices; does not know what a step holds. A step of few rows takes as long
as its weights take to be read, so a tile is chosen for reading: all multiprocessors at work in one
wave, much in flight on each. Tiles follow from a table and the layer's shape, never from timing,
so outputs do not change from start to start. What does not suit keeps torch's product.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_log = logging.getLogger(__name__)

# Rows are padded to one of these; a tile holds them all. More rows are torch's, and so are those of
# a bucket that has neither shapes below nor anything measured.
BUCKETS = (16, 32, 64, 128)
_CAPABILITY = (9, 0)
_DTYPES = (torch.bfloat16, torch.float16)
# Fewer weights are read in less time than a launch takes.
_LEAST_WEIGHTS = 1 << 22
# Bytes of shared memory of a multiprocessor, and what each program takes beside its own.
_SHARED, _RESERVED = 228 << 10, 1 << 10
# Parts of a sum are written and read again: at most so much beside the weights, in elements.
_SHARE_OF_PARTS = 0.25
_SPLITS = (8, 4, 2)
_FEWEST_STEPS = 4
# Tiles whose parts can be counted.
_COUNTERS = 4096
# Torch promises this alignment of what it allocates; views may begin anywhere.
_ALIGNMENT = 16
# Both products round each output once; sums in another order differ far less.
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """What a program holds at once: `columns` rows of weights, `depth` elements of each."""

    columns: int
    depth: int
    warps: int
    stages: int

    def shared(self, rows: int) -> int:
        """Bytes of shared memory beside `rows` rows."""
        return (self.columns + rows) * self.depth * 2 * self.stages


@dataclass(frozen=True, slots=True)
class Tile:
    """A product's launch: up to `rows` rows, the depth in `split` parts."""

    rows: int
    shape: Shape
    split: int


# By bucket: the shape for layers that need many programs to keep the device reading, and the one
# for layers that have outputs enough.
_SHAPES: dict[int, tuple[Shape, Shape]] = {
    16: (Shape(64, 64, 4, 5), Shape(128, 64, 4, 4)),
    32: (Shape(64, 64, 4, 5), Shape(128, 64, 4, 4)),
    64: (Shape(64, 64, 4, 4), Shape(128, 64, 4, 3)),
}
# What benchmarks/skinny_products.py has shown to be faster: (bucket, outputs, depth) on so many
# multiprocessors; None for torch's product.
_MEASURED: dict[tuple[int, int, int, int], Tile | None] = {}


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


class SkinnyProducts:
    """Gives layers our product where it suits them and is right; each shape is tried once.

    Trying also compiles the kernels and makes the counters, which a capture could not.
    """

    def __init__(self) -> None:
        self._right: dict[tuple[int, int, torch.dtype, bool], bool] = {}
        self._compiles = True

    def linear(self, layer: nn.Module) -> nn.Module:
        """What stands for `layer`: itself, where torch's product stays."""
        if type(layer) is not nn.Linear or not self._compiles or not suits(layer.weight):
            return layer
        key = (*layer.weight.shape, layer.weight.dtype, layer.bias is not None)
        if key not in self._right:
            self._right[key] = self._try(layer)
        return SkinnyLinear(layer) if self._right[key] else layer

    def _try(self, layer: nn.Linear) -> bool:
        outputs, depth = layer.weight.shape
        try:
            wrong = disagreement(layer.weight, layer.bias)
        except Exception:
            # A compiler of another release may refuse it: decoding goes on, and the log says how.
            _log.exception("products of few rows are torch's")
            self._compiles = False
            return False
        if wrong:
            _log.warning("products of few rows %d -> %d are torch's: %s", depth, outputs, wrong)
        else:
            _log.info("products of few rows %d -> %d run through our kernel", depth, outputs)
        return not wrong


def suits(weight: Tensor) -> bool:
    """Whether some number of rows is multiplied with `weight` [N, K] by our kernel."""
    if not weight.is_cuda or weight.dtype not in _DTYPES or weight.numel() < _LEAST_WEIGHTS:
        return False
    if torch.cuda.get_device_capability(weight.device) != _CAPABILITY:
        return False
    aligned = weight.data_ptr() % _ALIGNMENT == 0 and weight.shape[1] % _ALIGNMENT == 0
    return aligned and weight.is_contiguous()


def tile_for(rows: int, outputs: int, depth: int, multiprocessors: int) -> Tile | None:
    """The tile for so many rows of a layer; None where torch's product serves."""
    for bucket in BUCKETS:
        if 0 < rows <= bucket:
            return _tile(bucket, outputs, depth, multiprocessors)
    return None


@cache
def _tile(bucket: int, outputs: int, depth: int, multiprocessors: int) -> Tile | None:
    measured = (bucket, outputs, depth, multiprocessors)
    if measured in _MEASURED:
        return _MEASURED[measured]
    if bucket not in _SHAPES:
        return None
    narrow, wide = _SHAPES[bucket]
    shape = (
        wide if -(-outputs // narrow.columns) > _room(narrow, bucket, multiprocessors) else narrow
    )
    return Tile(bucket, shape, split_for(shape, bucket, outputs, depth, multiprocessors))


def split_for(shape: Shape, rows: int, outputs: int, depth: int, multiprocessors: int) -> int:
    """In how many parts the depth is summed: as many as run at once and cost little to add."""
    tiles = -(-outputs // shape.columns)
    room = _room(shape, rows, multiprocessors)
    for split in _SPLITS:
        steps = -(-depth // shape.depth)
        # A part is two float32 a row and output, written and read; a weight is half of one.
        cheap = split * rows * 4 <= _SHARE_OF_PARTS * depth
        if tiles * split <= min(room, _COUNTERS) and cheap and steps >= split * _FEWEST_STEPS:
            return split
    return 1


def _room(shape: Shape, rows: int, multiprocessors: int) -> int:
    """Programs that the device holds at once."""
    return multiprocessors * (_SHARED // (shape.shared(rows) + _RESERVED))


def disagreement(weight: Tensor, bias: Tensor | None) -> str:
    """How our product differs from torch's on this device, in words; empty where it does not.

    Each bucket is tried full and not, and again: parts are counted anew each time.
    """
    depth = weight.shape[1]
    generator = torch.Generator(device=weight.device).manual_seed(depth)
    x = torch.randn(BUCKETS[-1], depth, generator=generator, device=weight.device)
    x = x.to(weight.dtype)
    least = 1
    for bucket in BUCKETS:
        for rows in (bucket, least):
            wanted = F.linear(x[:rows], weight, bias).float()
            found = _linear_on_cuda(x[:rows], weight, bias)
            error = float((found.float() - wanted).abs().max())
            if not error <= _TOLERANCE * float(wanted.abs().max()):
                return f"{rows} rows are off by {error:.3g}"
            if not torch.equal(_linear_on_cuda(x[:rows], weight, bias), found):
                return f"{rows} rows are others the second time"
        least = bucket + 1
    return ""


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
    """The product's kernel: x [M, K], weight [N, K], bias [N] -> [M, N], all of one dtype."""
    x = x.contiguous()
    if x.data_ptr() % _ALIGNMENT:
        # For other memory another kernel would be made, in the middle of a step.
        x = x.clone()
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


@cache
def _counters(device: torch.device) -> Tensor:
    """Zero between products, each of which leaves them so: those of a device run in one stream.

    Made at the first trial, outside of captures, and never freed: captures hold its address.
    """
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _kernels() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines import skinny_triton

    return skinny_triton


def _linear_on_cuda(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    outputs, depth = weight.shape
    tile = tile_for(x.shape[0], outputs, depth, _multiprocessors(weight.device))
    return F.linear(x, weight, bias) if tile is None else launch(x, weight, bias, tile)


def _linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


# Opaque to torch.compile: which product serves is decided when the number of rows is known.
_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("skinny_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("skinny_linear", _linear_on_cpu, "CPU")
_library.impl("skinny_linear", _linear_on_cuda, "CUDA")
torch.library.register_fake("outrider::skinny_linear", _linear_shape, lib=_library)
