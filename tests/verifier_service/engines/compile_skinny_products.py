"""Compiles every kernel of the table of products for few rows for an H200, which needs no GPU.

Prints how many. Fails where one spills registers, needs more memory than a program may have, or
does not use the instructions that the tiles are meant for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from verifier_service.engines import skinny_triton
from verifier_service.engines.skinny_products import BUCKETS, Tile, tile_for

HOPPER = GPUTarget("cuda", 90, 32)
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (49152, 4096))
POINTERS = dict.fromkeys(("x", "weight", "bias", "y"), "*bf16")
POINTERS |= {"parts": "*fp32", "arrived": "*i32"}
NUMBERS = dict.fromkeys(("count", "outputs", "depth"), "i32")
DIVISIBLE = (*POINTERS, "outputs", "depth")


def compiled(tile: Tile) -> Any:
    shape = tile.shape
    constants = {
        "HAS_BIAS": False,
        "WHOLE_COLUMNS": True,
        "WHOLE_DEPTH": True,
        "ROWS": tile.rows,
        "COLUMNS": shape.columns,
        "DEPTH": shape.depth,
        "SPLIT": tile.split,
    }
    kernel = skinny_triton.product
    source = ASTSource(
        fn=kernel,
        signature=POINTERS | NUMBERS | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        # Without it loads are of single elements, and none of this is what runs.
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in DIVISIBLE},
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return triton.compile(source, target=HOPPER, options=options)


def check(tile: Tile) -> None:
    kernel = compiled(tile)
    ptx = kernel.asm["ptx"]
    assert f"m64n{tile.rows}k16.f32.bf16.bf16" in ptx and "mma.sync" not in ptx, tile
    assert "cp.async.cg.shared.global.L2::cache_hint" in ptx, tile
    # What `shared` counts on: so many programs are on a multiprocessor at once.
    assert kernel.metadata.shared <= max(tile.shape.shared(tile.rows), 48 << 10), tile
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    registers, stack, local = map(int, re.findall(r"(?:REG|STACK|LOCAL):(\d+)", usage))
    assert (stack, local) == (0, 0), (tile, usage)
    resident = (228 << 10) // (tile.shape.shared(tile.rows) + (1 << 10))
    assert registers * 32 * tile.shape.warps * resident <= 65536, (tile, usage)


tiles = {tile_for(rows, *layer, 132) for rows in BUCKETS for layer in LAYERS} - {None}
with ThreadPoolExecutor(4) as pool:
    for _ in pool.map(check, tiles):
        pass
sys.stdout.write(f"{len(tiles)} compiled")
