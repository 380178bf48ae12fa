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

from verifier_service.engines import skinny_gated_triton, skinny_triton
from verifier_service.engines.skinny_tiles import BUCKETS, Tile, gated_tile_for, tile_for

HOPPER = GPUTarget("cuda", 90, 32)
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (49152, 4096))
POINTERS = dict.fromkeys(("x", "weight", "bias", "y"), "*bf16")
POINTERS |= {"parts": "*fp32", "arrived": "*i32"}
NUMBERS = dict.fromkeys(("count", "outputs", "depth"), "i32")
DIVISIBLE = (*POINTERS, "outputs", "depth")


def compiled(tile: Tile, gated: bool) -> Any:
    shape = tile.shape
    kernel = skinny_gated_triton.product if gated else skinny_triton.product
    constants = {
        "WHOLE_COLUMNS": True,
        "WHOLE_DEPTH": True,
        "ROWS": tile.rows,
        "COLUMNS": shape.columns // 2 if gated else shape.columns,
        "DEPTH": shape.depth,
    }
    if not gated:
        constants |= {"HAS_BIAS": False, "SPLIT": tile.split}
    kinds = POINTERS | NUMBERS | dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: kinds[name] for name in names},
        constexprs=constants,
        # Without it loads are of single elements, and none of this is what runs.
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in DIVISIBLE if name in names
        },
    )
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return triton.compile(source, target=HOPPER, options=options)


def check(job: tuple[Tile, bool]) -> None:
    tile, gated = job
    kernel = compiled(tile, gated)
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


jobs = {(tile_for(rows, *layer, 132), False) for rows in BUCKETS for layer in LAYERS}
jobs |= {(gated_tile_for(rows, 14336, 132), True) for rows in BUCKETS}
served = [(tile, gated) for tile, gated in jobs if tile is not None]
with ThreadPoolExecutor(4) as pool:
    for _ in pool.map(check, served):
        pass
sys.stdout.write(f"{len(served)} compiled")
