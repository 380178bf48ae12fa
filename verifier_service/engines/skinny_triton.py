"""A Triton kernel for products of few rows, which are bound by reading weights.

Knows pointers and tiles; does not know models, devices or which tile a product gets. Importing this
needs Triton. Weights take the place of the tensor cores' tall operand and rows that of the narrow
one, so that few rows fill an instruction. A sum over the depth can be divided among programs: each
puts its part in float32 beside the others', and the last to arrive adds all in order, so that who
was last changes nothing.
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
    parts,
    arrived,
    count,
    outputs,
    depth,
    HAS_BIAS: tl.constexpr,
    WHOLE_COLUMNS: tl.constexpr,
    WHOLE_DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """y [count, outputs] = x [count, depth] times weight [outputs, depth] transposed, plus bias.

    `count` is at most ROWS. A program computes COLUMNS outputs of all rows over one of SPLIT parts
    of the depth. `parts` holds SPLIT * tiles * COLUMNS * ROWS float32; `arrived` an int32 a tile,
    zero before and after. WHOLE_... say that there is no tail. All matrices are contiguous.
    """
    tiles = tl.cdiv(outputs, COLUMNS)
    tile = tl.program_id(0) % tiles
    part = tl.program_id(0) // tiles
    steps = tl.cdiv(depth, DEPTH)
    each = tl.cdiv(steps, SPLIT)
    first = part * each
    end = tl.minimum(first + each, steps)

    rows = tl.arange(0, ROWS)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, DEPTH)
    row_in, column_in = rows < count, columns < outputs
    weight_at = weight + columns.to(tl.int64)[:, None] * depth + (first * DEPTH + at)[None, :]
    x_at = x + rows[None, :] * depth + (first * DEPTH + at)[:, None]
    sums = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for step in range(first, end):
        # Weights are read once and rows by every program: the cache between them keeps the rows.
        if WHOLE_DEPTH:
            right = tl.load(x_at, mask=row_in[None, :], other=0.0, eviction_policy="evict_last")
            if WHOLE_COLUMNS:
                left = tl.load(weight_at, eviction_policy="evict_first")
            else:
                left = tl.load(
                    weight_at, mask=column_in[:, None], other=0.0, eviction_policy="evict_first"
                )
        else:
            inside = at < depth - step * DEPTH
            right = tl.load(x_at, mask=row_in[None, :] & inside[:, None], other=0.0)
            left = tl.load(weight_at, mask=column_in[:, None] & inside[None, :], other=0.0)
        sums = tl.dot(left, right, sums)
        weight_at += DEPTH
        x_at += DEPTH

    kept = column_in[:, None] & row_in[None, :]
    y_at = y + rows[None, :] * outputs + columns[:, None]
    if SPLIT == 1:
        if HAS_BIAS:
            sums += tl.load(bias + columns, mask=column_in, other=0.0).to(tl.float32)[:, None]
        tl.store(y_at, sums.to(y.dtype.element_ty), mask=kept)
    else:
        size = COLUMNS * ROWS
        inner = rows[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None]
        part_at = parts + tile * size + inner
        tl.store(part_at + part * tiles * size, sums, mask=row_in[None, :])
        # All threads have stored before the one that counts says so to the whole device.
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu")
        if before == SPLIT - 1:
            total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
            for other in tl.static_range(SPLIT):
                # Past the multiprocessor's own cache, which does not see others' stores.
                total += tl.load(
                    part_at + other * tiles * size,
                    mask=row_in[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
            tl.store(arrived + tile, 0)
            if HAS_BIAS:
                total += tl.load(bias + columns, mask=column_in, other=0.0).to(tl.float32)[:, None]
            tl.store(y_at, total.to(y.dtype.element_ty), mask=kept)
