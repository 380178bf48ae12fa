"""Chunks of a step as tensors: what the model reads, where the cache is written, which rows choose.

Knows chunks and blocks; does not know the model. Built on the host and copied to the device once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from verifier_service.engines.attention import SequenceSpan, StepLayout, causal_mask
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.logprobs import prompt_rows
from verifier_service.kv_cache import is_contiguous


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One step. T tokens, R rows with logits, B sequences that choose, K the longest draft.

    `ids`, `positions` [T]; `rows` [R] index into T, those that choose first, then those whose
    prompt log-probabilities are asked for; `row_index` [B, K+1], `draft_ids` [B, K] and
    `draft_lengths` [B] are as `VerifyInputs` asks; all int64.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    row_index: Tensor
    draft_ids: Tensor
    draft_lengths: Tensor
    layout: StepLayout


def pack(
    chunks: list[Chunk],
    cache: CacheShape,
    group: int,
    device: torch.device,
    min_tokens: int = 1,
) -> StepTensors:
    """The tensors of a step; `group` is the number of query heads that share a kv head.

    Fewer than `min_tokens` are padded with rows that nobody reads.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[np.ndarray] = []
    for chunk in chunks:
        ids.extend(chunk.ids)
        positions.extend(range(chunk.start, chunk.start + len(chunk.ids)))
        slots.append(_slots(chunk.blocks, cache.block_size, chunk.start, len(chunk.ids)))
    for _ in range(min_tokens - len(ids)):
        ids.append(0)
        positions.append(0)
        slots.append(np.array([cache.num_blocks * cache.block_size]))
    write = _to(torch.from_numpy(np.concatenate(slots)), device)
    layout = (
        StepLayout(write, spans=_spans(chunks, cache.block_size, group))
        if device.type == "cpu"
        else _paged_layout(write, chunks, device)
    )
    rows, row_index, draft_ids, draft_lengths = _choices(chunks)
    return StepTensors(
        ids=_to(torch.tensor(ids), device),
        positions=_to(torch.tensor(positions), device),
        rows=_to(rows, device),
        row_index=_to(row_index, device),
        draft_ids=_to(draft_ids, device),
        draft_lengths=_to(draft_lengths, device),
        layout=layout,
    )


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _slots(blocks: list[int], size: int, start: int, count: int) -> np.ndarray:
    """Cache slots of positions start … start + count - 1."""
    position = np.arange(start, start + count)
    return np.asarray(blocks)[position // size] * size + position % size


def _spans(chunks: list[Chunk], size: int, group: int) -> tuple[SequenceSpan, ...]:
    spans = []
    first = 0
    for chunk in chunks:
        length = len(chunk.ids)
        context = chunk.start + length
        used = chunk.blocks[: -(-context // size)]
        slots: slice | Tensor
        if is_contiguous(used):
            slots = slice(used[0] * size, used[0] * size + context)
        else:
            slots = torch.from_numpy(_slots(used, size, 0, context))
        mask = causal_mask(length, chunk.start, group)
        spans.append(SequenceSpan(first, first + length, chunk.start, context, slots, mask))
        first += length
    return tuple(spans)


def _paged_layout(write: Tensor, chunks: list[Chunk], device: torch.device) -> StepLayout:
    lengths = [len(chunk.ids) for chunk in chunks]
    contexts = [chunk.start + len(chunk.ids) for chunk in chunks]
    width = max(len(chunk.blocks) for chunk in chunks)
    table = [chunk.blocks + [0] * (width - len(chunk.blocks)) for chunk in chunks]

    def ints(values: list[int] | list[list[int]]) -> Tensor:
        return _to(torch.tensor(values, dtype=torch.int32), device)

    return StepLayout(
        write,
        cu_query=ints([0, *accumulate(lengths)]),
        cu_key=ints([0, *accumulate(contexts)]),
        used=ints(contexts),
        table=ints(table),
        max_query=max(lengths),
        max_key=max(contexts),
    )


def _choices(chunks: list[Chunk]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`rows`, and `row_index`, `draft_ids`, `draft_lengths` of the chunks that choose."""
    choosing = [chunk for chunk in chunks if chunk.samples]
    width = max((chunk.drafts for chunk in choosing), default=0)
    rows: list[int] = []
    row_index = np.zeros((len(choosing), width + 1), dtype=np.int64)
    draft_ids = np.zeros((len(choosing), width), dtype=np.int64)
    end = 0
    b = 0
    for chunk in chunks:
        end += len(chunk.ids)
        if not chunk.samples:
            continue
        count = chunk.drafts + 1
        row_index[b, :count] = np.arange(len(rows), len(rows) + count)
        row_index[b, count:] = len(rows)
        draft_ids[b, : chunk.drafts] = chunk.ids[len(chunk.ids) - chunk.drafts :]
        rows.extend(range(end - count, end))
        b += 1
    end = 0
    for chunk in chunks:
        rows.extend(end + offset for offset in prompt_rows(chunk))
        end += len(chunk.ids)
    if not rows:
        rows = [0]
    lengths = torch.tensor([chunk.drafts for chunk in choosing], dtype=torch.int64)
    return torch.tensor(rows), torch.from_numpy(row_index), torch.from_numpy(draft_ids), lengths
