"""The rules of epochs, base lengths and chunks, one by one."""

from __future__ import annotations

import pytest
from speculation.v1 import proposer_pb2

from proposer_service.adversaries import BadProposer
from proposer_service.sequences import (
    SequenceError,
    SequenceLimits,
    SequenceTable,
    sequence_numbers,
)
from tests.proposer_service.verifier import commit, opening


class Recorder(BadProposer):
    """Remembers what it was told; `texts` by number, `salts` of each open."""

    def __init__(self) -> None:
        super().__init__(lambda text, k: text[-k:])
        self.salts: list[str] = []
        self.closes: list[tuple[int, bool]] = []

    @property
    def texts(self) -> list[list[int]]:
        return list(self._texts.values())

    def open(self, sequence_id: int, ids: object, prompt_length: int, salt: str) -> None:
        super().open(sequence_id, ids, prompt_length, salt)  # type: ignore[arg-type]
        self.salts.append(salt)

    def close(self, sequence_id: int, finished: bool) -> None:
        super().close(sequence_id, finished)
        self.closes.append((sequence_id, finished))


@pytest.fixture
def proposer() -> Recorder:
    return Recorder()


@pytest.fixture
def table(proposer: Recorder) -> SequenceTable:
    limits = SequenceLimits(max_sequences=2, context_limit=20, vocabulary_size=100, tenant="v")
    return SequenceTable(proposer, sequence_numbers(), limits)


def refused(table: SequenceTable, update: proposer_pb2.SequenceUpdate) -> str:
    with pytest.raises(SequenceError) as caught:
        table.apply(update)
    return caught.value.kind


def test_open_and_commit_make_the_text(table: SequenceTable, proposer: Recorder) -> None:
    assert table.apply(opening(5, [1, 2])).length == 2
    assert table.apply(commit(5, 2, [3])).length == 3
    assert table.apply(commit(5, 3, [])).length == 3
    assert proposer.texts == [[1, 2, 3]]


def test_an_open_may_come_in_chunks(table: SequenceTable, proposer: Recorder) -> None:
    assert table.apply(opening(5, [1, 2], more=True, prompt_length=3)).opening
    sequence = table.apply(opening(5, [3, 4], offset=2, prompt_length=3))
    assert not sequence.opening
    assert sequence.length == 4
    assert proposer.texts == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (commit(5, 1, [3], epoch=2), "wrong_base"),
        (commit(5, 3, [3], epoch=2), "wrong_base"),
        (commit(5, 2, [100], epoch=2), "id_out_of_range"),
        (commit(5, 2, [3, -1], epoch=2), "id_out_of_range"),
        (commit(5, 2, [3] * 19, epoch=2), "over_context_limit"),
        (commit(5, 2, [3], epoch=3), "unopened_epoch"),
        (opening(5, [1, 2], epoch=2), "repeated_open"),
        (opening(5, [3], epoch=2, offset=2), "wrong_offset"),
        (opening(5, [], epoch=3), "empty_open"),
        (proposer_pb2.SequenceUpdate(sequence_id=5, epoch=3), "unopened_epoch"),
    ],
)
def test_a_contradiction_forgets_its_sequence_and_no_other(
    table: SequenceTable,
    proposer: Recorder,
    update: proposer_pb2.SequenceUpdate,
    kind: str,
) -> None:
    table.apply(opening(4, [9]))
    table.apply(opening(5, [1, 2], epoch=2))
    assert refused(table, update) == kind
    assert table.get(5) is None
    assert proposer.texts == [[9]]
    assert refused(table, commit(5, 2, [3], epoch=2)) == "unknown_sequence"
    assert table.apply(commit(4, 1, [8])).length == 2
    assert table.apply(opening(5, [1, 2], epoch=4)).length == 2


@pytest.mark.parametrize(
    "update", [commit(5, 2, [3], epoch=1), opening(5, [7], epoch=1), commit(5, 9, [200], epoch=0)]
)
def test_what_is_of_an_older_epoch_changes_nothing(
    table: SequenceTable, proposer: Recorder, update: proposer_pb2.SequenceUpdate
) -> None:
    table.apply(opening(5, [1, 2], epoch=2))
    assert refused(table, update) == "stale_epoch"
    assert table.apply(commit(5, 2, [3], epoch=2)).length == 3


def test_chunks_must_follow_each_other(table: SequenceTable) -> None:
    table.apply(opening(5, [1, 2], more=True, prompt_length=4))
    assert refused(table, opening(5, [4], offset=3, prompt_length=4)) == "wrong_offset"
    table.apply(opening(5, [1, 2], epoch=2, more=True, prompt_length=4))
    assert refused(table, commit(5, 2, [3], epoch=2)) == "early_commit"
    table.apply(opening(5, [1, 2], epoch=3, more=True, prompt_length=4))
    changed = opening(5, [3], epoch=3, offset=2, prompt_length=5)
    assert refused(table, changed) == "wrong_prompt_length"
    assert refused(table, opening(6, [3], offset=2)) == "unknown_sequence"


def test_a_new_epoch_replaces_the_text(table: SequenceTable, proposer: Recorder) -> None:
    table.apply(opening(5, [1, 2]))
    table.apply(opening(5, [7, 8, 9], epoch=2))
    assert proposer.texts == [[7, 8, 9]]
    assert proposer.closes == [(1, False)]


def test_an_update_without_a_change_must_name_the_current_epoch(table: SequenceTable) -> None:
    table.apply(opening(5, [1, 2]))
    same = proposer_pb2.SequenceUpdate(sequence_id=5, epoch=1, max_draft_tokens=4)
    assert table.apply(same).length == 2


def test_there_is_room_for_so_many_sequences_only(table: SequenceTable) -> None:
    table.apply(opening(1, [1]))
    table.apply(opening(2, [1]))
    assert refused(table, opening(3, [1])) == "too_many_sequences"
    assert len(table) == 2
    # Those that are closed in the same step make room at once.
    table.apply(opening(3, [1]), closing=1)
    table.close(1, True)
    assert len(table) == 2


def test_closing_tells_whether_the_output_may_be_kept(
    table: SequenceTable, proposer: Recorder
) -> None:
    table.apply(opening(1, [1]))
    table.apply(opening(2, [1], more=True))
    table.close(1, True)
    table.close(2, True)
    table.close(3, True)
    # A text that never came completely is not kept.
    assert proposer.closes == [(1, True), (2, False)]


def test_the_end_of_the_stream_drops_all(table: SequenceTable, proposer: Recorder) -> None:
    table.apply(opening(1, [1]))
    table.apply(opening(2, [1]))
    table.forget_all()
    assert len(table) == 0
    assert proposer.closes == [(1, False), (2, False)]


def test_two_streams_never_share_a_sequence(proposer: Recorder) -> None:
    numbers = sequence_numbers()
    tables = [SequenceTable(proposer, numbers, SequenceLimits(2)) for _ in range(2)]
    for number, table in enumerate(tables):
        table.apply(opening(1, [number]))
    assert proposer.texts == [[0], [1]]


def test_tenants_and_salts_are_kept_apart(proposer: Recorder) -> None:
    numbers = sequence_numbers()
    for tenant in ("a", "b"):
        table = SequenceTable(proposer, numbers, SequenceLimits(4, tenant=tenant))
        for sequence_id, salt in enumerate(("", "x", "x")):
            table.apply(opening(sequence_id, [1], salt=salt))
    assert len(proposer.salts) == 6
    assert len(set(proposer.salts)) == 4
