"""The Triton kernel of weight-only products. Importing this needs Triton.

Knows pointers; does not know when it is worth being called.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


# Triton reads the source: names of types that it does not know may not stand there. One kernel for
# every number of rows: one made for some of them could round in a way of its own.
@triton.jit(do_not_specialize=["count"])  # type: ignore[misc,untyped-decorator,unused-ignore]
def product(  # type: ignore[no-untyped-def]
    x,
    weight,
    scale,
    y,
    count,
    outputs,
    depth,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """y [count, outputs] = (x [count, depth] times weight [outputs, depth] transposed) * scale.

    One program computes ROWS x COLUMNS outputs and goes through the whole depth in order. All
    matrices are contiguous; sums are float32.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    row_in, column_in = rows < count, columns < outputs
    x_at = x + rows.to(tl.int64)[:, None] * depth + at[None, :]
    weight_at = weight + columns.to(tl.int64)[None, :] * depth + at[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, depth, DEPTH):
        inside = at < depth - begin
        left = tl.load(x_at, mask=row_in[:, None] & inside[None, :], other=0.0)
        codes = tl.load(weight_at, mask=column_in[None, :] & inside[:, None], other=0.0)
        # Codes are exact in every dtype of x; float32 would be rounded to tf32 otherwise.
        sums = tl.dot(left, codes.to(left.dtype), sums, input_precision="ieee")
        x_at += DEPTH
        weight_at += DEPTH
    factors = tl.load(scale + columns, mask=column_in, other=0.0)
    sums = sums * factors[None, :]
    y_at = y + rows.to(tl.int64)[:, None] * outputs + columns[None, :]
    tl.store(y_at, sums.to(y.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])
