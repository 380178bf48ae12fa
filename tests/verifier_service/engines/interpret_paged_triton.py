"""Compares the kernel with the definition of attention; prints `right` for each case."""

from __future__ import annotations

import torch

from tests.verifier_service.engines.paged import attend_by_definition
from verifier_service.engines import paged_triton
from verifier_service.engines.attention import StepLayout
from verifier_service.engines.paged_agreement import agrees, agrees_apart


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


def counters() -> torch.Tensor:
    return paged_triton._counters(torch.device("cpu"), 1)


for heads, kv_heads, size, queries, blocks, tried in (
    (4, 1, 64, 5, 5, (3,)),
    (2, 2, 64, 9, 2, (1,)),
    (4, 1, 128, 9, 3, (2,)),
    (2, 1, 32, 1, 4, (2,)),
):
    keys = torch.zeros(blocks, 64, kv_heads, size)
    assert paged_triton.serves(heads, keys, queries)
    assert agrees(paged_triton.attend, by_definition, keys, heads, queries, tried)
    assert agrees_apart(paged_triton.attend, by_definition, keys, heads, queries)
    assert not counters().any()
    print("right")

# Sequences without queries, scattered pages, rows that belong to nobody, a context of one key, of
# whole blocks, and of whole parts; queries before, in and behind the first key of the last part.
generator = torch.Generator().manual_seed(1)
keys, values = (torch.randn(9, 128, 2, 64, generator=generator) for _ in range(2))
bounds = [0, 3, 3, 4, 9, 9, 10, 11]
arguments = (
    ints(bounds),
    ints([300, 1, 1, 259, 1, 256, 64]),
    ints([[5, 2, 7], [8, 0, 0], [3, 0, 0], [1, 4, 6], [8, 8, 8], [2, 3, 8], [6, 8, 8]]),
    5,
    0.125,
)
query = torch.randn(13, 8, 64, generator=generator)
wanted = by_definition(query, keys, values, *arguments)
plain = paged_triton.Tuning(programs=1, least_keys=128, keys=64, warps=4, stages=3)
wide = paged_triton.Tuning(programs=1, least_keys=256, keys=128, warps=4, stages=3)
for tuning, parts, counted in (
    (plain, 1, True),
    (plain, 3, True),
    (plain, 3, False),
    (wide, 3, True),
):
    split = {"tuning": tuning, "parts": parts, "counted": counted}
    found = paged_triton.attend(query, keys, values, *arguments, **split)
    assert torch.allclose(found[:11], wanted[:11], atol=1e-5), split
    assert not counters().any()
    # Beside what another kernel has written for others: only the rows of sequences are its own.
    others = torch.full_like(query, 7.0)
    assert paged_triton.attend(query, keys, values, *arguments, **split, out=others) is others
    assert torch.equal(others[:11], found[:11])
    assert (others[11:] == 7.0).all()
print("right")

# Scores so far apart that a part's weights are nothing beside another's.
found = paged_triton.attend(100 * query, keys, values, *arguments, parts=2)
wanted = by_definition(100 * query, keys, values, *arguments)
assert torch.allclose(found[:11], wanted[:11], atol=1e-4)
print("right")


def with_one_query_spoilt(*rest):  # type: ignore[no-untyped-def]
    result = by_definition(*rest)
    result[0] += 1.0
    return result


def with_a_part_left_out(*rest, parts):  # type: ignore[no-untyped-def]
    query, keys, values, bounds, used, *others = rest
    used = torch.where(used > 256, used - 128, used) if parts > 1 else used
    return by_definition(query, keys, values, bounds, used, *others)


def that_counts_on(*rest, parts, calls=[0]):  # type: ignore[no-untyped-def]  # noqa: B006
    calls[0] += 1
    return by_definition(*rest) * (1 + 1e-6 * calls[0])


def of_other_contexts_no_number(*rest, parts):  # type: ignore[no-untyped-def]
    return by_definition(*rest) * (torch.nan if rest[4].max() < 1000 else 1.0)


keys = torch.zeros(2, 64, 1, 64)
assert not agrees(paged_triton.attend, with_one_query_spoilt, keys, 2, 1, (1,))
keys = torch.zeros(4, 256, 2, 64)
assert not agrees(of_other_contexts_no_number, by_definition, keys, 8, 5, (1, 3))
assert not agrees(with_a_part_left_out, by_definition, keys, 8, 5, (1, 3))
assert not agrees(that_counts_on, by_definition, keys, 8, 5, (1, 3))
print("right")
