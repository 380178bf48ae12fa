"""The kernels of `--batch-invariant` in Triton's interpreter; prints the parts that hold.

The interpreter multiplies bfloat16 as the integers that hold it: values are half precision or
float32 here. It multiplies through numpy, whose BLAS adds up a row by its place in the tile on some
processors, as a card's instruction does not: the product of a tile is written out here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from triton.runtime import interpreter  # type: ignore[import-untyped]

from tests.verifier_service.engines.paged import attend_by_definition
from verifier_service.engines import (
    attention,
    batch_invariant_forward,
    batch_invariant_pages,
    batch_invariant_products,
    batch_invariant_trials,
    layout,
)
from verifier_service.engines.attention import PagedCache, StepLayout
from verifier_service.engines.base import CacheShape
from verifier_service.engines.batch_invariant_products import (
    Tile,
    launch,
    launch_rms,
    narrow_tile,
    wide_tile,
)
from verifier_service.engines.layout import StepTensors
from verifier_service.engines.loading import load

CPU = torch.device("cpu")


def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    kind = d.data.dtype
    product = np.einsum("ik,kj->ij", a.data.astype(kind), b.data.astype(kind))
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


interpreter.InterpreterBuilder.create_dot = dot
torch.manual_seed(7)


def products() -> None:
    """Each row's bits alone and among up to 40 others, and what they are."""
    for dtype, inputs, counts in (
        (torch.float16, 130, range(1, 41)),
        (torch.float32, 64, (1, 2, 17)),
    ):
        outputs = 16 if dtype == torch.float16 else 30
        weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
        x = torch.randn(130, inputs).to(dtype)
        tile = narrow_tile(outputs, dtype.itemsize)
        wanted = (x.double() @ weight.double().T + bias.double()).float()
        together = launch(x, weight, bias, tile)
        error = 2e-2 if dtype == torch.float16 else 1e-4
        for found in (together, launch(x, weight, bias, wide_tile(dtype.itemsize))):
            assert found.dtype == dtype
            assert torch.allclose(found.float(), wanted, atol=error)
        for count in counts:
            # The last rows, so that each row is tried in several places of the tile.
            assert torch.equal(launch(x[-count:], weight, bias, tile), together[-count:]), count
        without = launch(x[:3], weight, None, tile)
        assert torch.allclose(without.float() + bias.float(), wanted[:3], atol=2 * error)
    # Many tiles of rows, in bands of which the last is not full.
    weight, x = torch.randn(20, 24), torch.randn(164, 24)
    found = launch(x, weight, None, Tile(16, 16, 16, warps=4, stages=2))
    assert torch.allclose(found, x @ weight.T, atol=1e-4)


def norms() -> None:
    for shape in ((5, 96), (3, 4, 40)):
        x = torch.randn(*shape[:-1], 2 * shape[-1])[..., : shape[-1]]
        weight = torch.randn(shape[-1])
        wanted = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
        together = launch_rms(x, weight, 1e-5)
        assert torch.allclose(together, wanted, atol=1e-5)
        alone = torch.stack([launch_rms(row[None], weight, 1e-5)[0] for row in x])
        assert torch.equal(alone, together)


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, parts: list[tuple[int, int, list[int]]]
) -> Tensor:
    """`parts` are (queries, context, blocks) of each sequence; queries of the kernel, checked."""
    bounds = [0]
    for length, _, _ in parts:
        bounds.append(bounds[-1] + length)
    step = StepLayout(
        ints([]),
        cu_query=ints(bounds),
        used=ints([context for _, context, _ in parts]),
        table=ints([blocks for _, _, blocks in parts]),
        max_query=max(length for length, _, _ in parts),
        max_key=1 << 20,
    )
    found = batch_invariant_pages.attend_fixed(query, keys, values, step, 0.2)
    wanted = attend_by_definition(query, keys, values, step, 0.2, 0)
    assert torch.allclose(found[: bounds[-1]], wanted[: bounds[-1]], atol=1e-5)
    return found


def attention_by_parts() -> None:
    """A sequence of 150 positions: its last 40 at once, one by one, in parts, beside others."""
    for heads, kv_heads, size in ((3, 1, 16), (4, 2, 32)):
        keys, values = torch.randn(2, 9, 64, kv_heads, size)
        blocks, begin, end = [5, 2, 7], 110, 150
        query = torch.randn(end - begin, heads, size)
        wanted = attend(query, keys, values, [(end - begin, end, blocks)])
        for at in (127, 128):
            row = at - begin
            alone = attend(query[row : row + 1], keys, values, [(1, at + 1, blocks)])
            assert torch.equal(alone[0], wanted[row]), at
        for first, last in ((110, 113), (113, 150)):
            part = query[first - begin : last - begin]
            found = attend(part, keys, values, [(last - first, last, blocks)])
            assert torch.equal(found, wanted[first - begin : last - begin])
        others = torch.randn(3, heads, size)
        # A sequence without queries, rows of nobody, and keys in other places.
        moved = keys.clone(), values.clone()
        for old, new in ((5, 8), (2, 0), (7, 4)):
            for before, after in zip((keys, values), moved, strict=True):
                after[new] = before[old]
        packed = torch.cat((others, query, torch.randn(2, heads, size)))
        parts = [(3, 70, [1, 3, 0]), (0, 1, [6, 6, 6]), (end - begin, end, [8, 0, 4])]
        assert torch.equal(attend(packed, *moved, parts)[3 : 3 + end - begin], wanted)


def forward() -> None:
    """A whole model: the promise as it is tried when a verifier starts."""

    def on_pages(chunks: Any, *rest: Any) -> StepTensors:
        step = pack(chunks, *rest)
        pages = layout._paged_layout(step.layout.write_slots, chunks, layout._table(chunks))
        return dataclasses.replace(step, layout=pages)

    def kernel(layer: Any, x: Tensor) -> Tensor:
        tile = narrow_tile(layer.out_features, x.element_size())
        return launch(x, layer.weight, layer.bias, tile)

    pack = layout.pack
    batch_invariant_trials.pack = on_pages
    batch_invariant_trials._LENGTH["cpu"] = 9
    batch_invariant_products.FixedLinear.forward = kernel  # type: ignore[method-assign]
    batch_invariant_forward.fixed_rms = launch_rms
    attention.attend_pages = attend_by_definition
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=True,
        max_position_embeddings=128,
    )
    with TemporaryDirectory() as folder:
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.3)
        model.save_pretrained(Path(folder))
        loaded = load(folder, CPU, "float32", None)
    cache = PagedCache(loaded.layers, 5, 64, loaded.compute, CPU)
    cache.attach(loaded.module)
    with torch.inference_mode():
        chosen = batch_invariant_forward.choose_paged_invariant(
            loaded, cache, CacheShape(4, 64), CPU, compiled=False
        )
    assert "batch-invariant" in chosen.description
    assert chosen.captured is not None


for part in (products, norms, attention_by_parts, forward):
    part()
    print(part.__name__)
