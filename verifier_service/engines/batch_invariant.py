"""Products and settings that make a row's numbers independent of the rows beside it.

Knows how kernels choose their way by the number of rows, and how to keep them from it; does not
know sequences or the cache. Two ways, whichever holds:

- *tried*: a product whose rows were bitwise the same for every number of rows up to a tile's is
  run in tiles of at most that many rows. Trying is done once for each shape, when the model is
  loaded, on this machine, with the threads that will run it.
- *fixed*: everything else is run in tiles of one size, the last padded with zeros: the kernel
  sees one shape, whatever the step holds.

On a GPU all products are of the second kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.linear import Packer, Product
from verifier_service.engines.quantized_linear import QuantizedLinear

_log = logging.getLogger(__name__)

# Rows of a tile that was tried, and of a fixed one, on a CPU.
_TRIED_ROWS = 32
_FIXED_ROWS = 8
# Rows of a tile on a GPU: as many as cost little more than one, since all weights are read anyway.
CUDA_ROWS = 128
# Element-wise operators on a CPU share more elements than this among threads, and where a thread's
# part ends, its last elements are computed by other instructions, which may round differently.
_ONE_THREAD = 32768


def padded_rows(count: int, tile: int = CUDA_ROWS) -> int:
    """How many rows a product of `count` rows is run with: whole tiles."""
    return -(-count // tile) * tile


def configure_matmul() -> None:
    """Keep cuBLAS and torch.compile from choosing other sums for other numbers of rows.

    Settings of the whole process, which serves one model. They must be made before anything is
    compiled.
    """
    from torch._inductor import config

    # Of the pairs the second says whether a sum may be split among programs and joined later.
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False)
    matmul.allow_fp16_reduced_precision_reduction = (False, False)
    config.batch_invariant = True
    config.split_reductions = False


def fix_linears(module: nn.Module) -> None:
    """Let every linear layer below `module`, quantised ones too, run in tiles of one size (GPU)."""
    for name, child in module.named_children():
        setattr(module, name, fixed_linear(child))
        if getattr(module, name) is child:
            fix_linears(child)


def fixed_linear(layer: nn.Module) -> nn.Module:
    """The layer in tiles of one size; a module that is no linear layer is given back as it is."""
    if isinstance(layer, QuantizedLinear):
        layer.fixed_shapes = True
        return layer
    return FixedLinear(layer) if type(layer) is nn.Linear else layer


class FixedLinear(nn.Module):
    """y = x W^T + b with one product for each tile of rows. Shares the weights of `linear`."""

    def __init__(self, linear: nn.Linear, tile: int = CUDA_ROWS) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.tile = linear.weight, linear.bias, tile

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y: Tensor = torch.ops.outrider.fixed_linear(rows, self.weight, self.bias, self.tile)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def _fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    return in_fixed_tiles(lambda rows: F.linear(rows, weight, bias), x, tile)


def _fixed_linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


# Opaque to torch.compile, which would otherwise compile one loop for every number of tiles.
_library = torch.library.Library("outrider", "FRAGMENT")
_library.define("fixed_linear(Tensor x, Tensor weight, Tensor? bias, int tile) -> Tensor")
_library.impl("fixed_linear", _fixed_linear, "CPU")
_library.impl("fixed_linear", _fixed_linear, "CUDA")
torch.library.register_fake("outrider::fixed_linear", _fixed_linear_shape, lib=_library)


def in_fixed_tiles(product: Product, x: Tensor, tile: int) -> Tensor:
    """`product` [M, K] -> [M, N], called with exactly `tile` rows each time."""
    count = x.shape[0]
    missing = padded_rows(count, tile) - count
    # A copy even where nothing is missing: memory that is aligned as it always is.
    padded = torch.cat((x, x.new_zeros(missing, x.shape[1])))
    parts = [product(rows) for rows in padded.split(tile)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A product in tiles of at most `tile` rows, or, if `fixed`, of exactly so many."""

    product: Product
    tile: int
    fixed: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.fixed:
            return in_fixed_tiles(self.product, x, self.tile)
        if x.shape[0] <= self.tile:
            return self.product(x)
        return torch.cat([self.product(rows) for rows in x.split(self.tile)])


def invariant_packer(pack: Packer) -> Packer:
    """`pack`, its products made invariant. Layers of one shape and kind are tried once."""
    tried: dict[tuple[type, int, int], tuple[int, bool]] = {}

    def pack_invariant(linear: nn.Linear | QuantizedLinear) -> Product:
        product = pack(linear)
        key = (type(product), linear.in_features, linear.out_features)
        if key not in tried:
            tried[key] = _tile(product, linear.in_features)
            _log.info("products %d -> %d: tiles of %d rows, fixed: %s", *key[1:], *tried[key])
        return TiledProduct(product, *tried[key])

    return pack_invariant


def _tile(product: Product, inputs: int) -> tuple[int, bool]:
    """The tile in which rows do not depend on their number or place, and whether it is fixed."""
    x = torch.randn(_TRIED_ROWS, inputs, generator=torch.Generator().manual_seed(inputs))
    together = product(x)
    counts = range(1, _TRIED_ROWS + 1)
    # The last rows, so that each row is tried in several places of the tile.
    if all(torch.equal(product(x[-count:].clone()), together[-count:]) for count in counts):
        return _TRIED_ROWS, False
    places = range(_FIXED_ROWS)
    shifted = [
        product(x[:_FIXED_ROWS].roll(place, dims=0)).roll(-place, dims=0) for place in places
    ]
    if all(torch.equal(found, shifted[0]) for found in shifted):
        return _FIXED_ROWS, True
    return 1, True


def by_rows(function: Callable[..., Tensor], width: int) -> Callable[..., Tensor]:
    """An element-wise function of tensors [T, ...], called with few enough rows for one thread.

    `width` is how many elements of a row it goes through at once.
    """
    most = max(_ONE_THREAD // width, 1)

    def apply(*tensors: Tensor) -> Tensor:
        if tensors[0].shape[0] <= most:
            return function(*tensors)
        parts = zip(*(tensor.split(most) for tensor in tensors), strict=True)
        return torch.cat([function(*part) for part in parts])

    return apply
