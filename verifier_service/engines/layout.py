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
class Choices:
    """Which rows choose and what they are compared with, as `VerifyInputs` asks; all int64.

    B sequences that choose, K the longest draft: `row_index` [B, K+1], `draft_ids` [B, K],
    `draft_lengths` [B].
    """

    row_index: Tensor
    draft_ids: Tensor
    draft_lengths: Tensor


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What the model reads of one step. T tokens, R rows with logits.

    `ids`, `positions` [T]; `rows` [R] index into T, those that choose first, then those whose
    prompt log-probabilities are asked for; all int64.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    layout: StepLayout
    choices: Choices


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
    return StepTensors(
        ids=_to(torch.tensor(ids), device),
        positions=_to(torch.tensor(positions), device),
        rows=_to(_rows(chunks), device),
        layout=layout,
        choices=pack_choices(chunks, device),
    )


def pack_choices(chunks: list[Chunk], device: torch.device) -> Choices:
    """The choices of the chunks that sample, whose rows stand one behind the other."""
    choosing = [chunk for chunk in chunks if chunk.samples]
    width = max((chunk.drafts for chunk in choosing), default=0)
    row_index = np.zeros((len(choosing), width + 1), dtype=np.int64)
    draft_ids = np.zeros((len(choosing), width), dtype=np.int64)
    first = 0
    for b, chunk in enumerate(choosing):
        count = chunk.drafts + 1
        row_index[b, :count] = np.arange(first, first + count)
        row_index[b, count:] = first
        draft_ids[b, : chunk.drafts] = chunk.ids[len(chunk.ids) - chunk.drafts :]
        first += count
    return Choices(
        row_index=_to(torch.from_numpy(row_index), device),
        draft_ids=_to(torch.from_numpy(draft_ids), device),
        draft_lengths=_to(torch.tensor([c.drafts for c in choosing], dtype=torch.int64), device),
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


def _rows(chunks: list[Chunk]) -> Tensor:
    """Tokens whose logits are read, int64: those that choose of all chunks, then the prompts'."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.ids)
        if chunk.samples:
            rows.extend(range(end - chunk.drafts - 1, end))
    end = 0
    for chunk in chunks:
        rows.extend(end + offset for offset in prompt_rows(chunk))
        end += len(chunk.ids)
    return torch.tensor(rows or [0])
