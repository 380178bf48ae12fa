"""The CUDA product: its tiles, and its kernel under Triton's interpreter, which needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from verifier_service.engines import quantized_kernel
from verifier_service.engines.quantized_kernel import Tile, tile_for

# The interpreter is chosen when the kernel's module is first read, so in a process of its own. It
# multiplies bfloat16 as the integers that hold it: inputs are half precision here.
_PROGRAM = """
import torch
from verifier_service.engines.quantized_kernel import Tile, launch, tile_for
from verifier_service.engines.quantized_linear import FP8, INT8, round_channels

torch.manual_seed(3)
for scheme in (INT8, FP8):
    for rows, outputs, inputs in ((1, 33, 130), (3, 16, 40), (70, 40, 24)):
        codes, scale = round_channels(torch.randn(outputs, inputs), scheme)
        x = torch.randint(-8, 9, (rows, inputs)).to(torch.float16)
        wanted = ((x.double() @ codes.double().T).float() * scale).to(x.dtype)
        for outputs_said, fixed in ((512, False), (4096, False), (4096, True)):
            found = launch(x, codes, scale, tile_for(rows, outputs_said, fixed))
            assert found.dtype == x.dtype and found.shape == wanted.shape
            assert torch.equal(found, wanted), (scheme.name, rows, outputs, inputs, fixed)
    # Rows that are no whole matrix in memory.
    x = torch.randint(-8, 9, (6, 2 * 40)).to(torch.float16)[::2, :40]
    codes, scale = round_channels(torch.randn(20, 40), scheme)
    wanted = ((x.double() @ codes.double().T).float() * scale).to(x.dtype)
    assert torch.equal(launch(x, codes, scale, Tile(16, 16, 32, 4, 2)), wanted)
print("equal")
"""


def test_the_kernel_computes_the_product() -> None:
    """Every tile, both kinds of codes, shapes that no tile divides."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_a_fixed_tile_does_not_depend_on_the_number_of_rows() -> None:
    for outputs in (512, 4096, 28672):
        assert len({tile_for(rows, outputs, True) for rows in (1, 2, 16, 17, 200, 5000)}) == 1


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32, 33, 64, 65, 256])
def test_rows_share_a_tile_where_they_fit_one(rows: int) -> None:
    tile = tile_for(rows, 4096, False)
    assert tile.rows >= min(rows, 128)
    assert tile.rows >= 16, "the tensor cores' smallest"


def test_small_layers_are_cut_finer() -> None:
    assert tile_for(1, 1024, False).columns < tile_for(1, 4096, False).columns


@pytest.mark.parametrize(
    ("dtype", "rows", "fixed", "through_kernel"),
    [
        (torch.bfloat16, 256, False, True),
        (torch.bfloat16, 257, False, False),
        (torch.bfloat16, 5000, True, True),
        # Sums of unscaled codes exceed half precision.
        (torch.float16, 5000, False, True),
    ],
)
def test_prefill_widens_codes_where_their_sums_fit(
    dtype: torch.dtype,
    rows: int,
    fixed: bool,
    through_kernel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, scale: Tensor, tile: Tile) -> Tensor:
        launched.append(tile)
        return x

    monkeypatch.setattr(quantized_kernel, "launch", launch)
    x = torch.zeros(rows, 8, dtype=dtype)
    weight = torch.ones(4, 8, dtype=torch.int8)
    quantized_kernel._on_cuda(x, weight, torch.ones(4), fixed)
    assert bool(launched) is through_kernel
