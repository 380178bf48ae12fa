"""Layers and norms of one tile on a GPU: which tile, what is tried, what a compiler sees."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from verifier_service.engines import batch_invariant_products, fused
from verifier_service.engines.batch_invariant_products import (
    FixedLinear,
    LinearFixer,
    Tile,
    fixed_rms,
    narrow_tile,
    wide_agrees,
    wide_tile,
)
from verifier_service.engines.quantized_linear import INT8, QuantizedLinear


def layer(inputs: int = 64, outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inputs, outputs, bias).requires_grad_(False)


@pytest.mark.parametrize("outputs", [512, 4096, 6144, 28672, 128256])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_suit_one_instruction_and_the_memory_of_a_multiprocessor(
    outputs: int, itemsize: int
) -> None:
    for tile in (narrow_tile(outputs, itemsize), wide_tile(itemsize)):
        # Hopper's instruction takes 64 rows and a multiple of 8 columns, 16 deep.
        assert tile.rows % 64 == 0 and tile.columns % 8 == 0 and tile.depth % 16 == 0
        held = (tile.rows + tile.columns) * tile.depth * itemsize * tile.stages
        assert held <= 96 << 10


def test_a_fixed_layer_is_the_layer_and_shares_its_weights() -> None:
    linear = layer()
    fixed = LinearFixer().fixed(linear)
    assert isinstance(fixed, FixedLinear)
    assert fixed.weight is linear.weight and not fixed.wide
    x = torch.randn(21, 64)
    assert torch.allclose(fixed(x), linear(x), atol=1e-5)
    assert fixed(torch.randn(2, 3, 64)).shape == (2, 3, 40)
    alone = torch.cat([fixed(row[None]) for row in x])
    assert torch.equal(alone, fixed(x))


def test_the_fixer_reaches_every_layer_below_a_module() -> None:
    quantized = QuantizedLinear.of(layer(), INT8, torch.device("cpu"))
    module = nn.Sequential(layer(64, 64), nn.Sequential(nn.ReLU(), quantized))
    x = torch.randn(5, 64)
    wanted = module(x)
    assert LinearFixer().fixed(module) is module
    assert isinstance(module[0], FixedLinear)
    assert quantized.fixed_shapes
    assert torch.allclose(module(x), wanted, atol=1e-5)


def test_what_is_no_linear_layer_stays() -> None:
    relu = nn.ReLU()
    assert LinearFixer().fixed(relu) is relu


class OnCard(nn.Parameter):
    """Weights that say they are on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize("agree", [True, False])
def test_large_tiles_are_taken_only_where_they_give_the_same_bits(
    agree: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        tried.append(tile)
        return x @ weight.T + (0 if agree else tile.rows * 1e-6)

    monkeypatch.setattr(batch_invariant_products, "launch", launch)
    fixer = LinearFixer()
    fixed = []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            linear = layer()
            linear.weight = OnCard(linear.weight, requires_grad=False)
            fixed.append(fixer.fixed(linear))
    assert [one.wide for one in fixed] == [agree, agree]  # type: ignore[union-attr]
    assert tried == [narrow_tile(40, 4), wide_tile(4)], "one trial for each shape"
    assert ("prefill takes small ones" in caplog.text) is not agree


def test_a_trial_has_more_rows_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        seen.append(x.shape[0])
        return x @ weight.T

    monkeypatch.setattr(batch_invariant_products, "launch", launch)
    assert wide_agrees(layer().weight)
    assert min(seen) > wide_tile(2).rows > narrow_tile(40, 2).rows


@pytest.mark.parametrize(
    ("rows", "wide", "wanted"),
    [
        (1, True, narrow_tile(40, 4)),
        (128, True, narrow_tile(40, 4)),
        (129, True, wide_tile(4)),
        (5000, False, narrow_tile(40, 4)),
    ],
)
def test_the_tile_of_a_launch(
    rows: int, wide: bool, wanted: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles: list[Tile] = []

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        tiles.append(tile)
        return x

    monkeypatch.setattr(batch_invariant_products, "launch", launch)
    linear = layer()
    batch_invariant_products._linear_on_cuda(torch.zeros(rows, 64), linear.weight, None, wide)
    assert tiles == [wanted]


@pytest.mark.parametrize("shape", [(5, 64), (3, 4, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_the_fused_decoders(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(*shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype)
    assert torch.equal(fixed_rms(x, weight, 1e-5), fused.rms(x, weight, 1e-5))


def compiled_once(function: Callable[..., Tensor], calls: list[tuple[Tensor, ...]]) -> int:
    """How many graphs a compiler makes of it; results are compared."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for arguments in calls:
        assert torch.equal(compiled(*arguments), function(*arguments))
    return len(graphs)


def test_compiled_code_sees_one_operator_for_any_number_of_rows() -> None:
    fixed = FixedLinear(layer())
    assert compiled_once(fixed, [(torch.randn(count, 64),) for count in (2, 9, 30)]) == 1


def test_a_compiled_norm_is_one_operator_too() -> None:
    weight = torch.randn(64)

    def normed(x: Tensor) -> Tensor:
        return fixed_rms(x, weight, 1e-5) + x

    assert compiled_once(normed, [(torch.randn(count, 64),) for count in (2, 9, 30)]) == 1


@pytest.mark.parametrize("operator", ["fixed_linear", "fixed_rms"])
def test_operators_keep_their_promises_to_a_compiler(operator: str) -> None:
    linear = layer()
    x = torch.randn(3, 64)
    arguments = {
        "fixed_linear": (x, linear.weight, linear.bias, False),
        "fixed_rms": (x, torch.randn(64), 1e-5),
    }
    torch.library.opcheck(
        getattr(torch.ops.outrider, operator).default,
        arguments[operator],
        test_utils=("test_schema", "test_faketensor"),
    )
