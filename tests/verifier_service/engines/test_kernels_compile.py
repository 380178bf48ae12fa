"""Triton's own compiler takes our kernels down to code for an H200, which needs no GPU.

Its interpreter runs what the compiler refuses, so that is no proof. Of paged attention:
test_paged_compile.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("triton")

_PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from verifier_service.engines import batch_invariant_triton, quantized_triton
from verifier_service.engines.batch_invariant_products import narrow_tile, wide_tile

HOPPER = GPUTarget("cuda", 90, 32)


def compile(kernel, kinds, constants, **options):
    signature = kinds | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    asm = triton.compile(source, target=HOPPER, options=options).asm
    assert "cubin" in asm
    return asm["ptx"]


pages = dict.fromkeys(("query", "keys", "values", "out"), "*bf16")
bounds = dict.fromkeys(("cu_query", "used", "table"), "*i32")
numbers = {"table_stride": "i32", "scale": "fp32", "heads": "i32", "kv_heads": "i32", "page": "i32"}
for codes in ("*i8", "*fp8e4nv"):
    kinds = {"x": "*bf16", "weight": codes, "scale": "*fp32", "y": "*bf16"}
    kinds |= dict.fromkeys(("count", "outputs", "depth"), "i32")
    compile(quantized_triton.product, kinds, {"ROWS": 16, "COLUMNS": 64, "DEPTH": 64})
shape = {"GROUP": 4, "POSITIONS": 16, "SIZE": 128, "ROWS": 64, "KEYS": 64}
compile(batch_invariant_triton.attention, pages | bounds | numbers, shape)
kinds = dict.fromkeys(("x", "weight", "y"), "*bf16") | {"width": "i32", "epsilon": "fp32"}
compile(batch_invariant_triton.norm, kinds, {"WIDTH": 4096})
kinds = dict.fromkeys(("x", "weight", "bias", "y"), "*bf16")
kinds |= dict.fromkeys(("count", "outputs", "depth"), "i32")
for tile in (narrow_tile(4096, 2), wide_tile(2)):
    shape = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth, "TOGETHER": 8}
    shape |= {"HAS_BIAS": False, "WHOLE": True}
    code = compile(
        batch_invariant_triton.product,
        kinds,
        shape,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    # Both tiles go through the depth in the same steps, or rows could differ between them.
    assert f".m64n{tile.columns}k16.f32.bf16.bf16" in code and "mma.sync" not in code
print("compiled")
"""


def test_the_kernels_compile_for_an_h200() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "compiled", done.stderr
