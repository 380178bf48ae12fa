"""The kernel for few rows in Triton's interpreter; prints the parts that hold.

The interpreter multiplies bfloat16 as the integers that hold it: values are half precision here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from verifier_service.engines import skinny_gated, skinny_products
from verifier_service.engines.skinny_products import launch
from verifier_service.engines.skinny_tiles import Shape, Tile

CPU = torch.device("cpu")
SHAPE = Shape(16, 16, warps=4, stages=2)
torch.manual_seed(7)


def check(rows: int, outputs: int, depth: int, tile: Tile, bias: bool = False) -> None:
    weight = torch.randn(outputs, depth).half()
    x = torch.randn(rows, depth).half()
    added = torch.randn(outputs).half() if bias else None
    wanted = x.float() @ weight.float().T + (0 if added is None else added.float())
    found = launch(x, weight, added, tile)
    assert found.dtype == torch.float16 and found.shape == (rows, outputs)
    # Every output is off by its own rounding and no more.
    assert torch.allclose(found.float(), wanted, atol=1e-3, rtol=1e-3), (rows, tile)
    assert not skinny_products._counters(CPU).any()
    if tile.split > 1 and bias:
        assert torch.equal(launch(x, weight, added, tile), found)


def every_count_of_rows() -> None:
    for rows in range(1, 65):
        bucket = 16 if rows <= 16 else 32 if rows <= 32 else 64
        check(rows, 16, 32, Tile(bucket, SHAPE, 1 + rows % 2))


def tails() -> None:
    for outputs, depth in ((33, 48), (16, 50), (7, 9), (21, 37)):
        for split in (1, 2, 4):
            check(5, outputs, depth, Tile(16, SHAPE, split), bias=split != 2)


def more_parts_than_steps() -> None:
    check(3, 20, 48, Tile(16, SHAPE, 8), bias=True)


def gated() -> None:
    for rows, outputs, depth in ((1, 16, 32), (5, 20, 37), (16, 33, 32)):
        weight = torch.randn(2 * outputs, depth).half()
        x = torch.randn(rows, depth).half()
        gate, up = F.linear(x.float(), weight.float()).half().float().chunk(2, dim=-1)
        wanted = F.silu(gate) * up
        tile = Tile(16, Shape(32, 16, warps=4, stages=2), 1)
        found = skinny_gated.launch(x, weight, tile)
        assert found.shape == (rows, outputs) and found.dtype == torch.float16
        # Sums that lie between two numbers can be rounded to either.
        assert torch.allclose(found.float(), wanted, atol=2e-3, rtol=4e-3)
        joined = skinny_gated.join_halves(torch.cat((gate, up), dim=-1).half())
        assert torch.allclose(joined.float(), wanted, atol=1e-3, rtol=1e-3)


for part in (every_count_of_rows, tails, more_parts_than_steps, gated):
    part()
    print(part.__name__)
