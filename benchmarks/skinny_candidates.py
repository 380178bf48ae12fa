"""Tiles that products of few rows are tried in, and their compilation by many processes at once.

Knows shapes of programs and how a kernel comes to lie in Triton's cache; does not know times.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Iterable
from multiprocessing.pool import Pool

import torch

from verifier_service.engines import skinny_gated
from verifier_service.engines.skinny_products import launch
from verifier_service.engines.skinny_tiles import Shape, Tile, split_for

# Bytes of shared memory that one program may have.
_MOST_SHARED = 227 << 10
_WORKERS = 14

# Columns of outputs, depth, warps, stages; and by how much the usual split is divided.
_SHAPES: dict[int, tuple[tuple[Shape, int], ...]] = {
    16: (
        (Shape(64, 64, 4, 5), 1),
        (Shape(64, 64, 4, 5), 2),
        (Shape(64, 64, 4, 8), 1),
        (Shape(64, 128, 4, 3), 1),
        (Shape(64, 128, 4, 4), 1),
        (Shape(64, 256, 4, 3), 1),
        (Shape(128, 64, 4, 4), 1),
        (Shape(128, 64, 8, 6), 1),
    ),
    64: (
        (Shape(64, 64, 4, 4), 1),
        (Shape(64, 64, 4, 4), 2),
        (Shape(64, 128, 4, 3), 1),
        (Shape(128, 64, 4, 3), 1),
        (Shape(128, 64, 4, 4), 1),
        (Shape(128, 64, 8, 4), 1),
        (Shape(128, 128, 8, 3), 1),
        (Shape(256, 64, 8, 4), 1),
    ),
    128: (
        (Shape(64, 64, 4, 4), 1),
        (Shape(128, 64, 4, 3), 1),
        (Shape(128, 64, 8, 4), 1),
        (Shape(128, 128, 8, 3), 1),
        (Shape(256, 64, 8, 4), 1),
    ),
}
_GATED = (
    Shape(128, 64, 4, 3),
    Shape(128, 64, 4, 4),
    Shape(128, 128, 4, 3),
    Shape(256, 64, 8, 3),
)
_SHAPES[32] = _SHAPES[16][:2] + _SHAPES[16][3:5] + _SHAPES[16][6:] + _SHAPES[64][5:7]


def candidates(rows: int, outputs: int, depth: int, multiprocessors: int) -> list[Tile]:
    """The tiles that are tried for a bucket of `rows` rows."""
    found: list[Tile] = []
    for shape, less in _SHAPES[rows]:
        split = split_for(shape, rows, outputs, depth, multiprocessors)
        tile = Tile(rows, shape, max(split // less, 1))
        if shape.shared(rows) <= _MOST_SHARED and tile not in found:
            found.append(tile)
    return found


def gated_candidates(rows: int) -> list[Tile]:
    """The tiles of gated products that are tried for a bucket of `rows` rows."""
    tiles = [Tile(rows, shape, 1) for shape in _GATED]
    return [tile for tile in tiles if tile.shape.shared(rows) <= _MOST_SHARED]


def workers() -> Pool:
    """Processes that compile; to be made before this one has touched the device."""
    # What all need is read once, and not by each.
    for name in ("skinny_triton", "skinny_gated_triton"):
        importlib.import_module(f"verifier_service.engines.{name}")
    context = multiprocessing.get_context("fork")
    return context.Pool(min(_WORKERS, os.cpu_count() or 1))


def compile_all(pool: Pool, tiles: Iterable[Tile], gated: Iterable[Tile]) -> None:
    """Puts kernels in Triton's cache, where all processes find them; one that fails is left out."""
    jobs = [(tile, False) for tile in set(tiles)] + [(tile, True) for tile in set(gated)]
    jobs.sort(key=lambda job: -job[0].rows * job[0].shape.columns)
    pool.map(_compile, jobs, chunksize=1)


def _compile(job: tuple[Tile, bool]) -> None:
    """One small product of the tile, without tails: the kernel is that of any such layer."""
    tile, gated = job
    depth = tile.shape.depth * tile.split
    # Whoever needs the kernel compiles it anew and sees why it fails.
    with contextlib.suppress(Exception):
        weight = torch.zeros(tile.shape.columns, depth, dtype=torch.bfloat16, device="cuda")
        x = weight.new_zeros(tile.rows, depth)
        if gated:
            skinny_gated.launch(x, weight, tile)
        else:
            launch(x, weight, None, tile)
        torch.cuda.synchronize()
