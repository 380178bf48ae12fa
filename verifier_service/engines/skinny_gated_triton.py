"""Triton kernels of the gated feed-forward for few rows: silu(gate) * up, and with its product.

Knows pointers and tiles; does not know models, devices or which tile a product gets. Importing this
needs Triton. Gates and ups are rounded before they meet, as where they go through memory.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


# Triton reads the source: names of types that it does not know may not stand there.
@triton.jit(do_not_specialize=["count"])  # type: ignore[misc,untyped-decorator,unused-ignore]
def product(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    count,
    outputs,
    depth,
    WHOLE_COLUMNS: tl.constexpr,
    WHOLE_DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """y [count, outputs] = silu(x gates^T) * (x ups^T), of x [count, depth], `count` at most ROWS.

    `weight` [2 outputs, depth] holds the gates' rows and behind them the ups'. A program computes
    COLUMNS outputs of all rows. WHOLE_... say that there is no tail. All matrices are contiguous.
    """
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, DEPTH)
    row_in, column_in = rows < count, columns < outputs
    gate_at = weight + columns.to(tl.int64)[:, None] * depth + at[None, :]
    up_at = weight + (columns.to(tl.int64) + outputs)[:, None] * depth + at[None, :]
    x_at = x + rows[None, :] * depth + at[:, None]
    gates = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    ups = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for begin in range(0, depth, DEPTH):
        # Weights are read once and rows by every program: the cache between them keeps the rows.
        if WHOLE_DEPTH:
            right = tl.load(x_at, mask=row_in[None, :], other=0.0, eviction_policy="evict_last")
            if WHOLE_COLUMNS:
                gate = tl.load(gate_at, eviction_policy="evict_first")
                up = tl.load(up_at, eviction_policy="evict_first")
            else:
                there = column_in[:, None]
                gate = tl.load(gate_at, mask=there, other=0.0, eviction_policy="evict_first")
                up = tl.load(up_at, mask=there, other=0.0, eviction_policy="evict_first")
        else:
            inside = at < depth - begin
            there = column_in[:, None] & inside[None, :]
            right = tl.load(x_at, mask=row_in[None, :] & inside[:, None], other=0.0)
            gate = tl.load(gate_at, mask=there, other=0.0)
            up = tl.load(up_at, mask=there, other=0.0)
        gates = tl.dot(gate, right, gates)
        ups = tl.dot(up, right, ups)
        gate_at += DEPTH
        up_at += DEPTH
        x_at += DEPTH
    gates = gates.to(y.dtype.element_ty).to(tl.float32)
    ups = ups.to(y.dtype.element_ty).to(tl.float32)
    result = gates / (1.0 + tl.exp(-gates)) * ups
    y_at = y + rows[None, :] * outputs + columns[:, None]
    tl.store(y_at, result.to(y.dtype.element_ty), mask=column_in[:, None] & row_in[None, :])


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def activation(  # type: ignore[no-untyped-def]
    x, y, outputs, BLOCK: tl.constexpr
):
    """y [rows, outputs] = silu(gate) * up, of x [rows, 2 outputs]: gates, and behind them ups."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < outputs
    gate_at = x + row * 2 * outputs + at
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + outputs, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row * outputs + at, result.to(y.dtype.element_ty), mask=inside)
