"""Counts of a growing text, against counting from the start."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier_service.messages import Sampling
from verifier_service.penalties import TokenCounts, has_penalties

IDS = st.lists(st.integers(0, 6), max_size=12)
ALL = Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0)


def dense(counts: TokenCounts, drafts: list[int], vocab: int = 200) -> list[np.ndarray]:
    """factors, frequencies, presences [rows, vocab]."""
    rows = counts.rows(drafts)
    assert len(set(rows.token_ids.tolist())) == len(rows.token_ids)
    shape = (len(drafts) + 1, vocab)
    made = [np.ones(shape), np.zeros(shape), np.zeros(shape)]
    for part, numbers in zip(made, (rows.factors, rows.frequencies, rows.presences), strict=True):
        part[:, rows.token_ids] = numbers
    return made


@given(prompt=IDS, rounds=st.lists(st.tuples(IDS, IDS), max_size=4))
@settings(max_examples=60, deadline=None)
def test_counts_equal_counting_from_the_start(
    prompt: list[int], rounds: list[tuple[list[int], list[int]]]
) -> None:
    counts = TokenCounts(ALL)
    ids = list(prompt)
    for committed, drafts in [([], []), *rounds]:
        ids += committed
        counts.extend(ids, len(prompt))
        factors, frequencies, presences = dense(counts, drafts)
        for row in range(len(drafts) + 1):
            output = ids[len(prompt) :] + drafts[:row]
            said = Counter(output)
            for token in range(8):
                assert factors[row, token] == (2.0 if token in {*prompt, *output} else 1.0)
                assert frequencies[row, token] == 0.25 * said[token]
                assert presences[row, token] == (0.5 if said[token] else 0.0)


def test_more_distinct_tokens_than_there_was_room_for() -> None:
    counts = TokenCounts(ALL)
    ids = list(range(150))
    counts.extend(ids, 70)
    ids += list(range(100, 190))
    counts.extend(ids, 70)
    factors, frequencies, _ = dense(counts, [199])
    assert (factors[0, :190] == 2.0).all()
    assert factors[0, 199] == 1.0 and factors[1, 199] == 2.0
    assert frequencies[0, [69, 70, 100, 149, 189]].tolist() == [0.0, 0.25, 0.5, 0.5, 0.25]


def test_the_prompt_is_not_kept_where_no_penalty_looks_at_it() -> None:
    counts = TokenCounts(Sampling(frequency_penalty=1.0))
    counts.extend([*range(100), 7], 100)
    assert counts.rows([]).token_ids.tolist() == [7]


@pytest.mark.parametrize(
    ("sampling", "has"),
    [
        (Sampling(), False),
        (Sampling(repetition_penalty=1.0, presence_penalty=0.0), False),
        (Sampling(repetition_penalty=0.5), True),
        (Sampling(presence_penalty=-2.0), True),
        (Sampling(frequency_penalty=2.0), True),
    ],
)
def test_neutral_values_are_no_penalty(sampling: Sampling, has: bool) -> None:
    assert has_penalties(sampling) is has
