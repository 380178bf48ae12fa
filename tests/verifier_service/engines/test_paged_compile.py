"""The paged attention kernel's machine code for an H200, as it is tuned: compiled without a GPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from verifier_service.engines import paged_kernels, paged_triton

_POINTERS = dict.fromkeys(("query", "keys", "values", "out"), "*bf16")
_POINTERS |= {"partial": "*fp32"} | dict.fromkeys(("counters", "cu_query", "used", "table"), "*i32")
_NUMBERS = {"table_stride": "i32", "scale": "fp32", "least": "i32"}


def _compiled(kernel: Any, kinds: dict[str, str], constants: dict[str, int], **options: int) -> Any:
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(kinds.items())
        if kind.startswith("*") or name == "least"
    }
    signature = kinds | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_the_tuned_kernel_reads_ahead_and_spills_nothing(rows: int, tmp_path: Path) -> None:
    tuning = paged_triton._fitting(paged_triton._TUNED[rows], 256, 128 * 2)
    constants = {"HEADS": 32, "KV_HEADS": 8, "PAGE": 256, "SIZE": 128, "ROWS": rows}
    constants |= {"KEYS": tuning.keys, "SPLIT": True, "COUNTED": True}
    code = _compiled(
        paged_kernels.attend_part,
        _POINTERS | _NUMBERS,
        constants,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
    # In the loop over keys, what was asked for behind this round's keys and values is on its way.
    waits = [int(left) for left in re.findall(r"async_wait.*?num = (\d+)", code.asm["ttgir"])]
    assert max(waits) == 2 * (tuning.stages - 2)
    # Counting releases what this program wrote and acquires what the others did.
    assert "atom.global.gpu.acq_rel" in code.asm["ptx"]
    assert code.metadata.shared <= 227 * 1024
    program = tmp_path / "kernel.cubin"
    program.write_bytes(code.asm["cubin"])
    reader = triton.knobs.nvidia.cuobjdump.path
    used = subprocess.run(
        [reader, "-res-usage", str(program)], capture_output=True, text=True, check=True
    ).stdout
    assert "STACK:0" in used and "LOCAL:0" in used, used


def test_the_kernel_of_unsplit_keys_and_that_of_sums_compile() -> None:
    constants = {"HEADS": 8, "KV_HEADS": 2, "SIZE": 64, "ROWS": 16, "KEYS": 64}
    split = {"PAGE": 128, "SPLIT": False, "COUNTED": True}
    code = _compiled(paged_kernels.attend_part, _POINTERS | _NUMBERS, constants | split)
    assert "atom.global" not in code.asm["ptx"]
    kinds = {"out": "*bf16", "partial": "*fp32", "cu_query": "*i32", "used": "*i32"}
    kinds |= {"most": "i32", "least": "i32"}
    assert "cubin" in _compiled(paged_kernels.add_parts, kinds, constants).asm
