"""Sequences' blocks: what is found again, for whom, and that nothing is lost or written twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from verifier_service.block_tables import BlockTables
from verifier_service.engines.base import CacheShape
from verifier_service.kv_cache import is_contiguous
from verifier_service.messages import Request, Sampling
from verifier_service.sequences import Sequence

SIZE = 2


def sequence(ids: list[int], salt: str = "", number: int = 1, **sampling: Any) -> Sequence:
    request = Request(f"r{number}", list(ids), Sampling(**sampling), cache_salt=salt)
    return Sequence(number, request, lambda output: None, 0, 0, number, ids=list(ids))


def make(blocks: int = 12, *, neighbours: bool = False, caching: bool = True) -> BlockTables:
    return BlockTables(CacheShape(blocks, SIZE, neighbours), prefix_caching=caching)


def computed(tables: BlockTables, ids: list[int], salt: str = "", number: int = 1) -> Sequence:
    """A sequence whose prompt is computed, but for its last id."""
    made = sequence(ids, salt, number)
    assert tables.open(made, 0)
    made.computed = len(ids) - 1
    tables.publish(made)
    return made


def test_an_equal_beginning_is_shared_while_its_first_owner_runs() -> None:
    tables = make()
    first = computed(tables, [1, 2, 3, 4, 5])
    second = sequence([1, 2, 3, 4, 9], number=2)
    assert tables.open(second, 0)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert (second.computed, second.cached) == (4, 4)
    tables.close(first)
    assert tables.num_free == 12 - 3


def test_the_last_id_is_always_computed() -> None:
    tables = make()
    computed(tables, [1, 2, 3, 4, 5])
    for ids, hit in ([1, 2, 3, 4], 2), ([1, 2, 3, 4, 5], 4), ([1, 2], 0), ([1, 2, 3], 2):
        again = sequence(ids, number=2)
        assert tables.open(again, 0)
        assert again.computed == hit
        tables.close(again)


@pytest.mark.parametrize(("ids", "hit"), [([1, 2, 3, 4, 5], 4), ([1, 2, 9, 4, 5], 2)])
def test_hits_end_where_ids_part(ids: list[int], hit: int) -> None:
    tables = make()
    tables.close(computed(tables, [1, 2, 3, 4, 5]))
    again = sequence(ids, number=2)
    assert tables.open(again, 0)
    assert again.cached == hit


def test_a_block_is_not_found_behind_another_beginning() -> None:
    tables = make()
    tables.close(computed(tables, [1, 2, 3, 4, 5]))
    moved = sequence([9, 9, 3, 4, 5], number=2)
    assert tables.open(moved, 0)
    assert moved.cached == 0


def test_salts_part_tenants() -> None:
    tables = make()
    tables.close(computed(tables, [1, 2, 3, 4, 5], "a"))
    for salt, hit in ("b", 0), ("", 0), ("a", 4):
        again = sequence([1, 2, 3, 4, 5], salt, 2)
        assert tables.open(again, 0)
        assert again.cached == hit, salt
        tables.close(again)


def test_prompt_logprobs_compute_everything_and_still_publish() -> None:
    tables = make()
    tables.close(computed(tables, [1, 2, 3, 4, 5]))
    scored = sequence([1, 2, 3, 4, 5], number=2, prompt_logprobs=0)
    assert tables.open(scored, 0)
    tables.adopt(scored)
    assert (scored.computed, scored.cached) == (0, 0)
    # Not even looked for: the rate of hits is not theirs to lower.
    assert tables.queried_tokens == 5
    scored.prompt_told, scored.computed = 4, 4
    tables.close(scored)
    again = sequence([1, 2, 3, 4, 5], number=3)
    assert tables.open(again, 0)
    assert again.cached == 4


def test_without_prefix_caching_nothing_is_found_or_counted() -> None:
    tables = make(caching=False)
    tables.close(computed(tables, [1, 2, 3, 4, 5]))
    again = sequence([1, 2, 3, 4, 5], number=2)
    assert tables.open(again, 0)
    assert (again.cached, tables.queried_tokens, tables.hit_tokens) == (0, 0, 0)


def test_the_longest_unused_is_given_away_last_blocks_first() -> None:
    tables = make(4)
    tables.close(computed(tables, [1, 1, 1, 1, 1]))
    # Takes the three blocks that hold nothing, and one cached: the second of the first prompt's.
    big = sequence([7, 7, 7, 7, 7], number=2)
    assert tables.open(big, 0)
    tables.close(big)
    again = sequence([1, 1, 1, 1, 1], number=3)
    assert tables.open(again, 0)
    assert again.cached == 2


def test_room_is_judged_without_what_others_hold() -> None:
    tables = make(6)
    first = computed(tables, [1, 2, 3, 4, 5])
    second = sequence([1, 2, 3, 4, 9], number=2)
    # Two shared, one of its own: only that one is taken from the three that are free.
    assert not tables.open(second, 3)
    assert second.blocks == [] and second.computed == 0
    assert tables.open(second, 2)
    assert tables.num_free == 2
    tables.close(first)


def test_a_block_ahead_is_taken_only_from_what_is_to_spare() -> None:
    tables = make(4)
    mine = computed(tables, [1, 2, 3])
    assert (len(mine.blocks), tables.num_free) == (2, 2)
    tables.reserve_spare(mine, 4, 0)
    assert tables.num_free == 2, "what it has is enough"
    tables.reserve_spare(mine, 5, 2)
    assert tables.num_free == 2, "others may need both"
    tables.reserve_spare(mine, 5, 1)
    assert (len(mine.blocks), tables.num_free) == (3, 1)


def test_what_was_published_meanwhile_is_adopted() -> None:
    tables = make()
    late = sequence([1, 2, 3, 4, 5], number=2)
    assert tables.open(late, 0)
    own = list(late.blocks)
    first = computed(tables, [1, 2, 3, 4, 6])
    tables.adopt(late)
    assert late.blocks[:2] == first.blocks[:2] and late.blocks[2] == own[2]
    assert (late.computed, late.cached, tables.hit_tokens) == (4, 4, 4)


def test_a_preempted_sequence_finds_its_own_blocks_and_counts_no_hit() -> None:
    tables = make()
    mine = computed(tables, [1, 2, 3, 4, 5])
    tables.close(mine)
    mine.preemptions += 1
    assert tables.open(mine, 0)
    assert mine.computed == 4
    assert (mine.cached, tables.hit_tokens, tables.queried_tokens) == (0, 0, 5)


def test_neighbours_are_copied_to_where_the_sequence_can_grow() -> None:
    tables = make(16, neighbours=True)
    first = computed(tables, [1, 2, 3, 4, 5])
    second = sequence([1, 2, 3, 4, 9], number=2)
    assert tables.open(second, 0)
    assert is_contiguous(second.blocks)
    assert not set(second.blocks) & set(first.blocks)
    assert tables.take_copies() == list(zip(first.blocks[:2], second.blocks[:2], strict=True))
    assert tables.take_copies() == []
    assert second.computed == 4


def test_neighbours_that_can_be_continued_in_place_are_not_copied() -> None:
    tables = make(16, neighbours=True)
    first = computed(tables, [1, 2, 3, 4, 5])
    lay = list(first.blocks)
    tables.close(first)
    second = sequence([1, 2, 3, 4, 9, 9], number=2)
    assert tables.open(second, 0)
    assert tables.take_copies() == []
    assert second.blocks[:2] == lay[:2] and is_contiguous(second.blocks)


def test_neighbours_are_shared_as_they_lie_where_no_run_is_left() -> None:
    tables = make(5, neighbours=True)
    first = computed(tables, [1, 2, 3, 4, 5])
    second = sequence([1, 2, 3, 4, 9], number=2)
    assert tables.open(second, 0)
    assert tables.take_copies() == []
    assert second.blocks[:2] == first.blocks[:2]


def test_a_copy_is_published_once_its_original_is_gone() -> None:
    tables = make(9, neighbours=True)
    first = computed(tables, [1, 2, 3, 4, 5])
    second = sequence([1, 2, 3, 4, 9], number=2)
    assert tables.open(second, 0)
    assert tables.take_copies()
    tables.close(first)
    others = [sequence([7, 7, 7, n], number=n) for n in (3, 4)]
    assert all(tables.open(other, 0) for other in others)
    for other in [*others, second]:
        tables.close(other)
    again = sequence([1, 2, 3, 4, 8], number=5)
    assert tables.open(again, 0)
    assert again.cached == 4


class Tables(RuleBasedStateMachine):
    """Slots hold (salt, all ids up to theirs): what a key depends on."""

    neighbours = False

    def __init__(self) -> None:
        super().__init__()
        self.tables = make(12, neighbours=self.neighbours)
        self.slots: dict[tuple[int, int], object] = {}
        self.live: list[Sequence] = []
        self.count = 0

    def write(self, who: Sequence, ids: list[int], start: int) -> None:
        for position in range(start, len(ids)):
            block = who.blocks[position // SIZE]
            holders = [s for s in self.live if block in s.blocks]
            assert holders == [who], "a shared block is written"
            self.slots[block, position % SIZE] = (who.request.cache_salt, ids[: position + 1])

    def copy(self) -> None:
        for source, target in self.tables.take_copies():
            for offset in range(SIZE):
                self.slots[target, offset] = self.slots[source, offset]

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from(["", "x"]),
        spare=st.integers(0, 3),
    )
    def open(self, ids: list[int], salt: str, spare: int) -> None:
        self.count += 1
        made = sequence(ids, salt, self.count)
        free = self.tables.num_free
        if self.tables.open(made, spare):
            self.live.append(made)
            assert self.tables.num_free >= spare
        else:
            assert self.tables.num_free == free and made.blocks == []
        self.copy()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 5))
    def prefill(self, data: st.DataObject, count: int) -> None:
        who = data.draw(st.sampled_from(self.live))
        if who.decoding:
            return
        self.tables.adopt(who)
        self.copy()
        end = min(who.computed + count, len(who.ids) - 1)
        self.write(who, who.ids[:end], who.computed)
        who.computed = end
        self.tables.publish(who)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        accepted=st.lists(st.integers(0, 1), max_size=3),
        rejected=st.lists(st.integers(0, 1), max_size=3),
    )
    def verify(self, data: st.DataObject, accepted: list[int], rejected: list[int]) -> None:
        who = data.draw(st.sampled_from(self.live))
        drafted = [*who.ids, *accepted, *rejected]
        if not who.decoding or not self.tables.reserve(who, len(drafted)):
            return
        self.write(who, drafted, who.computed)
        who.ids.extend([*accepted, 1 - rejected[0] if rejected else 0])
        who.computed = len(who.ids) - 1
        self.tables.publish(who)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), again=st.booleans())
    def close(self, data: st.DataObject, again: bool) -> None:
        who = data.draw(st.sampled_from(self.live))
        self.live.remove(who)
        self.tables.close(who)
        assert (who.blocks, who.computed) == ([], 0)
        if again:
            who.preemptions += 1
            if self.tables.open(who, 0):
                self.live.append(who)
            self.copy()

    @invariant()
    def all_blocks_are_owned_as_often_as_named_and_none_is_lost(self) -> None:
        named = Counter(block for who in self.live for block in who.blocks)
        pool = self.tables._pool
        assert [pool.owners(block) for block in range(12)] == [named[b] for b in range(12)]
        assert self.tables.num_free == 12 - len(named)

    @invariant()
    def what_counts_as_computed_was_computed_from_these_ids_and_this_salt(self) -> None:
        for who in self.live:
            for position in range(who.computed):
                block = who.blocks[position // SIZE]
                held = self.slots[block, position % SIZE]
                assert held == (who.request.cache_salt, who.ids[: position + 1])

    @invariant()
    def the_last_id_is_never_skipped(self) -> None:
        assert all(who.computed < len(who.ids) for who in self.live)


class NeighbourTables(Tables):
    neighbours = True


Tables.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
NeighbourTables.TestCase.settings = Tables.TestCase.settings
TestTables = Tables.TestCase
TestNeighbourTables = NeighbourTables.TestCase
