"""Attention of packed sequences on a CPU whose rounding depends on positions only.

Knows a step's spans and the cache by slot; does not know why rounding matters. A query's place in
a tile of queries, and a key's in a block of keys, are their absolute positions modulo the tile's
size: so the query at some position goes through the same products of the same shapes, in the same
places of these, whether it came alone, among drafts, in a prefill chunk of any length, or beside
other sequences. Nothing that another query of the tile holds enters its sums.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from verifier_service.engines.attention import SequenceSpan

# Positions of a tile of queries, and of a block of keys: multiples of one another.
_QUERIES = 8
_KEYS = 128


def attend_tiles(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: tuple[SequenceSpan, ...],
    scale: float,
    window: int,
) -> Tensor:
    """[T, heads, size] queries -> [T, heads, size], as `attend_spans`; float32."""
    total, heads, _ = query.shape
    parts = [
        _attend_span(query[span.first : span.end], keys, values, span, scale, window)
        for span in spans
    ]
    padding = total - spans[-1].end
    if padding:
        parts.append(query.new_zeros(padding, heads, values.shape[2]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_span(
    query: Tensor, keys: Tensor, values: Tensor, span: SequenceSpan, scale: float, window: int
) -> Tensor:
    length, heads, size = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    lead = span.start % _QUERIES
    begin = span.start - lead
    tiles = -(-(lead + length) // _QUERIES)
    padded = query.new_zeros(tiles * _QUERIES, heads, size)
    # In powers of two: exp is many times slower where its results underflow, as masked ones do.
    torch.mul(query, scale * math.log2(math.e), out=padded[lead : lead + length])
    # [tiles, kv heads, group * queries, size]: heads that share keys are rows of one product.
    folded = padded.view(tiles, _QUERIES, kv_heads, group, size).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(tiles, kv_heads, group * _QUERIES, size)
    key_blocks = [block.permute(1, 2, 0) for block in _blocks(keys, span)]
    value_blocks = [block.transpose(0, 1) for block in _blocks(values, span)]
    out = [
        _attend_tile(rows, begin + tile * _QUERIES, key_blocks, value_blocks, window, group)
        for tile, rows in enumerate(folded)
    ]
    together = torch.stack(out) if tiles > 1 else out[0]
    mixed = together.view(tiles, kv_heads, group, _QUERIES, -1).permute(0, 3, 1, 2, 4)
    return mixed.reshape(tiles * _QUERIES, heads, -1)[lead : lead + length]


def _attend_tile(
    query: Tensor,
    position: int,
    keys: list[Tensor],
    values: list[Tensor],
    window: int,
    group: int,
) -> Tensor:
    """Queries [kv heads, group * tile, size], the tile's first at `position`; the same shape out.

    Scores are in powers of two. Only blocks that the tile's last query may see are read, in order.
    """
    last = position // _KEYS
    first = max(position - window + 1, 0) // _KEYS if window else 0
    seen = range(first, last + 1)
    scores = query.new_empty(len(seen), *query.shape[:2], _KEYS)
    for block, into in zip(seen, scores, strict=True):
        torch.bmm(query, keys[block], out=into)
        ahead = position - block * _KEYS
        if ahead < _KEYS or (window and ahead + _QUERIES > window):
            into.add_(_mask(ahead, group, window))
    scores.sub_(scores.amax(dim=(0, 3)).unsqueeze(-1))
    mixed = total = query.new_zeros(())
    for block, weights in zip(seen, scores, strict=True):
        # One block after the other, whatever number there is: a sum over all may be cut otherwise.
        weights.exp2_()
        mixed = mixed + torch.bmm(weights, values[block])
        total = total + weights.sum(dim=-1, keepdim=True)
    return mixed / total


def _blocks(cache: Tensor, span: SequenceSpan) -> list[Tensor]:
    """The context's keys or values in blocks [keys of a block, kv heads, size], zeros at the end.

    Full blocks of neighbouring slots are views; all have the same strides.
    """
    held = cache[span.slots]
    whole = span.context // _KEYS
    blocks = [held[block * _KEYS : (block + 1) * _KEYS] for block in range(whole)]
    rest = span.context - whole * _KEYS
    if rest:
        last = cache.new_zeros(_KEYS, *cache.shape[1:])
        last[:rest] = held[whole * _KEYS :]
        blocks.append(last)
    return blocks


@lru_cache(maxsize=1024)
def _mask(ahead: int, group: int, window: int) -> Tensor:
    """[group * queries, keys] to add to scores of a tile `ahead` positions behind the block."""
    query = ahead + torch.arange(_QUERIES).unsqueeze(1)
    key = torch.arange(_KEYS)
    seen = key <= query
    if window:
        seen &= key > query - window
    return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf).repeat(group, 1)
