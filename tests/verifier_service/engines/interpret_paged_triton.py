"""Compares the kernel with the definition of attention; prints `right` for each case."""

from __future__ import annotations

import torch

from tests.verifier_service.engines.paged import attend_by_definition
from verifier_service.engines import paged_triton
from verifier_service.engines.attention import StepLayout


def by_definition(query, keys, values, cu_query, used, table, max_query, scale):  # type: ignore[no-untyped-def]
    layout = StepLayout(
        cu_query,
        cu_query=cu_query,
        used=used,
        table=table,
        max_query=max_query,
        max_key=1 << 20,
    )
    return attend_by_definition(query, keys, values, layout, scale, 0)


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


for heads, kv_heads, size, queries in (
    (8, 2, 64, 5),
    (9, 3, 64, 9),
    (32, 8, 128, 9),
    (4, 4, 32, 1),
):
    keys = torch.zeros(6, 256, kv_heads, size)
    assert paged_triton.serves(torch.zeros(3, heads, size), keys, queries)
    assert paged_triton.agrees(by_definition, keys, heads, queries)
    print("right")

# Sequences without queries, scattered pages, rows that belong to nobody, a context of one key.
generator = torch.Generator().manual_seed(1)
keys, values = (torch.randn(9, 128, 2, 64, generator=generator) for _ in range(2))
bounds = [0, 3, 3, 4, 9, 9]
arguments = (
    ints(bounds),
    ints([300, 1, 1, 129, 1]),
    ints([[5, 2, 7], [8, 0, 0], [3, 0, 0], [1, 4, 0], [8, 8, 8]]),
    5,
    0.125,
)
query = torch.randn(13, 8, 64, generator=generator)
found = paged_triton.attend(query, keys, values, *arguments)
wanted = by_definition(query, keys, values, *arguments)
assert torch.allclose(found[:9], wanted[:9], atol=1e-5)
print("right")


def one_query_spoilt(*rest):  # type: ignore[no-untyped-def]
    result = by_definition(*rest)
    result[0] += 1.0
    return result


assert not paged_triton.agrees(one_query_spoilt, torch.zeros(6, 256, 2, 64), 8, 5)
print("right")
