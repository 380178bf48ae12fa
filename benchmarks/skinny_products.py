"""How fast products of few rows read their weights on this GPU: torch's, and ours in many tiles.

    python -m benchmarks.skinny_products

Needs no model: the five products of an 8B-shaped Llama, in CUDA graphs over so many copies of the
weights that no cache holds them. Where a tile beats that of the engine's table, the last lines are
what to put there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.skinny_candidates import (
    candidates,
    compile_all,
    gated_candidates,
    workers,
)
from verifier_service.engines import skinny_gated
from verifier_service.engines.skinny_products import launch
from verifier_service.engines.skinny_tiles import BUCKETS, Tile, tile_for

# (name, outputs, depth, how often in a forward).
PRODUCTS = (
    ("qkv", 6144, 4096, 32),
    ("output", 4096, 4096, 32),
    ("gate+up", 28672, 4096, 32),
    ("down", 4096, 14336, 32),
    ("head", 49152, 4096, 1),
)
ROWS = (1, 8, 16, 32, 64, 128)
# Elements of weights that a graph reads: many times what the cache between holds.
_WEIGHTS = 800_000_000
_REPLAYS = 5
# A tile must be so much faster than the table's to be worth a line there.
_WORTH = 0.98
# Largest relative difference from torch's product.
_TOLERANCE = 0.02

Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True)
class Cell:
    """Seconds of one product for one number of rows; `tiles` by tile."""

    name: str
    outputs: int
    depth: int
    rows: int
    torch: float
    tiles: dict[Tile, float] = field(default_factory=dict)

    def best(self) -> Tile | None:
        """The fastest tile; None where torch's product is faster than all."""
        fastest = min(self.tiles, key=lambda tile: self.tiles[tile], default=None)
        return fastest if fastest and self.tiles[fastest] < self.torch else None

    def seconds(self, tile: Tile | None) -> float:
        """With `tile`; None is torch's product, and so is a tile that failed."""
        return self.torch if tile is None else self.tiles.get(tile, self.torch)


def bucket_of(rows: int) -> int:
    """The rows of the tile that holds `rows`."""
    return next(bucket for bucket in BUCKETS if rows <= bucket)


def seconds_each(
    product: Product, x: Tensor, weights: list[Tensor], stream: torch.cuda.Stream
) -> float:
    """Seconds of one product in a graph that goes through all weights, the median of replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        product(x, weights[0])
        graph.capture_begin()
        for weight in weights:
            product(x, weight)
        graph.capture_end()
        graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
    stream.synchronize()
    spans: list[float] = [begin.elapsed_time(end) for begin, end in pairwise(events)]
    return statistics.median(spans) / 1000 / len(weights)


def measure(
    name: str, outputs: int, depth: int, base: Tensor, tiles: dict[int, list[Tile]]
) -> list[Cell]:
    """A product's cells, by rows; a tile that fails or differs is said and left out."""
    copies = base.numel() // (outputs * depth)
    weights = list(base[: copies * outputs * depth].view(copies, outputs, depth).unbind())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    cells: list[Cell] = []
    for rows in ROWS:
        x = torch.randn(rows, depth, device=base.device).to(base.dtype)
        wanted = F.linear(x, weights[0]).float()
        torch.cuda.synchronize()
        cell = Cell(name, outputs, depth, rows, seconds_each(F.linear, x, weights, stream))
        for tile in tiles[bucket_of(rows)]:
            seconds = checked(partial(ours, tile), x, weights, wanted, stream)
            if isinstance(seconds, float):
                cell.tiles[tile] = seconds
            else:
                print(f"{name} of {rows} rows in {words(tile)} {seconds}")
        cells.append(cell)
    return cells


def checked(
    product: Product, x: Tensor, weights: list[Tensor], wanted: Tensor, stream: torch.cuda.Stream
) -> float | str:
    """Seconds of a product that gives what is wanted, before and after; else what is wrong."""
    try:
        found = product(x, weights[0])
    except Exception as error:
        return f"DOES NOT RUN: {type(error).__name__}: {error}"[:100]
    off = float((found.float() - wanted).abs().max() / wanted.abs().max())
    torch.cuda.synchronize()
    if not off <= _TOLERANCE:
        return f"IS WRONG by {off:.3g}"
    seconds = seconds_each(product, x, weights, stream)
    return seconds if torch.equal(product(x, weights[0]), found) else "IS ANOTHER after replays"


def ours(tile: Tile, x: Tensor, weight: Tensor) -> Tensor:
    """Our product, in the place of torch's."""
    return launch(x, weight, None, tile)


def words(tile: Tile | None) -> str:
    """A tile in a few characters."""
    if tile is None:
        return "torch"
    shape = tile.shape
    return f"{shape.columns}x{shape.depth}/{tile.split} w{shape.warps} s{shape.stages}"


def shown(seconds: float, cell: Cell) -> str:
    """Microseconds, and terabytes of weights a second."""
    return f"{seconds * 1e6:7.1f} {cell.outputs * cell.depth * 2 / seconds / 1e12:5.2f}"


def table(cells: list[Cell], multiprocessors: int) -> list[str]:
    lines = [f"{'product':8}{'rows':>5}  {'torch us TB/s':14} {'table us TB/s':14} best us TB/s"]
    for cell in cells:
        chosen = tile_for(cell.rows, cell.outputs, cell.depth, multiprocessors)
        best = cell.best()
        columns = [shown(cell.seconds(tile), cell) for tile in (None, chosen, best)]
        lines.append(f"{cell.name:8}{cell.rows:5}  {'  '.join(columns)}  {words(best)}")
    return lines


def forwards(cells: list[Cell], multiprocessors: int) -> list[str]:
    """Milliseconds of all products of a forward, by rows."""
    times = {name: count for name, _, _, count in PRODUCTS}
    lines = [f"{'forward':8}{'rows':>5}  torch ms  table ms  best ms"]
    for rows in ROWS:
        of_torch = of_table = of_best = 0.0
        for cell in cells:
            if cell.rows == rows:
                tile = tile_for(rows, cell.outputs, cell.depth, multiprocessors)
                of_torch += times[cell.name] * cell.torch
                of_table += times[cell.name] * cell.seconds(tile)
                of_best += times[cell.name] * cell.seconds(cell.best())
        figures = "".join(f"{seconds * 1e3:10.3f}" for seconds in (of_torch, of_table, of_best))
        lines.append(f"{'':8}{rows:5}{figures}")
    return lines


def better(cells: list[Cell], multiprocessors: int) -> list[str]:
    """Lines of the engine's table where another tile, or torch's product, is clearly faster."""
    lines: list[str] = []
    for name, outputs, depth, _ in PRODUCTS:
        for bucket in BUCKETS:
            held = [c for c in cells if c.name == name and bucket_of(c.rows) == bucket]
            choices = [None, *set[Tile].intersection(*(set(cell.tiles) for cell in held))]
            sums = {tile: sum(cell.seconds(tile) for cell in held) for tile in choices}
            best = min(sums, key=lambda tile: sums[tile])
            held_now = tile_for(bucket, outputs, depth, multiprocessors)
            if best != held_now and sums[best] < _WORTH * sums.get(held_now, sums[None]):
                lines.append(
                    f"    ({bucket}, {outputs}, {depth}, {multiprocessors}): {source(best)},"
                )
    return lines


def source(tile: Tile | None) -> str:
    """A tile as Python."""
    if tile is None:
        return "None"
    shape = tile.shape
    parts = f"{shape.columns}, {shape.depth}, {shape.warps}, {shape.stages}"
    return f"Tile({tile.rows}, Shape({parts}), {tile.split})"


def gated(base: Tensor, tiles: dict[int, list[Tile]], multiprocessors: int) -> list[str]:
    """Microseconds of silu(gate) * up: torch's product, ours, and all in one kernel."""
    _, both, depth, _ = PRODUCTS[2]
    copies = base.numel() // (both * depth)
    weights = list(base[: copies * both * depth].view(copies, both, depth).unbind())
    stream = torch.cuda.Stream()
    lines = [f"{'gated':8}{'rows':>5}  {'torch us':>9}{'two us':>9}  in one us"]
    for rows in ROWS:
        x = torch.randn(rows, depth, device=base.device).to(base.dtype)
        wanted = in_two(F.linear, x, weights[0]).float()
        torch.cuda.synchronize()
        tile = tile_for(rows, both, depth, multiprocessors)
        product = F.linear if tile is None else partial(ours, tile)
        spans = [
            seconds_each(partial(in_two, F.linear), x, weights, stream),
            seconds_each(partial(in_two, product), x, weights, stream),
        ]
        figures = "".join(f"{seconds * 1e6:9.1f}" for seconds in spans)
        for tile in tiles[bucket_of(rows)]:
            took = checked(partial(in_one, tile), x, weights, wanted, stream)
            figures += f"  {took * 1e6:.1f}" if isinstance(took, float) else f"  {took}"
            figures += f" ({words(tile)})"
        lines.append(f"{'':8}{rows:5}  {figures}")
    return lines


def in_two(product: Product, x: Tensor, weight: Tensor) -> Tensor:
    """A product and the kernel that joins its halves."""
    return skinny_gated.join_halves(product(x, weight))


def in_one(tile: Tile, x: Tensor, weight: Tensor) -> Tensor:
    """The gated product, in the place of a product."""
    return skinny_gated.launch(x, weight, tile)


@torch.inference_mode()
def main() -> None:
    began = time.monotonic()
    with workers() as pool:
        device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(device)
        count = properties.multi_processor_count
        tiles = {
            name: {bucket: tried(bucket, outputs, depth, count) for bucket in BUCKETS}
            for name, outputs, depth, _ in PRODUCTS
        }
        pairs = {bucket: gated_candidates(bucket) for bucket in BUCKETS}
        every = [tile for by_rows in tiles.values() for some in by_rows.values() for tile in some]
        compile_all(pool, every, [tile for some in pairs.values() for tile in some])
    compiled = time.monotonic()
    base = torch.empty(_WEIGHTS, dtype=torch.bfloat16, device=device).normal_()
    cells: list[Cell] = []
    for name, outputs, depth, _ in PRODUCTS:
        cells += measure(name, outputs, depth, base, tiles[name])
    print("\n".join([*table(cells, count), *forwards(cells, count)]))
    print("\n".join(gated(base, pairs, count)))
    lines = better(cells, count)
    where = "verifier_service/engines/skinny_tiles.py"
    print(f"for _MEASURED in {where}:" if lines else f"nothing is faster than {where}")
    print("\n".join(lines))
    print(
        f"{properties.name}, {count} multiprocessors, torch {torch.__version__}; compiled in "
        f"{compiled - began:.0f} s, measured in {time.monotonic() - compiled:.0f} s"
    )


def tried(bucket: int, outputs: int, depth: int, multiprocessors: int) -> list[Tile]:
    """All tiles of a bucket, the table's among them."""
    found = candidates(bucket, outputs, depth, multiprocessors)
    chosen = tile_for(bucket, outputs, depth, multiprocessors)
    return found if chosen is None or chosen in found else [chosen, *found]


if __name__ == "__main__":
    main()
