"""Windows of any length against a scan of the whole text, and what they may cost."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.base import NO_DRAFT, Proposer
from proposer_service.proposers.long_ngram import (
    MOST_INDEXED,
    LongNgramProposer,
    ngram_proposer,
)
from proposer_service.proposers.ngram import NgramProposer
from tests.proposer_service.properties import PROPERTY
from tests.proposer_service.proposers.test_ngram import TINY, scan

WINDOWS = st.tuples(st.integers(1, 6), st.integers(0, 40)).map(lambda w: (w[0], w[0] + w[1]))


def opened(proposer: Proposer, ids: list[int]) -> Proposer:
    proposer.open(7, ids, len(ids), "")
    return proposer


@given(st.lists(TINY, min_size=1, max_size=6), WINDOWS, st.integers(1, 8))
@PROPERTY
def test_equals_a_scan_at_every_length(
    parts: list[list[int]], window: tuple[int, int], k: int
) -> None:
    text = list(parts[0])
    proposer = opened(LongNgramProposer(*window), text)
    assert proposer.propose(7, k) == scan(text, *window, k)
    for part in parts[1:]:
        proposer.extend(7, part)
        text += part
        assert proposer.propose(7, k) == scan(text, *window, k)
        assert proposer.propose(7, k) == opened(NgramProposer(*window), text).propose(7, k)


@pytest.mark.parametrize("ids", [[3] * 60, [1, 2] * 40, [*range(30), *range(30), 5]])
@pytest.mark.parametrize("most", [1, 2, 33, 50, 10**30])
def test_repeated_text(ids: list[int], most: int) -> None:
    proposer = LongNgramProposer(1, most)
    proposer.open(7, [], 0, "")
    for end, token in enumerate(ids, start=1):
        proposer.extend(7, [token])
        assert proposer.propose(7, 4) == scan(ids[:end], 1, most, 4)


def test_the_windows_choose_the_way() -> None:
    assert isinstance(ngram_proposer(1, MOST_INDEXED), NgramProposer)
    assert isinstance(ngram_proposer(1, MOST_INDEXED + 1), LongNgramProposer)


@pytest.mark.parametrize("bounds", [(0, 40), (41, 40), (-1, 10**30)])
def test_wrong_bounds_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max is required"):
        ngram_proposer(*bounds)


@pytest.mark.parametrize("bounds", [(1, 10_000), (1, 10**30), (10**30, 10**30)])
def test_memory_follows_the_text_and_not_the_windows(bounds: tuple[int, int]) -> None:
    rng = random.Random(0)
    ids = [rng.randrange(50) for _ in range(1000)]
    tracemalloc.start()
    try:
        proposer = opened(ngram_proposer(*bounds), ids)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000 * len(ids)
    assert proposer.propose(7, 4) == scan(ids, *bounds, 4)


def test_a_text_that_ended_is_forgotten() -> None:
    proposer = opened(LongNgramProposer(1, 40), [1, 1])
    assert not list(proposer.lookahead(7, NO_DRAFT, 4))
    proposer.close(7, finished=True)
    with pytest.raises(KeyError):
        proposer.propose(7, 4)
