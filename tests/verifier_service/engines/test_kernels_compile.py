"""Triton's own compiler takes our kernels down to code for an H200, which needs no GPU.

Its interpreter runs what the compiler refuses, so that is no proof.
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
from verifier_service.engines import paged_triton, quantized_triton

HOPPER = GPUTarget("cuda", 90, 32)


def compile(kernel, kinds, constants):
    signature = kinds | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert "cubin" in triton.compile(source, target=HOPPER).asm


pages = dict.fromkeys(("query", "keys", "values", "out"), "*bf16")
bounds = dict.fromkeys(("cu_query", "used", "table"), "*i32")
numbers = {"table_stride": "i32", "scale": "fp32", "heads": "i32", "kv_heads": "i32", "page": "i32"}
for rows, size in ((16, 64), (64, 128)):
    shape = {"GROUP": 4, "SIZE": size, "ROWS": rows, "KEYS": paged_triton.KEYS_AT_ONCE}
    compile(paged_triton._kernel, pages | bounds | numbers, shape)
for codes in ("*i8", "*fp8e4nv"):
    kinds = {"x": "*bf16", "weight": codes, "scale": "*fp32", "y": "*bf16"}
    kinds |= dict.fromkeys(("count", "outputs", "depth"), "i32")
    compile(quantized_triton.product, kinds, {"ROWS": 16, "COLUMNS": 64, "DEPTH": 64})
print("compiled")
"""


def test_the_kernels_compile_for_an_h200() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "compiled", done.stderr
