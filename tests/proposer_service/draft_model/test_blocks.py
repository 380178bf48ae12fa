"""Who keeps blocks when there are too few of them."""

from __future__ import annotations

from proposer_service.draft_model.blocks import IDLE_ROUNDS, KeyBlocks
from proposer_service.draft_model.text import DraftText
from verifier_service.engines.base import CacheShape


def made(number: int, used: int = 0) -> DraftText:
    text = DraftText(number, [1], used)
    text.read = 1
    return text


def test_a_text_gets_as_many_blocks_as_it_needs() -> None:
    blocks = KeyBlocks(CacheShape(4, 4))
    text = made(1)
    assert blocks.cover(text, 4, 1)
    assert blocks.holds(text, 4)
    assert not blocks.holds(text, 5)
    assert blocks.cover(text, 5, 1)
    assert (len(text.blocks), blocks.num_free) == (2, 2)
    assert blocks.cover(text, 3, 1)
    assert len(text.blocks) == 2


def test_the_one_used_longest_ago_gives_way_and_no_more_than_needed() -> None:
    blocks = KeyBlocks(CacheShape(3, 4))
    old, middle, new = made(1), made(2), made(3)
    assert all(blocks.cover(text, 4, 1) for text in (old, middle, new))
    assert blocks.cover(old, 4, 2)
    assert blocks.cover(made(4, IDLE_ROUNDS), 4, IDLE_ROUNDS)
    assert (middle.blocks, middle.read, blocks.evictions) == ([], 0, 1)
    assert old.blocks and new.blocks and new.read == 1


def test_those_asked_about_of_late_keep_theirs() -> None:
    blocks = KeyBlocks(CacheShape(2, 4))
    running = made(1, used=5)
    assert blocks.cover(running, 8, 5)
    late = made(2, used=5)
    assert not blocks.cover(late, 4, 4 + IDLE_ROUNDS)
    assert len(running.blocks) == 2
    assert blocks.cover(late, 4, 5 + IDLE_ROUNDS)


def test_one_that_was_opened_earlier_goes_before_the_later_ones() -> None:
    blocks = KeyBlocks(CacheShape(3, 4))
    texts = [made(number, used=9) for number in (1, 2, 3)]
    assert all(blocks.cover(text, 4, 9) for text in texts)
    assert not blocks.cover(texts[2], 8, 9)
    assert blocks.cover(texts[0], 8, 9)
    assert [len(text.blocks) for text in texts] == [2, 1, 0]
    assert not blocks.cover(texts[2], 4, 9)


def test_nobody_gives_way_in_vain() -> None:
    blocks = KeyBlocks(CacheShape(3, 4))
    idle = made(1)
    assert blocks.cover(idle, 4, 0)
    assert not blocks.cover(made(2, 99), 16, 99)
    assert idle.blocks


def test_released_blocks_are_free_again() -> None:
    blocks = KeyBlocks(CacheShape(2, 4))
    text = made(1)
    assert blocks.cover(text, 8, 0)
    blocks.release(text)
    blocks.release(text)
    assert (text.blocks, text.read, blocks.num_free) == ([], 0, 2)
    assert blocks.cover(made(2), 8, 0)
