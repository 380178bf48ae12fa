"""Paged attention for few queries a sequence, as a Triton kernel.

Knows queries, pages and tables; does not know steps or models. A program serves one sequence and
one key-value head: all query heads that share it, for all of the sequence's queries, form one tile,
so keys and values are read once. (A kernel that takes each query head alone reads them once for
each head of the group, and most of a decoding step's attention is reading.) The order of its sums
depends on nothing but the sequence itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

# Keys that are read at once; a page holds a multiple of them.
KEYS_AT_ONCE = 64
_LEAST_ROWS, _MOST_ROWS = 16, 128
_LOG2_E = 1.4426950408889634


def serves(query: Tensor, keys: Tensor, max_query: int) -> bool:
    """Whether these shapes suit the kernel: [T, heads, size], [blocks, page, kv heads, size]."""
    size = query.shape[2]
    group = query.shape[1] // keys.shape[2]
    return (
        size in (32, 64, 128)
        and max_query * group <= _MOST_ROWS
        and keys.shape[1] % KEYS_AT_ONCE == 0
    )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_query: Tensor,
    used: Tensor,
    table: Tensor,
    max_query: int,
    scale: float,
) -> Tensor:
    """Causal attention of packed queries [T, heads, size], contiguous; the same shape.

    `cu_query` [B + 1] int32 bounds each sequence's queries, at most `max_query`, the last of which
    stands at position `used`[b] - 1; `table` [B, W] int32 names its pages of `keys` and `values`
    [blocks, page, kv heads, size], contiguous. Rows of no sequence are left as they are.
    """
    heads, size = query.shape[1:]
    page, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    rows = max(_LEAST_ROWS, triton.next_power_of_2(max_query * group))
    out = torch.empty_like(query)
    _kernel[(table.shape[0], kv_heads)](
        query,
        keys,
        values,
        out,
        cu_query,
        used,
        table,
        table.stride(0),
        scale * _LOG2_E,
        heads,
        kv_heads,
        page,
        GROUP=group,
        SIZE=size,
        ROWS=rows,
        KEYS=KEYS_AT_ONCE,
        num_warps=4,
    )
    return out


# Triton reads the source: names of types that it does not know may not stand there.
@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    out,
    cu_query,
    used,
    table,
    table_stride,
    scale,
    heads,
    kv_heads,
    page,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_query + sequence)
    length = tl.load(cu_query + sequence + 1) - first
    if length > 0:
        context = tl.load(used + sequence)
        row = tl.arange(0, ROWS)
        token = row // GROUP
        inside = token < length
        size = tl.arange(0, SIZE)
        place = (first + token) * heads + head * GROUP + row % GROUP
        at = place[:, None] * SIZE + size[None, :]
        q = tl.load(query + at, mask=inside[:, None], other=0.0)
        # The last key that a row sees.
        last = context - length + token
        best = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, SIZE], tl.float32)
        for begin in range(0, context, KEYS):
            block = tl.load(table + sequence * table_stride + begin // page).to(tl.int64)
            key = begin + tl.arange(0, KEYS)
            slot = block * page + begin % page + tl.arange(0, KEYS)
            there = (slot * kv_heads + head)[:, None] * SIZE + size[None, :]
            known = key < context
            k = tl.load(keys + there, mask=known[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale
            score = tl.where(key[None, :] <= last[:, None], score, -float("inf"))
            highest = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp2(score - highest[:, None])
            keep = tl.exp2(best - highest)
            total = total * keep + tl.sum(weight, 1)
            v = tl.load(values + there, mask=known[:, None], other=0.0)
            mixed = mixed * keep[:, None] + tl.dot(weight.to(v.dtype), v)
            best = highest
        mixed = mixed / total[:, None]
        tl.store(out + at, mixed.to(q.dtype), mask=inside[:, None])


def agrees(attend_otherwise: Any, keys: Tensor, heads: int, max_query: int) -> bool:
    """Whether the kernel computes what another does, on this device, over pages like `keys`.

    `attend_otherwise` takes what `attend` does. The pages' contents are made up and given back as
    zeros.
    """
    device, dtype = keys.device, keys.dtype
    blocks, page, kv_heads, size = keys.shape
    generator = torch.Generator(device=device).manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    few = min(blocks, 4)
    pages = normal(few, page, kv_heads, size), normal(few, page, kv_heads, size)
    lengths = [max_query, 1, max(max_query - 1, 1)]
    used = [min(page + 5, few * page), 7, min(page, few * page)]
    used = [max(context, length) for context, length in zip(used, lengths, strict=True)]
    bounds = [0, lengths[0], lengths[0] + lengths[1], sum(lengths)]
    table = torch.tensor(
        [[few - 1, 0], [few // 2, 0], [1 % few, 0]], dtype=torch.int32, device=device
    )
    query = normal(bounds[-1], heads, size)
    rest: tuple[Any, ...] = (
        torch.tensor(bounds, dtype=torch.int32, device=device),
        torch.tensor(used, dtype=torch.int32, device=device),
        table,
        max_query,
        size**-0.5,
    )
    found = attend(query, *pages, *rest).float()
    wanted = attend_otherwise(query, *pages, *rest).float()
    tolerance = 1e-4 if dtype == torch.float32 else 0.03
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())
