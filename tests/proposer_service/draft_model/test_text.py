"""What of the model's own continuation is kept as the true text grows."""

from __future__ import annotations

import pytest

from proposer_service.draft_model.text import GREEDY, DraftText
from proposer_service.proposers.batch import TargetSampling


def grown(*chain: int) -> DraftText:
    """Three true ids, read, and a chain behind them."""
    text = DraftText(1, [7, 8, 9], 0)
    for token in chain:
        text.grow(token)
    return text


def test_what_was_not_read_is_unread() -> None:
    assert DraftText(1, [7, 8, 9], 0).unread == 3
    text = grown(1, 2)
    assert (text.ids, text.length, text.chain, text.unread) == ([7, 8, 9, 1, 2], 3, [1, 2], 1)


@pytest.mark.parametrize(
    ("committed", "chain", "read"),
    [
        ([1], [2, 3], 5),
        ([1, 2], [3], 5),
        ([1, 2, 3], [], 5),
        ([1, 2, 3, 4], [], 5),
        ([1, 2, 3, 4, 5], [], 5),
        ([5], [], 3),
        ([1, 5], [], 4),
        ([1, 2, 5], [], 5),
        ([5, 2, 3], [], 3),
        ([], [1, 2, 3], 5),
    ],
)
def test_a_chain_is_kept_as_far_as_it_came_true(
    committed: list[int], chain: list[int], read: int
) -> None:
    text = grown(1, 2, 3)
    ids = text.ids
    text.commit(committed)
    assert text.ids is ids
    assert text.ids == [7, 8, 9, *committed, *chain]
    assert (text.length, text.chain, text.read) == (3 + len(committed), chain, read)


def test_an_id_that_the_target_lacks_ends_the_chain() -> None:
    text = DraftText(1, [7, 8, 9], 0)
    text.heed(TargetSampling(vocabulary_size=10), noisy=False)
    text.grow(9)
    text.grow(10)
    assert (text.chain, text.stuck, text.unread) == ([9], True, 1)
    text.commit([9])
    assert text.stuck
    text.commit([3])
    assert not text.stuck


def test_only_noise_that_is_shared_is_added() -> None:
    text = DraftText(1, [1], 0)
    target = TargetSampling(0.7, 5, 0.9, -3, coupled=True)
    text.heed(target, noisy=False)
    assert text.sampling is GREEDY
    text.heed(target, noisy=True)
    sampling = text.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (
        0.7,
        5,
        0.9,
        -3,
    )
