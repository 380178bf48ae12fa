"""Products of quantised layers are tried before they serve; wrong ones are told from right ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from verifier_service.engines.quantized_check import TRIED_ROWS, wrong_product
from verifier_service.engines.quantized_kernel import tile_for, weight_only_product
from verifier_service.engines.quantized_linear import FP8, INT8, QuantizedLinear, Scheme

CPU = torch.device("cpu")
Product = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def model(scheme: Scheme = INT8) -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Linear(64, 600), nn.Linear(600, 64), nn.Linear(600, 64)]
    return nn.Sequential(*(QuantizedLinear.of(layer, scheme, CPU) for layer in layers))


@pytest.mark.parametrize("scheme", [INT8, FP8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_product_passes(scheme: Scheme, dtype: torch.dtype) -> None:
    assert wrong_product(model(scheme), dtype) == ""


def spoilt(change: Callable[[Tensor], None]) -> Product:
    def product(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
        y = weight_only_product(x, weight, scale, fixed)
        change(y)
        return y

    return product


def one_element(y: Tensor) -> None:
    y[-1, -1] += 2 * y.abs().max()


def last_row_left_out(y: Tensor) -> None:
    y[-1] = 0


def not_a_number(y: Tensor) -> None:
    y[0, 0] = torch.nan


@pytest.mark.parametrize("change", [one_element, last_row_left_out, not_a_number])
def test_a_wrong_product_is_told(change: Callable[[Tensor], None]) -> None:
    wrong = wrong_product(model(), torch.bfloat16, spoilt(change))
    assert wrong.startswith("layer 0, 1 rows: the product is off by")


def test_a_product_that_is_wrong_for_some_number_of_rows_is_told() -> None:
    def many_rows(y: Tensor) -> None:
        if y.shape[0] > 64:
            y.roll(1, dims=1)
            y[:, :32] = y[:, 32:64].clone()

    assert "layer 0, 65 rows" in wrong_product(model(), torch.bfloat16, spoilt(many_rows))


def test_a_product_that_does_not_run_is_told() -> None:
    def product(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
        raise RuntimeError("out of resource: shared memory")

    wrong = wrong_product(model(), torch.bfloat16, product)
    assert "does not run here: RuntimeError: out of resource" in wrong


def test_each_shape_is_tried_once_and_with_every_tile() -> None:
    seen: list[tuple[int, int]] = []

    def product(x: Tensor, weight: Tensor, scale: Tensor, fixed: bool) -> Tensor:
        seen.append((x.shape[0], weight.shape[0]))
        return weight_only_product(x, weight, scale, fixed)

    assert wrong_product(model(), torch.bfloat16, product) == ""
    assert seen == [(rows, outputs) for outputs in (600, 64) for rows in TRIED_ROWS]
    tiles = {tile_for(rows, 4096, False) for rows in range(1, 257)}
    assert {tile_for(rows, 4096, False) for rows in TRIED_ROWS} == tiles
    assert max(TRIED_ROWS) > 256, "prefill's way"


def test_a_model_without_quantised_layers_passes() -> None:
    assert wrong_product(nn.Sequential(nn.Linear(4, 4)), torch.float32) == ""
