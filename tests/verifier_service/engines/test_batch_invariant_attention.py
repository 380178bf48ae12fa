"""Attention in tiles: the definition's values, and bits that depend on positions alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from verifier_service.engines.attention import SequenceSpan, attend_spans, causal_mask
from verifier_service.engines.batch_invariant_attention import attend_tiles

KV_HEADS, GROUP, SIZE = 2, 3, 16
SCALE = SIZE**-0.5
CONTEXT = 300
# Queries that are compared: over the end of a block of keys.
FIRST, LAST = 119, 137


def sequence(length: int = CONTEXT, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(seed)
    query = torch.randn(length, KV_HEADS * GROUP, SIZE, generator=make)
    keys, values = torch.randn(2, length, KV_HEADS, SIZE, generator=make)
    return query, keys, values


def span(begin: int, end: int, first: int = 0, offset: int = 0) -> SequenceSpan:
    """Queries at positions begin … end - 1, the first of them at `first` of the pack."""
    mask = causal_mask(end - begin, begin, GROUP)
    return SequenceSpan(first, first + end - begin, begin, end, slice(offset, offset + end), mask)


def attended(begin: int, end: int, window: int = 0) -> Tensor:
    query, keys, values = sequence()
    return attend_tiles(query[begin:end], keys, values, (span(begin, end),), SCALE, window)


@pytest.mark.parametrize("window", [0, 1, 5, 8, 130, 1000])
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 300), (127, 129), (128, 129), (255, 300)])
def test_values_are_those_of_the_definition(begin: int, end: int, window: int) -> None:
    query, keys, values = sequence()
    one = (span(begin, end),)
    wanted = attend_spans(query[begin:end], keys, values, one, SCALE, window)
    assert torch.allclose(attended(begin, end, window), wanted, atol=1e-5)


@pytest.mark.parametrize("window", [0, 90])
@pytest.mark.parametrize("chunk", [1, 2, 5, 8, 9, 18])
def test_any_cut_into_chunks_gives_the_same_bits(chunk: int, window: int) -> None:
    whole = attended(0, CONTEXT, window)
    starts = range(FIRST, LAST, chunk)
    cut = [attended(start, min(start + chunk, LAST), window) for start in starts]
    assert torch.equal(torch.cat(cut), whole[FIRST:LAST])


def test_the_faster_attention_does_not_promise_that() -> None:
    """Or this file would test nothing."""
    query, keys, values = sequence()
    whole = attend_spans(query, keys, values, (span(0, CONTEXT),), SCALE, 0)
    cut = [
        attend_spans(query[i : i + 1], keys, values, (span(i, i + 1),), SCALE, 0)
        for i in range(FIRST, LAST)
    ]
    assert not torch.equal(torch.cat(cut), whole[FIRST:LAST])


def test_other_sequences_of_the_step_change_no_bit() -> None:
    query, keys, values = sequence()
    other_query, other_keys, other_values = sequence(40, seed=1)
    alone = attended(200, 205)
    beside = attend_tiles(
        torch.cat((other_query[30:40], query[200:205])),
        torch.cat((other_keys, keys)),
        torch.cat((other_values, values)),
        (span(30, 40), span(200, 205, first=10, offset=40)),
        SCALE,
        0,
    )
    assert torch.equal(beside[10:], alone)


def test_scattered_slots_change_no_bit() -> None:
    query, keys, values = sequence()
    order = torch.randperm(CONTEXT, generator=torch.Generator().manual_seed(2))
    where = torch.empty_like(order)
    where[order] = torch.arange(CONTEXT)
    plain = span(290, 300)
    scattered = SequenceSpan(0, 10, 290, CONTEXT, where[:CONTEXT], plain.mask)
    found = attend_tiles(query[290:], keys[order], values[order], (scattered,), SCALE, 0)
    assert torch.equal(found, attended(290, 300))


def test_what_stands_behind_a_query_changes_no_bit() -> None:
    """Drafts that follow it, or what another step left in the slots."""
    query, keys, values = sequence()
    before = attended(200, 203)
    keys[203:], values[203:] = 7.0, -3.0
    drafts = query[200:208].clone()
    drafts[3:] = 9.0
    found = attend_tiles(drafts, keys, values, (span(200, 208),), SCALE, 0)
    assert torch.equal(found[:3], before)


def test_rows_of_no_sequence_are_zeros() -> None:
    query, keys, values = sequence(4)
    out = attend_tiles(query, keys, values, (span(0, 2),), SCALE, 0)
    assert out.shape == query.shape
    assert not out[2:].any()
