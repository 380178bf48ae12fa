"""Products whose rows do not depend on their number; on real kernels and on ones that cheat."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from verifier_service.engines import lean
from verifier_service.engines.batch_invariant import (
    TiledProduct,
    by_rows,
    configure_matmul,
    in_fixed_tiles,
    invariant_packer,
)
from verifier_service.engines.linear import FloatLinear, HalfLinear, packer
from verifier_service.engines.quantized_linear import INT8, QuantizedLinear

COUNTS = (1, 2, 5, 8, 9, 31, 32, 33, 50)


def layer(inputs: int = 64, outputs: int = 40) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inputs, outputs).requires_grad_(False)


class ByCount(nn.Module):
    """A product that rounds by the number of rows, and, if `place` is given, by their place."""

    def __init__(self, linear: nn.Linear, place: bool = False) -> None:
        super().__init__()
        self.linear, self.place, self.calls = linear, place, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x.shape[0])
        rows = torch.cat([self.linear(row[None]) for row in x])
        rows = rows * (1 + x.shape[0] * 1e-6)
        if self.place:
            rows = rows * (1 + torch.arange(x.shape[0])[:, None] * 1e-6)
        return rows


def test_torchs_own_product_depends_on_the_number_of_rows() -> None:
    """The reason for all this, and the proof that the tests below can fail."""
    product = layer(576, 960)
    x = torch.randn(50, 576)
    alone = torch.cat([product(row[None]) for row in x])
    assert any(not torch.equal(product(x[:count]), alone[:count]) for count in COUNTS)


@pytest.mark.parametrize("kind", ["half", "float", "plain", "int8"])
@pytest.mark.parametrize("shape", [(64, 40), (576, 960), (176, 64)])
def test_rows_are_the_same_bits_in_any_company(kind: str, shape: tuple[int, int]) -> None:
    makers = {
        "half": lambda linear: HalfLinear(linear, torch.bfloat16),
        "float": FloatLinear,
        "plain": lambda linear: linear,
        "int8": lambda linear: QuantizedLinear.of(linear, INT8, torch.device("cpu")),
    }
    product = invariant_packer(makers[kind])(layer(*shape))
    x = torch.randn(50, shape[0])
    alone = torch.cat([product(row[None]) for row in x])
    for count in COUNTS:
        assert torch.equal(product(x[-count:]), alone[-count:])


def test_tiled_products_are_the_layers() -> None:
    linear = layer()
    x = torch.randn(70, 64)
    product = invariant_packer(packer(torch.float32)[1])(linear)
    assert torch.allclose(product(x), linear(x), atol=1e-5)


@pytest.mark.parametrize("place", [False, True])
def test_a_product_that_rounds_by_count_is_given_one_count(place: bool) -> None:
    cheat = ByCount(layer(), place)
    product = invariant_packer(lambda linear: cheat)(layer())
    cheat.calls.clear()
    x = torch.randn(13, 64)
    alone = torch.cat([product(row[None]) for row in x])
    assert torch.equal(product(x), alone)
    assert set(cheat.calls) == {1 if place else 8}


def test_layers_of_one_shape_are_tried_once() -> None:
    first, second = ByCount(layer()), ByCount(layer())
    made = iter([first, second])
    pack = invariant_packer(lambda linear: next(made))
    pack(layer())
    pack(layer())
    assert first.calls and not second.calls


def test_fixed_tiles_are_all_of_one_size_and_padding_is_cut_off() -> None:
    cheat = ByCount(layer())
    x = torch.randn(11, 64)
    assert in_fixed_tiles(cheat, x, 4).shape == (11, 40)
    assert cheat.calls == [4, 4, 4]


def test_tried_tiles_hold_no_more_than_was_tried() -> None:
    cheat = ByCount(layer())
    TiledProduct(cheat, 4, fixed=False)(torch.randn(11, 64))
    assert cheat.calls == [4, 4, 3]


def test_configure_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    matmul = torch.backends.cuda.matmul
    monkeypatch.setattr(config, "batch_invariant", False)
    monkeypatch.setattr(config, "split_reductions", True)
    # This build of torch may have none to prefer.
    preferred: list[str] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred.append)
    before = (
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )
    try:
        configure_matmul()
        assert not matmul.allow_bf16_reduced_precision_reduction
        assert not matmul.allow_fp16_reduced_precision_reduction
        assert not matmul.allow_bf16_reduced_precision_reduction_split_k
        # With the pairs as they are, a product by cuBLAS itself is an error on a card.
        assert preferred == ["cublaslt"]
        assert config.batch_invariant and not config.split_reductions
    finally:
        matmul.allow_bf16_reduced_precision_reduction = (before[0], True)
        matmul.allow_fp16_reduced_precision_reduction = (before[1], True)


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_activations_do_not_depend_on_where_threads_part(threads: int) -> None:
    x = torch.randn(200, 2 * 1000)
    wanted = torch.cat([lean.gated(row[None]) for row in x])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = by_rows(lean.gated, 1000)(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, wanted)


def test_by_rows_cuts_all_its_tensors_alike() -> None:
    seen: list[tuple[int, ...]] = []

    def add(a: Tensor, b: Tensor) -> Tensor:
        seen.append((len(a), len(b)))
        return a + b

    a, b = torch.randn(2, 5, 4)
    assert torch.equal(by_rows(add, 32768 // 2)(a, b), a + b)
    assert seen == [(2, 2), (2, 2), (1, 1)]
