from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.inprocess_source import InprocessSource
from proposer_service.proposers.base import Draft, Outcome, Proposer
from verifier_service.messages import Sampling, SequenceView


class Recorder(Proposer):
    """Drafts its own number; keeps what it was told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.texts: dict[int, list[int]] = {}
        self.closed: list[tuple[int, bool]] = []

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        assert sequence_id not in self.texts
        self.texts[sequence_id] = list(ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self.texts[sequence_id].extend(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        if self.number == 0:
            return Draft(())
        return Draft((self.number,) * max_draft_tokens, match_length=3)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        return ()

    def close(self, sequence_id: int, finished: bool) -> None:
        del self.texts[sequence_id]
        self.closed.append((sequence_id, finished))


def view(ids: list[int], wanted: int = 2, only: str = "", sequence_id: int = 7) -> SequenceView:
    return SequenceView(sequence_id, ids, 2, wanted, Sampling(), only=only)


def test_all_used_proposers_draft_for_the_current_length() -> None:
    source = InprocessSource({"one": Recorder(1), "two": Recorder(2)})
    source.send([view([5, 6, 7])], [])
    blocks = source.collect()[7]
    assert [(b.proposer, b.base_length, b.token_ids, b.match_length) for b in blocks] == [
        ("one", 3, (1, 1), 3),
        ("two", 3, (2, 2), 3),
    ]
    assert source.collect() == {}


def test_a_proposer_hears_each_id_once() -> None:
    one = Recorder(1)
    source = InprocessSource({"one": one})
    ids = [5, 6]
    for token in (7, 8, 9):
        source.send([view(ids)], [])
        ids.append(token)
    source.send([view(ids, wanted=0)], [])
    assert one.texts == {7: [5, 6, 7, 8, 9]}


def test_no_drafts_where_none_are_wanted_or_none_are_there() -> None:
    source = InprocessSource({"one": Recorder(1), "silent": Recorder(0)})
    source.send([view([5], wanted=0)], [])
    assert source.collect() == {}
    source.send([view([5], only="silent")], [])
    assert source.collect() == {}


def test_a_sequence_may_name_its_proposer() -> None:
    source = InprocessSource({"one": Recorder(1), "two": Recorder(2)})
    source.send([view([5], only="two")], [])
    assert [block.proposer for block in source.collect()[7]] == ["two"]


def test_only_used_proposers_are_asked_and_a_later_one_hears_the_whole_text() -> None:
    one, two = Recorder(1), Recorder(2)
    source = InprocessSource({"one": one, "two": two})
    source.use(["one"])
    source.send([view([5, 6])], [])
    assert [block.proposer for block in source.collect()[7]] == ["one"]
    assert two.texts == {}
    source.use(["two"])
    source.send([view([5, 6, 7])], [])
    assert [block.proposer for block in source.collect()[7]] == ["two"]
    assert two.texts == {7: [5, 6, 7]}


def test_closing_reaches_those_that_follow_the_sequence() -> None:
    one, two = Recorder(1), Recorder(2)
    source = InprocessSource({"one": one, "two": two})
    source.use(["one"])
    source.send([view([5])], [])
    source.send([], [(7, True), (8, False)])
    assert one.closed == [(7, True)]
    assert two.closed == []
    assert source.collect() == {}


def test_an_unknown_proposer_is_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        InprocessSource({"one": Recorder(1)}).use(["three"])
