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
from verifier_service.engines.short_attention import short_attention

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


@pytest.mark.parametrize(
    ("sequences", "longest", "parts"),
    [
        # All processors have something to do, and no part is smaller than the least.
        (2, 4096, 32),
        (8, 4096, 17),
        (32, 4096, 5),
        (128, 4096, 2),
        (512, 4096, 1),
        # A short table, and one so long that adding would take longer than reading.
        (2, 256, 2),
        (2, 64, 1),
        (1, 1 << 20, 64),
    ],
)
def test_keys_are_split_until_all_processors_work(sequences: int, longest: int, parts: int) -> None:
    from verifier_service.engines.paged_triton import Tuning, most_parts

    tuning = Tuning(programs=8, least_keys=128, keys=64, warps=4, stages=3)
    assert most_parts(sequences * 8, 132, longest, tuning) == parts


def test_a_cpu_needs_no_kernel() -> None:
    cache = PagedCache([(2, 64)], 3, 256, torch.float32, torch.device("cpu"))
    assert short_attention(cache, 8) is None
