"""Rounded layers: what a code stands for, and products that equal those of the rounded weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from verifier_service.engines.linear import CodesLinear, fuse, pack_linears, packer
from verifier_service.engines.quantized_linear import (
    FP8,
    INT8,
    QuantizedLinear,
    Scheme,
    round_channels,
)

CPU = torch.device("cpu")
SCHEMES = pytest.mark.parametrize("scheme", [INT8, FP8], ids=lambda scheme: scheme.name)


def layer(inputs: int = 48, outputs: int = 32, bias: bool = False, seed: int = 5) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def rounded(linear: nn.Linear, scheme: Scheme) -> QuantizedLinear:
    return QuantizedLinear.of(linear, scheme, CPU)


def whole(rows: int, inputs: int) -> Tensor:
    """Inputs whose products with codes are whole numbers: sums are exact in any order."""
    return torch.randint(-8, 9, (rows, inputs), generator=torch.Generator().manual_seed(rows)) * 1.0


def test_int8_rounds_to_the_nearest_of_255_steps() -> None:
    weight = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    codes, scale = round_channels(weight, INT8)
    assert codes.dtype == torch.int8
    assert codes.abs().amax(dim=1).tolist() == [127] * 20
    error = (weight - codes * scale[:, None]).abs()
    assert bool((error <= scale[:, None] * 0.5001).all())


def test_fp8_keeps_four_bits_of_every_weight() -> None:
    weight = torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
    codes, scale = round_channels(weight, FP8)
    assert codes.dtype == torch.float8_e4m3fn
    assert codes.float().abs().amax(dim=1).tolist() == [448.0] * 20
    error = (weight - codes.float() * scale[:, None]).abs()
    # Half a step of a normal number's three stored bits, or of the smallest numbers' spacing.
    allowed = torch.maximum(weight.abs() * 2**-4, scale[:, None] * 2**-10)
    assert bool((error <= allowed * 1.0001).all())


@SCHEMES
def test_each_channel_has_a_scale_of_its_own(scheme: Scheme) -> None:
    """A channel a thousand times larger costs the others nothing."""
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    loud = weight.clone()
    loud[2] *= 1000
    codes, scale = round_channels(weight, scheme)
    loud_codes, loud_scale = round_channels(loud, scheme)
    others = torch.tensor([0, 1, 3])
    assert torch.equal(codes[others].float(), loud_codes[others].float())
    assert torch.equal(scale[others], loud_scale[others])
    assert float(loud_scale[2] / scale[2]) == pytest.approx(1000)


@SCHEMES
def test_symmetric_and_zero(scheme: Scheme) -> None:
    weight = torch.stack([torch.tensor([1.0, -1.0, 0.0, 0.25]), torch.zeros(4)])
    codes, scale = round_channels(weight, scheme)
    values = codes.float() * scale[:, None]
    assert values[0, 0] == -values[0, 1] == pytest.approx(1.0)
    assert values[0, 2] == 0
    assert values[1].tolist() == [0.0] * 4
    assert bool(scale.isfinite().all()) and bool((scale > 0).all())


@SCHEMES
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_weights_that_no_code_can_stand_for_are_refused(scheme: Scheme, bad: float) -> None:
    linear = layer()
    linear.weight[3, 7] = bad
    with pytest.raises(ValueError, match="infinite or not a number"):
        rounded(linear, scheme)


@SCHEMES
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("packed", [False, True])
def test_products_are_those_of_the_rounded_weights_exactly(
    scheme: Scheme, rows: int, packed: bool
) -> None:
    quantized = rounded(layer(), scheme)
    x = whole(rows, 48)
    sums = (x.double() @ quantized.weight.double().T).float()
    product = CodesLinear(quantized) if packed else quantized
    assert torch.equal(product(x), sums * quantized.scale)


@SCHEMES
@pytest.mark.parametrize("packed", [False, True])
def test_a_bias_is_added_unrounded(scheme: Scheme, packed: bool) -> None:
    linear = layer(bias=True)
    quantized = rounded(linear, scheme)
    product = CodesLinear(quantized) if packed else quantized
    assert torch.equal(product(torch.zeros(3, 48)), linear.bias.expand(3, -1))


@SCHEMES
def test_any_input_agrees_with_dequantised_weights(scheme: Scheme) -> None:
    quantized = rounded(layer(bias=True), scheme)
    x = torch.randn(7, 48)
    wanted = nn.functional.linear(x, quantized.dequantized(), quantized.bias)
    assert torch.allclose(quantized(x), wanted, atol=1e-5)
    assert torch.allclose(CodesLinear(quantized)(x), wanted, atol=1e-5)


@SCHEMES
def test_bfloat16_inputs_are_summed_in_float32_and_rounded_once(scheme: Scheme) -> None:
    quantized = rounded(layer(), scheme)
    x = whole(5, 48)
    narrow = quantized(x.bfloat16())
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, quantized(x).bfloat16())


@SCHEMES
def test_codes_take_one_byte(scheme: Scheme) -> None:
    assert rounded(layer(), scheme).weight.element_size() == 1


def test_weights_are_rounded_to_the_dtype_they_would_be_held_in_first() -> None:
    linear = layer()
    once = QuantizedLinear.of(linear, INT8, CPU, torch.bfloat16)
    codes, scale = round_channels(linear.weight.bfloat16(), INT8)
    assert torch.equal(once.weight, codes)
    assert torch.equal(once.scale, scale)
    assert not torch.equal(scale, rounded(linear, INT8).scale)


@SCHEMES
def test_leading_dimensions_are_kept(scheme: Scheme) -> None:
    quantized = rounded(layer(), scheme)
    x = whole(6, 48).view(2, 3, 48)
    assert quantized(x).shape == (2, 3, 32)
    assert torch.equal(quantized(x)[1, 2], quantized(x[1, 2:3])[0])


@SCHEMES
@pytest.mark.parametrize("bias", [False, True])
def test_joined_layers_give_their_outputs_side_by_side(scheme: Scheme, bias: bool) -> None:
    parts = [rounded(layer(outputs=n, bias=bias, seed=n), scheme) for n in (32, 8, 8)]
    x = whole(3, 48)
    wanted = torch.cat([part(x) for part in parts], dim=1)
    joined = fuse(*parts)
    assert isinstance(joined, QuantizedLinear)
    assert torch.equal(joined(x), wanted)
    assert torch.equal(torch.cat([part(x) for part in parts], dim=1), wanted)


def test_joining_some_with_a_bias_and_some_without() -> None:
    a, b = rounded(layer(bias=True), INT8), rounded(layer(outputs=8), INT8)
    x = whole(3, 48)
    assert torch.equal(QuantizedLinear.joined([a, b])(x), torch.cat((a(x), b(x)), dim=1))


def test_joined_layers_share_one_copy_of_the_codes() -> None:
    a, b = rounded(layer(), INT8), rounded(layer(outputs=8), INT8)
    joined = QuantizedLinear.joined([a, b])
    memory = joined.weight.untyped_storage().data_ptr()
    assert {part.weight.untyped_storage().data_ptr() for part in (a, b)} == {memory}


@SCHEMES
def test_packing_replaces_quantised_layers_too(scheme: Scheme) -> None:
    module = nn.Sequential(rounded(layer(), scheme), nn.ReLU(), layer(32, 4))
    x = torch.randn(3, 48)
    wanted = module(x)
    _, pack = packer(torch.bfloat16)
    pack_linears(module, pack)
    assert isinstance(module[0], CodesLinear)
    assert torch.allclose(module(x), wanted, atol=1e-2)


def test_a_packed_row_does_not_depend_on_its_neighbours() -> None:
    packed = CodesLinear(rounded(layer(576), INT8))
    x = torch.randn(33, 576)
    for rows in (1, 2, 5, 8, 16):
        assert torch.equal(packed(x[3 : 3 + rows]), packed(x)[3 : 3 + rows])


def test_compiled_code_sees_one_operator() -> None:
    """torch.compile traces through the layer without a break, for any number of rows."""
    quantized = rounded(layer(bias=True), INT8)
    counts: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        calls = [node for node in graph.graph.nodes if "weight_only" in str(node.target)]
        counts.append(len(calls))
        return graph

    compiled = torch.compile(quantized, backend=backend, dynamic=True, fullgraph=True)
    for rows in (2, 3, 9):
        x = whole(rows, 48)
        assert torch.equal(compiled(x), quantized(x))
    assert counts == [1]
