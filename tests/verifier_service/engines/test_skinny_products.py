"""Products of few rows: which tile, what is tried, what a compiler sees, what a kernel computes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines import (
    fused,
    skinny_gated,
    skinny_layers,
    skinny_products,
    skinny_tiles,
)
from verifier_service.engines.quantized_linear import INT8, QuantizedLinear
from verifier_service.engines.skinny_gated import SkinnyGated, gated_on_cuda
from verifier_service.engines.skinny_layers import SkinnyProducts, disagreement, suits
from verifier_service.engines.skinny_products import SkinnyLinear, linear_on_cuda
from verifier_service.engines.skinny_tiles import (
    BUCKETS,
    COUNTERS,
    Tile,
    gated_tile_for,
    split_for,
    tile_for,
)

# Buckets whose rows are ours whether anything was measured or not.
SERVED = (16, 32, 64)
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (49152, 4096), (1000, 512)]


def layer(inputs: int = 64, outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inputs, outputs, bias).requires_grad_(False)


class OnCard(nn.Parameter):
    """Weights that say they are on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[Tile]:
    """A GPU with 132 multiprocessors whose kernel is torch's product; the tiles it was given."""
    tiles: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        tiles.append(tile)
        return F.linear(x, weight, bias)

    monkeypatch.setattr(skinny_products, "launch", launch)
    for module in (skinny_products, skinny_gated, skinny_layers):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(skinny_layers, "_LEAST_WEIGHTS", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return tiles


def on_card(linear: nn.Linear) -> nn.Linear:
    linear.weight = OnCard(linear.weight.bfloat16(), requires_grad=False)
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.bfloat16(), requires_grad=False)
    return linear


@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
def test_rows_fit_their_tile_and_tiles_the_memory_of_a_multiprocessor(
    outputs: int, depth: int
) -> None:
    for rows in range(1, SERVED[-1] + 1):
        tile = tile_for(rows, outputs, depth, 132)
        bucket = next(size for size in BUCKETS if rows <= size)
        if (bucket, outputs, depth, 132) in skinny_tiles._MEASURED:
            assert tile == skinny_tiles._MEASURED[bucket, outputs, depth, 132]
        if tile is None:
            # An H200 has shown that torch's product is faster.
            assert skinny_tiles._MEASURED[bucket, outputs, depth, 132] is None
            continue
        assert tile.rows in BUCKETS and rows <= tile.rows < 2 * max(rows, 16)
        assert tile.shape.columns % 64 == 0 and tile.shape.depth % 16 == 0
        assert tile.shape.shared(tile.rows) <= 227 << 10
        tiles = -(-outputs // tile.shape.columns)
        assert tile.split == 1 or tiles <= COUNTERS
        assert tile.split * tile.shape.depth <= depth
    for rows in range(SERVED[-1] + 1, BUCKETS[-1] + 2):
        assert tile_for(rows, outputs, depth, 132) is None
    assert tile_for(0, outputs, depth, 132) is None


def test_a_sum_is_split_where_outputs_are_few_and_programs_run_at_once() -> None:
    shape = skinny_tiles._SHAPES[16][0]
    assert split_for(shape, 16, 4096, 4096, 132) == 8
    assert split_for(shape, 16, 4096, 4096, 66) == 4
    assert split_for(shape, 16, 49152, 4096, 132) == 1
    assert split_for(shape, 64, 4096, 4096, 132) == 4, "parts of many rows cost more"
    assert split_for(shape, 16, 4096, 256, 132) == 1, "a part has some steps"


def test_the_measured_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tile_for(3, 320, 64, 132)
    assert usual is not None
    served = ((32, 320, 64, 132), (128, 320, 64, 132))
    measured: dict[tuple[int, int, int, int], Tile | None] = dict.fromkeys(served, usual)
    measured[16, 320, 64, 132] = None
    monkeypatch.setattr(skinny_tiles, "_MEASURED", measured)
    skinny_tiles._tile.cache_clear()
    try:
        assert tile_for(3, 320, 64, 132) is None
        assert tile_for(20, 320, 64, 132) is usual
        assert tile_for(128, 320, 64, 132) is usual
        assert tile_for(3, 320, 64, 114) is not None
    finally:
        skinny_tiles._tile.cache_clear()


def test_a_layer_that_agrees_is_replaced_and_tried_once(card: list[Tile]) -> None:
    products = SkinnyProducts()
    linear = on_card(layer())
    found = products.linear(linear)
    assert isinstance(found, SkinnyLinear)
    assert found.weight is linear.weight and found.bias is linear.bias
    assert {tile.rows for tile in card} == set(SERVED)
    tried = len(card)
    assert isinstance(products.linear(on_card(layer())), SkinnyLinear)
    assert len(card) == tried
    products.linear(on_card(layer(outputs=48)))
    assert len(card) == 2 * tried


@pytest.mark.parametrize("which", ["wide", "float32", "cpu", "small", "capability", "odd depth"])
def test_what_does_not_suit_stays(
    which: str, card: list[Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = on_card(layer(inputs=72 if which == "odd depth" else 64))
    if which == "wide":
        linear.weight = OnCard(torch.zeros(40, 128).bfloat16()[:, ::2], requires_grad=False)
    if which == "float32":
        linear.weight = OnCard(linear.weight.float(), requires_grad=False)
    if which == "cpu":
        linear.weight = nn.Parameter(linear.weight.data.clone(), requires_grad=False)
    if which == "small":
        monkeypatch.setattr(skinny_layers, "_LEAST_WEIGHTS", linear.weight.numel() + 1)
    if which == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not suits(linear.weight)
    assert SkinnyProducts().linear(linear) is linear
    assert not card


def test_other_kinds_of_layers_stay(card: list[Tile]) -> None:
    quantized = QuantizedLinear.of(layer(), INT8, torch.device("cpu"))
    relu = nn.ReLU()
    assert SkinnyProducts().linear(quantized) is quantized
    assert SkinnyProducts().linear(relu) is relu
    assert not card


@pytest.mark.parametrize("fault", ["off", "varies", "not a number"])
def test_a_kernel_that_is_wrong_is_not_used(
    fault: str,
    card: list[Tile],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        calls.append(tile.rows)
        y = F.linear(x, weight, bias)
        if tile.rows == SERVED[1]:
            if fault == "off":
                y[-1, -1] += 1.0
            if fault == "varies" and len(calls) % 2:
                y *= 1.01
            if fault == "not a number":
                y[0, 0] = torch.nan
        return y

    monkeypatch.setattr(skinny_products, "launch", launch)
    linear = on_card(layer())
    with caplog.at_level(logging.WARNING):
        assert SkinnyProducts().linear(linear) is linear
    assert "product of few rows 64 -> 40 is torch's: 32 rows are" in caplog.text


def test_a_kernel_that_does_not_compile_is_asked_for_once(
    card: list[Tile], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        asked.append(tile)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(skinny_products, "launch", launch)
    products = SkinnyProducts()
    for outputs in (40, 48):
        linear = on_card(layer(outputs=outputs))
        assert products.linear(linear) is linear
    assert len(asked) == 1
    assert "no such instruction" in caplog.text


def test_a_trial_has_rows_of_every_bucket() -> None:
    seen: list[int] = []

    def product(x: Tensor) -> Tensor:
        seen.append(x.shape[0])
        return x * 2

    assert disagreement(torch.zeros(4, 8), product, product) == ""
    assert set(seen) == {1, 16, 17, 32, 33, 64, 65, 128}


def test_more_rows_than_a_tile_holds_are_torchs(card: list[Tile]) -> None:
    linear = on_card(layer())
    for rows, kernels in ((SERVED[-1], 1), (SERVED[-1] + 1, 1), (BUCKETS[-1] + 1, 1), (0, 1)):
        x = torch.randn(rows, 64).bfloat16()
        y = linear_on_cuda(x, linear.weight, linear.bias)
        assert torch.equal(y, F.linear(x, linear.weight, linear.bias))
        assert len(card) == kernels


def gated_by_definition(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.fixture
def gated_card(card: list[Tile], monkeypatch: pytest.MonkeyPatch) -> list[Tile]:
    """The same with gated kernels; the tiles they were given."""
    tiles: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
        tiles.append(tile)
        return gated_by_definition(x, weight)

    def join_halves(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    monkeypatch.setattr(skinny_gated, "launch", launch)
    monkeypatch.setattr(skinny_gated, "join_halves", join_halves)
    monkeypatch.setattr(skinny_tiles, "_LEAST_GATED", 0)
    return tiles


def test_a_joined_layer_without_bias_is_gated_in_one(gated_card: list[Tile]) -> None:
    products = SkinnyProducts()
    joined = on_card(layer(outputs=80, bias=False))
    gated = products.gated(joined)
    assert isinstance(gated, SkinnyGated) and gated.weight is joined.weight
    assert {tile.rows for tile in gated_card} == set(SERVED)
    x = torch.randn(5, 64).bfloat16()
    for rows, kernels in ((5, 1), (SERVED[-1] + 1, 0), (BUCKETS[-1] + 1, 0)):
        gated_card.clear()
        x = torch.randn(rows, 64).bfloat16()
        found = gated_on_cuda(x, joined.weight)
        assert torch.equal(found, gated_by_definition(x, joined.weight))
        assert len(gated_card) == kernels


@pytest.mark.parametrize("which", ["bias", "relu", "cpu", "few", "wrong"])
def test_what_is_not_gated_in_one_is_gated_in_two(
    which: str, gated_card: list[Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: nn.Module = on_card(layer(outputs=80, bias=which == "bias"))
    if which == "relu":
        joined = nn.ReLU()
    if which == "cpu":
        joined = layer(outputs=80, bias=False)
    if which == "few":
        monkeypatch.setattr(skinny_tiles, "_LEAST_GATED", 1)
    if which == "wrong":
        monkeypatch.setattr(skinny_gated, "launch", lambda x, weight, tile: x[:, :40] * 9)
    gated = SkinnyProducts().gated(joined)
    assert isinstance(gated, fused.Gated)
    assert isinstance(gated.joined, SkinnyLinear) == (which in ("bias", "few", "wrong"))
    assert not gated_card
    dtype = torch.float32 if which == "cpu" else torch.bfloat16
    x = torch.randn(3, 64, dtype=dtype)
    gate, up = joined(x).chunk(2, dim=-1)
    assert torch.equal(gated(x), F.silu(gate) * up)


def test_gated_tiles_hold_both_halves() -> None:
    for rows in range(1, SERVED[-1] + 1):
        tile = gated_tile_for(rows, 14336, 132)
        assert tile is not None and rows <= tile.rows and tile.split == 1
        # A tensor core's tall operand has 64 rows: so many of gates, and of ups.
        assert tile.shape.columns % 128 == 0 and tile.shape.shared(tile.rows) <= 227 << 10
        assert gated_tile_for(rows, 5000, 132) is None, "too few programs"
    assert gated_tile_for(SERVED[-1] + 1, 14336, 132) is None


def test_compiled_code_sees_one_operator_for_any_number_of_rows() -> None:
    linear = layer()
    skinny = SkinnyLinear(linear)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def region(x: Tensor) -> Tensor:
        return F.silu(skinny(x)) * 2

    compiled = torch.compile(region, backend=backend, dynamic=True, fullgraph=True)
    for rows in (2, 9, 30, 200):
        x = torch.randn(rows, 64)
        assert torch.equal(compiled(x), F.silu(linear(x)) * 2)
    assert len(graphs) == 1
    assert skinny(torch.randn(2, 3, 64)).shape == (2, 3, 40)


def test_the_operator_keeps_its_promises_to_a_compiler() -> None:
    linear = layer()
    torch.library.opcheck(
        torch.ops.outrider.skinny_linear.default,
        (torch.randn(3, 64), linear.weight, linear.bias),
        test_utils=("test_schema", "test_faketensor"),
    )


def run_apart(program: str, **environment: str) -> str:
    """What a program beside this one prints, in a process of its own."""
    pytest.importorskip("triton")
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, str(here.with_name(program))],
        env={**os.environ, **environment, "PYTHONPATH": str(here.parents[3])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiled_code_sees_one_gated_operator() -> None:
    joined = layer(outputs=80, bias=False)
    gated = SkinnyGated(joined)
    compiled = torch.compile(gated, backend="eager", dynamic=True, fullgraph=True)
    for rows in (2, 9, 200):
        x = torch.randn(rows, 64)
        assert torch.equal(compiled(x), gated_by_definition(x, joined.weight))
    torch.library.opcheck(
        torch.ops.outrider.skinny_gated.default,
        (torch.randn(3, 64), joined.weight),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_the_kernel_is_the_product_by_its_definition() -> None:
    # The interpreter is chosen when the kernel's module is first read.
    printed = run_apart("interpret_skinny_products.py", TRITON_INTERPRET="1")
    assert printed.split() == [
        "every_count_of_rows",
        "tails",
        "more_parts_than_steps",
        "gated",
    ]


def test_the_kernels_of_the_table_compile_for_an_h200_as_they_are_meant_to() -> None:
    assert int(run_apart("compile_skinny_products.py").split()[0]) >= len(SERVED)
