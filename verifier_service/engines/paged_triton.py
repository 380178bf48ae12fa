"""Paged attention for few queries a sequence, by Triton kernels.

Knows queries, pages and tables; does not know steps or models. A program serves one key-value head
and one part of one sequence's keys: all query heads that share the head, for all of the sequence's
queries, form one tile, so keys and values are read once. (A kernel that takes each query head alone
reads them once for each head of the group, and most of a decoding step's attention is reading.)

Parts are there so that the longest sequence does not decide how long a step takes. How many there
may be follows from shapes; how many there are, and their order in the sum, from the shapes and the
sequence itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from verifier_service.engines.paged_kernels import add_parts, attend_part


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the kernel is cut and compiled.

    Keys are split until every processor has `programs` of them, into parts of at least
    `least_keys`; `keys` are read at once, `stages` of such reads are on their way together.
    """

    programs: int
    least_keys: int
    keys: int
    warps: int
    stages: int


# By the rows of a tile, at least so many. Measured on a card: benchmarks/attention_kernel.py.
_TUNED = {
    16: Tuning(programs=4, least_keys=128, keys=64, warps=4, stages=3),
    32: Tuning(programs=4, least_keys=128, keys=64, warps=4, stages=3),
    64: Tuning(programs=4, least_keys=256, keys=64, warps=4, stages=3),
    128: Tuning(programs=4, least_keys=256, keys=64, warps=8, stages=3),
}
# More parts than this take longer to add than they save.
_MOST_PARTS = 64
# A page holds a multiple of these.
_LEAST_KEYS_AT_ONCE = 64
_LEAST_ROWS, _MOST_ROWS = 16, 128
# Of the 227 KiB of shared memory that a program may have, what keys and values may take.
_TILE_BYTES = 192 * 1024
# Pairs of sequence and key-value head that are counted in one allocation.
_COUNTED = 4096
_LOG2_E = 1.4426950408889634


def serves(heads: int, keys: Tensor, max_query: int) -> bool:
    """Whether `heads` query heads over keys [blocks, page, kv heads, size] suit the kernel."""
    size = keys.shape[3]
    group = heads // keys.shape[2]
    return (
        size in (32, 64, 128)
        and max_query * group <= _MOST_ROWS
        and keys.shape[1] % _LEAST_KEYS_AT_ONCE == 0
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
    *,
    tuning: Tuning | None = None,
    parts: int | None = None,
    counted: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of packed queries [T, heads, size], contiguous; the same shape.

    `cu_query` [B + 1] int32 bounds each sequence's queries, at most `max_query`, the last of which
    stands at position `used`[b] - 1; `table` [B, W] int32 names its pages of `keys` and `values`
    [blocks, page, kv heads, size], contiguous. Rows of no sequence are left as they are, in `out`
    [T, heads, size], contiguous, where that is given. A sequence's keys are split into at most
    `parts`, where the shapes are not to decide that; they are added by the last of them where they
    are `counted`, by a kernel of its own where not.

    Calls on one device must follow one another, as those of one stream do: they share counters.
    """
    sequences = table.shape[0]
    heads, size = query.shape[1:]
    page, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    rows = max(_LEAST_ROWS, triton.next_power_of_2(max_query * group))
    chosen = _fitting(tuning or _TUNED[rows], page, size * keys.element_size())
    if parts is None:
        pairs = sequences * kv_heads
        parts = most_parts(pairs, _processors(query.device), table.shape[1] * page, chosen)
    if out is None:
        out = torch.empty_like(query)
    split = parts > 1
    partial = counters = out
    if split:
        shape = (sequences, kv_heads, parts, rows, size + 2)
        partial = torch.empty(shape, dtype=torch.float32, device=query.device)
        counters = _counters(query.device, -(-sequences * kv_heads // _COUNTED))
    shapes = {"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": size, "ROWS": rows, "KEYS": chosen.keys}
    least = -(-chosen.least_keys // chosen.keys) * chosen.keys
    attend_part[(kv_heads, sequences, parts)](
        query,
        keys,
        values,
        out,
        partial,
        counters,
        cu_query,
        used,
        table,
        table.stride(0),
        scale * _LOG2_E,
        least,
        **shapes,
        PAGE=page,
        SPLIT=split,
        COUNTED=counted,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    if split and not counted:
        add_parts[(kv_heads, sequences)](
            out, partial, cu_query, used, parts, least, **shapes, num_warps=4
        )
    return out


def most_parts(pairs: int, processors: int, longest: int, tuning: Tuning) -> int:
    """Into how many parts the keys of a sequence may be split.

    `pairs` is sequences times key-value heads, `longest` the most keys that a sequence may have.
    """
    wanted = -(-processors * tuning.programs // pairs)
    return max(1, min(wanted, longest // tuning.least_keys, _MOST_PARTS))


@cache
def _processors(device: torch.device) -> int:
    """How many programs a device runs side by side, at least."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@cache
def _counters(device: torch.device, blocks: int) -> Tensor:
    """Zeros, int32. The kernel leaves zeros behind, and graphs keep the address: never released."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("attention must have run once with a step's shapes before its capture")
    return torch.zeros(blocks * _COUNTED, dtype=torch.int32, device=device)


def _fitting(tuning: Tuning, page: int, row_bytes: int) -> Tuning:
    """The same where a page and shared memory hold it, else less at once."""
    keys = tuning.keys if page % tuning.keys == 0 else _LEAST_KEYS_AT_ONCE
    stages = min(tuning.stages, max(2, _TILE_BYTES // (2 * keys * row_bytes)))
    return replace(tuning, keys=keys, stages=stages)
