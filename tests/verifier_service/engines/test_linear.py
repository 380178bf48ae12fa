"""Packed products: the right numbers, and rows that do not depend on their neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from verifier_service.engines.half_product import counts_of, padded_count
from verifier_service.engines.linear import FloatLinear, HalfLinear, fuse, pack_linears, packer


def layer(inputs: int = 48, outputs: int = 32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("rows", [*range(1, 18), 31, 32, 119, 120, 121, 122, 247])
@pytest.mark.parametrize("inputs", [48, 576])
def test_a_half_row_does_not_depend_on_its_neighbours(rows: int, inputs: int) -> None:
    """The property that makes speculative and plain decoding agree beyond rounding."""
    packed = HalfLinear(layer(inputs), torch.bfloat16)
    x = torch.randn(254, inputs)
    assert torch.equal(packed(x[3 : 3 + rows]), packed(x)[3 : 3 + rows])


def test_rows_are_added_where_a_block_would_be_small() -> None:
    """As on a processor without AVX-512, where blocks of one row or two add up in another order."""

    def product(rows: torch.Tensor) -> torch.Tensor:
        # Blocks of six, and what is left over.
        y = rows.clone()
        small = len(rows) % 6
        if small in (1, 2):
            y[-small:] += 1e-6
        return y

    counts = counts_of(product, 8)
    assert counts[:10] == (0, 4, 4, 4, 4, 5, 6, 9, 9, 9)
    assert counts[118:] == (118, 119, 120)
    assert [padded_count(n, counts) for n in (1, 6, 119, 120, 121, 127, 240)] == [
        *(4, 6, 119, 120, 124, 129, 240)
    ]


def test_no_row_is_added_where_all_blocks_are_alike() -> None:
    counts = counts_of(lambda rows: 2 * rows, 8)
    assert counts == tuple(range(121))
    assert padded_count(1, counts) == 1


@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16_weights_fit_half_precision_exactly(bias: bool) -> None:
    linear = layer(bias=bias)
    x = torch.randn(4, 48)
    wanted = x @ linear.weight.bfloat16().float().T
    if bias:
        wanted = wanted + linear.bias
    assert torch.allclose(HalfLinear(linear, torch.bfloat16)(x), wanted, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_float_products_equal_torchs(rows: int) -> None:
    linear = layer(bias=True)
    x = torch.randn(rows, 48)
    assert torch.allclose(FloatLinear(linear)(x), linear(x), atol=1e-5)


def test_leading_dimensions_are_kept() -> None:
    linear = layer()
    x = torch.randn(2, 3, 48)
    assert HalfLinear(linear, torch.bfloat16)(x).shape == (2, 3, 32)


def test_weights_beyond_half_precision_keep_torchs_product() -> None:
    linear = layer()
    linear.weight[0, 0] = 1e6
    _, pack = packer(torch.bfloat16)
    assert pack(linear) is linear


def test_a_product_that_disagrees_is_not_used() -> None:
    packed, other = FloatLinear(layer()), layer()
    other.weight.mul_(2)
    assert packed.agrees(layer())
    assert not packed.agrees(other)


def test_pack_linears_replaces_every_layer() -> None:
    module = nn.Sequential(layer(8, 8), nn.Sequential(nn.ReLU(), layer(8, 4)))
    x = torch.randn(3, 8)
    wanted = module(x)
    _, pack = packer(torch.float32)
    pack_linears(module, pack)
    assert not any(type(child) is nn.Linear for child in module.modules())
    assert torch.allclose(module(x), wanted, atol=1e-5)


def test_fused_layers_give_their_outputs_side_by_side() -> None:
    a, b = layer(8, 4, bias=True), layer(8, 6)
    x = torch.randn(3, 8)
    fused = fuse(a, b)
    assert torch.allclose(fused(x), torch.cat((a(x), b(x)), dim=1), atol=1e-6)
