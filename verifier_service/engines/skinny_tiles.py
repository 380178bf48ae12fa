"""The table of products of few rows: in which tiles a GPU reads a layer's weights.

Knows numbers only; what does not suit, and numbers of rows that have no tile here, are torch's. A
step of few rows takes as long as its weights take to be read, so tiles are chosen for reading: all
multiprocessors at work in one wave, much in flight on each. They follow from the table and the
layer's shape, never from timing, so that outputs do not change from start to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

# Rows are padded to one of these; a tile holds them all. More rows are torch's, and so are those of
# a bucket that has neither shapes below nor anything measured.
BUCKETS = (16, 32, 64, 128)
# Tiles whose parts can be counted.
COUNTERS = 4096
# Bytes of shared memory of a multiprocessor, and what each program takes beside its own.
_SHARED, _RESERVED = 228 << 10, 1 << 10
# Parts of a sum are written and read again: at most so much beside the weights.
_SHARE_OF_PARTS = 0.25
_SPLITS = (8, 4, 2)
_FEWEST_STEPS = 4
# Fewer gated programs for each multiprocessor do not keep it reading.
_LEAST_GATED = 1.25


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
_MEASURED: dict[tuple[int, int, int, int], Tile | None] = {
    (16, 6144, 4096, 132): Tile(16, Shape(64, 128, 4, 4), 2),
    (32, 6144, 4096, 132): None,
    (64, 6144, 4096, 132): None,
    (16, 4096, 4096, 132): Tile(16, Shape(64, 128, 4, 3), 4),
    (64, 4096, 4096, 132): None,
    (16, 28672, 4096, 132): Tile(16, Shape(64, 128, 4, 4), 1),
    (32, 28672, 4096, 132): None,
    (16, 4096, 14336, 132): Tile(16, Shape(64, 128, 4, 4), 4),
    (64, 4096, 14336, 132): Tile(64, Shape(64, 128, 4, 3), 4),
    (16, 49152, 4096, 132): Tile(16, Shape(64, 128, 4, 3), 1),
    (32, 49152, 4096, 132): Tile(32, Shape(64, 128, 4, 3), 1),
    (64, 49152, 4096, 132): Tile(64, Shape(64, 64, 4, 4), 1),
}
# The same where gates and ups are multiplied and joined in one program: `columns` counts the rows
# of weights of both. A bucket that is not here goes through torch's product.
_GATED: dict[int, Shape] = {
    16: Shape(128, 128, 4, 3),
    32: Shape(128, 64, 4, 4),
    64: Shape(128, 64, 4, 3),
}


def tile_for(rows: int, outputs: int, depth: int, multiprocessors: int) -> Tile | None:
    """The tile for so many rows of a layer; None where torch's product serves."""
    bucket = bucket_of(rows)
    return None if bucket is None else _tile(bucket, outputs, depth, multiprocessors)


def gated_tile_for(rows: int, outputs: int, multiprocessors: int) -> Tile | None:
    """The tile for so many rows of a gated product of `outputs` outputs; None for torch's."""
    bucket = bucket_of(rows)
    shape = None if bucket is None else _GATED.get(bucket)
    if bucket is None or shape is None:
        return None
    programs = -(-outputs // (shape.columns // 2))
    return Tile(bucket, shape, 1) if programs >= _LEAST_GATED * multiprocessors else None


def bucket_of(rows: int) -> int | None:
    """What so many rows are padded to; None where they are none or too many."""
    return next((bucket for bucket in BUCKETS if 0 < rows <= bucket), None)


@cache
def _tile(bucket: int, outputs: int, depth: int, multiprocessors: int) -> Tile | None:
    measured = (bucket, outputs, depth, multiprocessors)
    if measured in _MEASURED:
        return _MEASURED[measured]
    if bucket not in _SHAPES:
        return None
    narrow, wide = _SHAPES[bucket]
    many = -(-outputs // narrow.columns) > _room(narrow, bucket, multiprocessors)
    shape = wide if many else narrow
    return Tile(bucket, shape, split_for(shape, bucket, outputs, depth, multiprocessors))


def split_for(shape: Shape, rows: int, outputs: int, depth: int, multiprocessors: int) -> int:
    """In how many parts the depth is summed: as many as run at once and cost little to add."""
    tiles = -(-outputs // shape.columns)
    room = _room(shape, rows, multiprocessors)
    for split in _SPLITS:
        steps = -(-depth // shape.depth)
        # A part is a float32 for each row and output, written and read: four times a weight.
        cheap = split * rows * 4 <= _SHARE_OF_PARTS * depth
        if tiles * split <= min(room, COUNTERS) and cheap and steps >= split * _FEWEST_STEPS:
            return split
    return 1


def _room(shape: Shape, rows: int, multiprocessors: int) -> int:
    """Programs that the device holds at once."""
    return multiprocessors * (_SHARED // (shape.shared(rows) + _RESERVED))
