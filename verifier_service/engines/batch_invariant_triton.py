"""Triton kernels in which a row's numbers do not depend on the rows beside it.

Knows pointers and tiles; does not know models or when it is called. Importing this needs Triton.
Each kernel has one shape of tile, whatever the step holds, and goes through its sums in one order.
Arguments that change from step to step are not specialised on: for some values of theirs another
kernel would be made, which could round otherwise. Products of float32 are not rounded to tf32.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


# Triton reads the source: names of types that it does not know may not stand there.
@triton.jit(do_not_specialize=["count"])  # type: ignore[misc,untyped-decorator,unused-ignore]
def product(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    y,
    count,
    outputs,
    depth,
    HAS_BIAS: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """y [count, outputs] = x [count, depth] times weight [outputs, depth] transposed, plus bias.

    One program computes ROWS x COLUMNS outputs and goes through the whole depth in order; WHOLE
    says that DEPTH divides it. All matrices are contiguous; sums are float32. TOGETHER tiles of
    rows that read the same weights run one after the other.
    """
    number = tl.program_id(0)
    row_tiles = tl.cdiv(count, ROWS)
    band = TOGETHER * tl.cdiv(outputs, COLUMNS)
    top = number // band * TOGETHER
    height = tl.minimum(row_tiles - top, TOGETHER)
    rows = (top + number % band % height) * ROWS + tl.arange(0, ROWS)
    columns = number % band // height * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, DEPTH)
    row_in, column_in = rows < count, columns < outputs
    x_at = x + rows.to(tl.int64)[:, None] * depth + at[None, :]
    weight_at = weight + columns.to(tl.int64)[None, :] * depth + at[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, depth, DEPTH):
        if WHOLE:
            left = tl.load(x_at, mask=row_in[:, None], other=0.0)
            right = tl.load(weight_at, mask=column_in[None, :], other=0.0)
        else:
            inside = at < depth - begin
            left = tl.load(x_at, mask=row_in[:, None] & inside[None, :], other=0.0)
            right = tl.load(weight_at, mask=column_in[None, :] & inside[:, None], other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
        x_at += DEPTH
        weight_at += DEPTH
    if HAS_BIAS:
        sums += tl.load(bias + columns, mask=column_in, other=0.0).to(tl.float32)[None, :]
    y_at = y + rows.to(tl.int64)[:, None] * outputs + columns[None, :]
    tl.store(y_at, sums.to(y.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def norm(  # type: ignore[no-untyped-def]
    x, weight, y, width, epsilon, WIDTH: tl.constexpr
):
    """Root mean square norm of a row of `width` elements, WIDTH of them or fewer: a program each.

    In float32, rounded before the weights are applied, as transformers does.
    """
    at = tl.arange(0, WIDTH)
    inside = at < width
    row = tl.program_id(0).to(tl.int64) * width
    wide = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    scaled = (wide * inverse).to(y.dtype.element_ty).to(tl.float32)
    factors = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + at, (scaled * factors).to(y.dtype.element_ty), mask=inside)


@triton.jit(  # type: ignore[misc,untyped-decorator,unused-ignore]
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["cu_query", "used", "table"],
)
def attention(  # type: ignore[no-untyped-def]
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
    POSITIONS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Causal attention over pages: a program serves POSITIONS queries and one key-value head.

    Its tile begins at a multiple of POSITIONS, counted from the sequence's beginning, and its
    blocks of KEYS keys at multiples of KEYS: a query has the same row, and the same blocks in the
    same order, however the sequence was cut into steps. Rows of queries that are not in this step
    are zeros, and nothing of another row enters a row.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first = tl.load(cu_query + sequence)
    length = tl.load(cu_query + sequence + 1) - first
    context = tl.load(used + sequence)
    start = context - length
    begin = (start // POSITIONS + tl.program_id(0)) * POSITIONS
    if (length > 0) & (begin < context):
        row = tl.arange(0, ROWS)
        position = begin + row // GROUP
        inside = (row < POSITIONS * GROUP) & (position >= start) & (position < context)
        size = tl.arange(0, SIZE)
        token = (first + position - start).to(tl.int64)
        place = token * heads + head * GROUP + row % GROUP
        at = place[:, None] * SIZE + size[None, :]
        q = tl.load(query + at, mask=inside[:, None], other=0.0)
        best = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, SIZE], tl.float32)
        # To the end of the tile, not of the sequence: as many blocks whatever stands behind.
        for key_begin in range(0, begin + POSITIONS, KEYS):
            entry = table + sequence * table_stride + key_begin // page
            block = tl.load(entry, mask=key_begin < context, other=0).to(tl.int64)
            key = key_begin + tl.arange(0, KEYS)
            slot = block * page + key_begin % page + tl.arange(0, KEYS)
            there = (slot * kv_heads + head)[:, None] * SIZE + size[None, :]
            known = key < context
            k = tl.load(keys + there, mask=known[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            score = tl.where(key[None, :] <= position[:, None], score, -float("inf"))
            highest = tl.maximum(best, tl.max(score, 1))
            share = tl.exp2(score - highest[:, None])
            keep = tl.exp2(best - highest)
            total = total * keep + tl.sum(share, 1)
            v = tl.load(values + there, mask=known[:, None], other=0.0)
            mixed = mixed * keep[:, None]
            mixed = tl.dot(share.to(v.dtype), v, mixed, input_precision="ieee")
            best = highest
        mixed = mixed / total[:, None]
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside[:, None])
