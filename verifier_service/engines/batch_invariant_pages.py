"""Attention over pages on a GPU whose rounding depends on positions only.

Knows a step's layout and the kernel's tiles; does not know models. One kernel serves prompts,
verifications and plain decoding: kernels made for each of these would round each in its own way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from verifier_service.engines.attention import StepLayout

# Rows of a tile of queries: the fewest that Hopper's widest instruction multiplies.
_ROWS = 64
# Keys that are read at once; a page holds a multiple of them.
_KEYS = 64
_SIZES = (16, 32, 64, 128, 256)
_LOG2_E = 1.4426950408889634


def refusal(heads: int, kv_heads: int, size: int, page: int) -> str:
    """Why the kernel cannot serve such a model, in words; empty where it can."""
    if size not in _SIZES:
        return f"heads of size {size}; it takes {', '.join(map(str, _SIZES))}"
    if heads // kv_heads > _ROWS:
        return f"{heads // kv_heads} query heads share keys and values; at most {_ROWS} may"
    if page % _KEYS:
        return f"cache blocks of {page} tokens are no multiple of {_KEYS}"
    return ""


def attend_fixed(
    query: Tensor, keys: Tensor, values: Tensor, layout: StepLayout, scale: float
) -> Tensor:
    """As `attend_pages`, without a window: [T, heads, size] -> the same.

    Rows of no sequence are left as the memory was.
    """
    assert layout.cu_query is not None
    assert layout.used is not None
    assert layout.table is not None
    query = query.contiguous()
    heads, size = query.shape[1:]
    page, kv_heads = keys.shape[1:3]
    positions = positions_of(heads // kv_heads)
    out = torch.empty_like(query)
    # A sequence's queries may begin in the middle of a tile.
    tiles = (layout.max_query + positions - 2) // positions + 1
    _kernel()[(tiles, kv_heads, layout.table.shape[0])](
        query,
        keys,
        values,
        out,
        layout.cu_query,
        layout.used,
        layout.table,
        layout.table.stride(0),
        scale * _LOG2_E,
        heads,
        kv_heads,
        page,
        GROUP=heads // kv_heads,
        POSITIONS=positions,
        SIZE=size,
        ROWS=_ROWS,
        KEYS=_KEYS,
        num_warps=4,
        num_stages=3 if size * query.itemsize <= 256 else 1,
    )
    return out


def positions_of(group: int) -> int:
    """Positions of a tile, a power of two, where `group` query heads share its keys."""
    return 1 << ((_ROWS // group).bit_length() - 1)


@cache
def _kernel() -> Any:
    """Triton comes with torch's CUDA builds only, so it is looked for when it is needed."""
    from verifier_service.engines.batch_invariant_triton import attention

    return attention
