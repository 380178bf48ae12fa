"""Chunks of a step as tensors: what the model reads, where the cache is written, which rows choose.

Knows chunks and blocks; does not know the model. Built on the host and copied to the device once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.attention import SequenceSpan, StepLayout, causal_mask
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.logprobs import prompt_rows
from verifier_service.kv_cache import is_contiguous
from verifier_service.transfers import to_device

Table = npt.NDArray[np.int64]


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


def pack(
    chunks: list[Chunk],
    cache: CacheShape,
    group: int,
    device: torch.device,
    min_tokens: int = 1,
    rounds: int = 0,
    longest_round: int = 1,
) -> StepTensors:
    """The tensors of a step; `group` is the number of query heads that share a kv head.

    Fewer than `min_tokens` are padded with rows that nobody reads. The first `rounds` chunks, if
    any, get an attention of their own, for rounds of one token or of up to `longest_round`.
    """
    size = cache.block_size
    lengths = np.array([len(chunk.ids) for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    bounds = lengths.cumsum()
    tokens = int(bounds[-1])
    owner = np.repeat(np.arange(len(chunks)), lengths)
    table = _table(chunks)
    # Padding: the first id there is, in the block that nobody reads.
    total = max(tokens, min_tokens)
    ids, positions = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    slots = np.full(total, cache.num_blocks * size)
    ids[:tokens] = list(chain.from_iterable([chunk.ids for chunk in chunks]))
    positions[:tokens] = (starts + lengths - bounds)[owner] + np.arange(tokens)
    page, offset = np.divmod(positions[:tokens], size)
    slots[:tokens] = table[owner, page] * size + offset
    write = to_device(torch.from_numpy(slots), device)
    layout = (
        _in_parts(write, chunks, table, rounds, longest_round, size, group)
        if rounds
        else _layout(write, chunks, table, size, group)
    )
    return StepTensors(
        ids=to_device(torch.from_numpy(ids), device),
        positions=to_device(torch.from_numpy(positions), device),
        rows=to_device(_rows(chunks), device),
        layout=layout,
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
        row_index=to_device(torch.from_numpy(row_index), device),
        draft_ids=to_device(torch.from_numpy(draft_ids), device),
        draft_lengths=to_device(
            torch.tensor([c.drafts for c in choosing], dtype=torch.int64), device
        ),
    )


def _slots(blocks: list[int], size: int, start: int, count: int) -> np.ndarray:
    """Cache slots of positions start … start + count - 1."""
    position = np.arange(start, start + count)
    return np.asarray(blocks)[position // size] * size + position % size


def _table(chunks: list[Chunk]) -> Table:
    """Each chunk's blocks in a row, then zeros."""
    table = np.zeros((len(chunks), max(len(chunk.blocks) for chunk in chunks)), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        table[row, : len(chunk.blocks)] = chunk.blocks
    return table


def _layout(write: Tensor, chunks: list[Chunk], table: Table, size: int, group: int) -> StepLayout:
    if _in_pages(write.device):
        return _paged_layout(write, chunks, table)
    return StepLayout(write, spans=_spans(chunks, size, group))


def _in_pages(device: torch.device) -> bool:
    """Whether attention reads pages through a table, not one sequence after the other."""
    return device.type != "cpu"


def _in_parts(
    write: Tensor,
    chunks: list[Chunk],
    table: Table,
    rounds: int,
    longest: int,
    size: int,
    group: int,
) -> StepLayout:
    """A step's layout whose first chunks, rounds, are apart from the others.

    A kernel for prompts looks for each sequence's queries in as many places as the longest prompt
    has, and reads keys once for every query head.
    """
    parts = []
    for part in (slice(0, rounds), slice(rounds, None)):
        some = chunks[part]
        count = sum(len(chunk.ids) for chunk in some)
        parts.append((count, _layout(write, some, table[part], size, group)))
    most = max(len(chunk.ids) for chunk in chunks[:rounds])
    if most > 1:
        # One number for all that have drafts: kernels are made for few of them.
        most = max(most, longest)
    count, first = parts[0]
    return StepLayout(write, parts=((count, replace(first, max_query=most)), parts[1]))


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


def _paged_layout(write: Tensor, chunks: list[Chunk], table: Table) -> StepLayout:
    lengths = [len(chunk.ids) for chunk in chunks]
    contexts = [chunk.start + len(chunk.ids) for chunk in chunks]
    width = max(len(chunk.blocks) for chunk in chunks)

    def ints(values: list[int] | Table) -> Tensor:
        return to_device(torch.from_numpy(np.array(values, dtype=np.int32)), write.device)

    return StepLayout(
        write,
        cu_query=ints([0, *accumulate(lengths)]),
        cu_key=ints([0, *accumulate(contexts)]),
        used=ints(contexts),
        table=ints(table[:, :width]),
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
