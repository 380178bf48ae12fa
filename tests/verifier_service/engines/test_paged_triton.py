"""The Triton kernel in Triton's own interpreter, in a process of its own: it reads an environment
variable once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from verifier_service.engines.attention import PagedCache
from verifier_service.engines.short_attention import ShortAttention, short_attention

pytest.importorskip("triton")

PROGRAM = Path(__file__).with_name("interpret_paged_triton.py")


def test_the_kernel_computes_attention_by_its_definition() -> None:
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'protos'}",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["right"] * 7


def test_a_cpu_needs_no_kernel() -> None:
    cache = PagedCache([(2, 64)], 3, 256, torch.float32, torch.device("cpu"))
    assert short_attention(cache, 8) is None
    assert ShortAttention(None) is not None
