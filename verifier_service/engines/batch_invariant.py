"""Products and settings that make a row's numbers independent of the rows beside it.

Knows how kernels choose their way by the number of rows, and how to keep them from it; does not
know sequences or the cache. Two ways, whichever holds:

- *tried*: a product whose rows were bitwise the same for every number of rows up to a tile's is
  run in tiles of at most that many rows. Trying is done once for each shape, when the model is
  loaded, on this machine, with the threads that will run it.
- *fixed*: everything else is run in tiles of one size, the last padded with zeros: the kernel
  sees one shape, whatever the step holds.

A GPU's products are in `batch_invariant_products`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verifier_service.engines.linear import Packer, Product
from verifier_service.engines.quantized_linear import QuantizedLinear

_log = logging.getLogger(__name__)

# Rows of a tile that was tried, and of a fixed one, on a CPU.
_TRIED_ROWS = 32
_FIXED_ROWS = 8
# Element-wise operators on a CPU share more elements than this among threads, and where a thread's
# part ends, its last elements are computed by other instructions, which may round differently.
_ONE_THREAD = 32768


def configure_matmul() -> None:
    """Keep torch.compile, and cuBLAS where it is still called, from sums by the number of rows.

    Settings of the whole process, which serves one model. They must be made before anything is
    compiled.
    """
    from torch._inductor import config

    # cuBLAS itself cannot be kept from what the pairs below forbid, and refuses to run with them.
    if torch.backends.cuda.is_built():
        torch.backends.cuda.preferred_blas_library("cublaslt")
    # Of the pairs the second says whether a sum may be split among programs and joined later.
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False)
    matmul.allow_fp16_reduced_precision_reduction = (False, False)
    config.batch_invariant = True
    config.split_reductions = False


def in_fixed_tiles(product: Product, x: Tensor, tile: int) -> Tensor:
    """`product` [M, K] -> [M, N], called with exactly `tile` rows each time."""
    count = x.shape[0]
    missing = -count % tile
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
