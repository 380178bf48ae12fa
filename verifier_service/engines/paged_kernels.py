"""The Triton kernels of paged attention for few queries: one part of a sequence's keys at a time.

Knows tiles and their sums; does not know what decides how many parts there are (paged_triton.py).

A part's result that has to be added to others is its rows' highest scores, sums of weights and
mixed values, in float32. Who adds is the program that counts itself as the last of its sequence
and head; the order of the sum is that of the parts, whoever is last.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


# Triton reads the source: names of types that it does not know may not stand there.
@triton.jit(do_not_specialize=["table_stride"])  # type: ignore[misc,untyped-decorator,unused-ignore]
def attend_part(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    out,
    partial,
    counters,
    cu_query,
    used,
    table,
    table_stride,
    scale,
    least,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    COUNTED: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    most = tl.num_programs(2)
    # Long sequences alone have late parts: what takes longest begins first.
    part = most - 1 - tl.program_id(2)
    first = tl.load(cu_query + sequence)
    length = tl.load(cu_query + sequence + 1) - first
    context = tl.load(used + sequence)
    each = context
    if SPLIT:
        each = _part_size(context, most, least, KEYS)
    begin = part * each
    if (length > 0) & (begin < context):
        end = tl.minimum(begin + each, context)
        row = tl.arange(0, ROWS)
        token = row // GROUP
        inside = token < length
        size = tl.arange(0, SIZE)
        place = (first + token) * HEADS + head * GROUP + row % GROUP
        at = place[:, None] * SIZE + size[None, :]
        q = tl.load(query + at, mask=inside[:, None], other=0.0)
        # The last key that a row sees: of a late part it may see none.
        last = context - length + token
        best = tl.full([ROWS], -1e30, tl.float32)
        # Added up at the end: rows lie across warps, which would have to meet for each block.
        weights = tl.zeros([ROWS, KEYS], tl.float32)
        mixed = tl.zeros([ROWS, SIZE], tl.float32)
        pages = table + sequence * table_stride
        offset = (tl.arange(0, KEYS) * KV_HEADS + head)[:, None] * SIZE + size[None, :]
        # A block's place is looked up one round before its keys are: with the two in one round the
        # compiler would not begin to read keys before it is done with those in front.
        block = tl.load(pages + begin // PAGE)
        for start in tl.range(begin, end, KEYS):
            there = (block.to(tl.int64) * PAGE + start % PAGE) * (KV_HEADS * SIZE)
            following = tl.minimum(start + KEYS, end - 1)
            block = tl.load(pages + following // PAGE)
            key = start + tl.arange(0, KEYS)
            known = key < end
            k = tl.load(keys + there + offset, mask=known[:, None], other=0.0)
            v = tl.load(values + there + offset, mask=known[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale
            score = tl.where(key[None, :] <= last[:, None], score, -float("inf"))
            highest = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp2(score - highest[:, None])
            keep = tl.exp2(best - highest)
            weights = weights * keep[:, None] + weight
            mixed = mixed * keep[:, None] + tl.dot(weight.to(v.dtype), v)
            best = highest
        total = tl.sum(weights, 1)
        parts = tl.cdiv(context, each)
        if SPLIT and parts > 1:
            pair = sequence * KV_HEADS + head
            sums = partial + pair.to(tl.int64) * most * (ROWS * (SIZE + 2))
            mine = part * ROWS + row
            tl.store(sums + mine[:, None] * SIZE + size[None, :], mixed, mask=inside[:, None])
            stats = sums + most * (ROWS * SIZE)
            tl.store(stats + mine * 2, best, mask=inside)
            tl.store(stats + mine * 2 + 1, total, mask=inside)
            if COUNTED:
                # All threads have written when one of them counts, and who counts last sees it.
                tl.debug_barrier()
                done = tl.atomic_add(counters + pair, 1, sem="acq_rel", scope="gpu")
                if done == parts - 1:
                    tl.store(counters + pair, 0)
                    whole = _added(sums, stats, parts, inside, ROWS, SIZE)
                    tl.store(out + at, whole.to(q.dtype), mask=inside[:, None])
        else:
            tl.store(out + at, (mixed / total[:, None]).to(q.dtype), mask=inside[:, None])


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _added(sums, stats, parts, inside, ROWS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The answer of all parts, added in their order; what other programs wrote is in no near cache.

    Two are read at once: one waits for the other else.
    """
    row = tl.arange(0, ROWS)
    at = row[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, SIZE], tl.float32)
    for part in tl.range(0, parts, 2):
        one, two = part * ROWS, (part + 1) * ROWS
        both = inside & (two + row < parts * ROWS)
        best1 = tl.load(stats + (one + row) * 2, inside, -1e30, cache_modifier=".cg")
        best2 = tl.load(stats + (two + row) * 2, both, -1e30, cache_modifier=".cg")
        total1 = tl.load(stats + (one + row) * 2 + 1, inside, 1.0, cache_modifier=".cg")
        total2 = tl.load(stats + (two + row) * 2 + 1, both, 0.0, cache_modifier=".cg")
        mixed1 = tl.load(sums + one * SIZE + at, inside[:, None], 0.0, cache_modifier=".cg")
        mixed2 = tl.load(sums + two * SIZE + at, both[:, None], 0.0, cache_modifier=".cg")
        highest = tl.maximum(best, tl.maximum(best1, best2))
        keep = tl.exp2(best - highest)
        weight1, weight2 = tl.exp2(best1 - highest), tl.exp2(best2 - highest)
        total = total * keep + total1 * weight1 + total2 * weight2
        mixed = mixed * keep[:, None] + mixed1 * weight1[:, None] + mixed2 * weight2[:, None]
        best = highest
    return mixed / total[:, None]


@triton.jit(do_not_specialize=["most"])  # type: ignore[misc,untyped-decorator,unused-ignore]
def add_parts(  # type: ignore[no-untyped-def]
    out,
    partial,
    cu_query,
    used,
    most,
    least,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """What the last program does where they are counted, as a kernel behind them that does not."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    first = tl.load(cu_query + sequence)
    length = tl.load(cu_query + sequence + 1) - first
    context = tl.load(used + sequence)
    each = _part_size(context, most, least, KEYS)
    if (length > 0) & (context > each):
        row = tl.arange(0, ROWS)
        token = row // GROUP
        inside = token < length
        place = (first + token) * HEADS + head * GROUP + row % GROUP
        at = place[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        sums = partial + (sequence * KV_HEADS + head).to(tl.int64) * most * (ROWS * (SIZE + 2))
        stats = sums + most * (ROWS * SIZE)
        whole = _added(sums, stats, tl.cdiv(context, each), inside, ROWS, SIZE)
        tl.store(out + at, whole.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _part_size(context, most, least, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many keys each part but the last has."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, most), KEYS) * KEYS, least)
