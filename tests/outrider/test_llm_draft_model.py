"""A draft model of this process: told of all, asked when somebody waits, and no request's end."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import cast

import pytest

from outrider.llm_draft_model import LocalDraftModel
from outrider.llm_proposers import LocalProposer, LocalProposers
from outrider.sparse_q import TOTAL_MASS
from proposer_service.draft_model.proposer import DraftModelProposer
from proposer_service.proposers.base import NO_DRAFT, Draft, SparseQ
from proposer_service.proposers.batch import TargetSampling, Wanted
from proposer_service.proposers.long_ngram import ngram_proposer
from verifier_service.messages import (
    QForm,
    RejectionRule,
    Sampling,
    SequenceView,
    SparseRow,
)


class Recorder:
    """Drafts 7, 8, 9, … for all but sequence 9; notes what it was told, fails where told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.fails = ""
        self.unread = 3

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if call[0] == self.fails:
            raise RuntimeError("told to fail")

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        self._note("open", sequence_id, list(ids))

    def heed(self, sequence_id: int, target: TargetSampling) -> None:
        self._note("heed", sequence_id, target)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._note("extend", sequence_id, list(ids))

    def close(self, sequence_id: int, finished: bool) -> None:
        self._note("close", sequence_id, finished)

    def propose_many(self, wanted: Sequence[Wanted]) -> Generator[None, None, list[Draft]]:
        self._note("propose_many", [tuple(each) for each in wanted])
        yield
        return [
            NO_DRAFT if number == 9 else Draft(tuple(range(7, 7 + most))) for number, most in wanted
        ]

    def catch_up(self) -> Iterator[None]:
        while self.unread:
            self._note("catch_up")
            self.unread -= 1
            yield

    def shut_down(self) -> None:
        self._note("shut_down")

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def make(
    recorder: Recorder, rule: RejectionRule = RejectionRule.COUPLED, limit: int = 100
) -> LocalDraftModel:
    proposer = cast(DraftModelProposer, recorder)
    return LocalDraftModel("draft_model", proposer, 3, rule=rule, context_limit=limit)


def view(ids: list[int], number: int = 1, wanted: int = 4, only: str = "") -> SequenceView:
    sampling = Sampling(temperature=0.5, top_k=4, top_p=0.75, seed=-3)
    return SequenceView(number, ids, 3, wanted, sampling, cache_salt="salt", only=only)


@pytest.mark.parametrize("rule", RejectionRule)
def test_all_sequences_are_drafted_for_at_once(rule: RejectionRule) -> None:
    recorder = Recorder()
    source, ids = LocalProposers([make(recorder, rule)]), [1, 2, 3]
    source.send([view(ids), view([4], 2, wanted=2), view([5], 9), view([6], 3, wanted=0)], [])
    blocks = source.collect()
    assert {number: found[0].token_ids for number, found in blocks.items()} == {
        1: (7, 8, 9),
        2: (7, 8),
    }
    assert blocks[1][0].base_length == 3 and blocks[1][0].draft_ns > 0
    assert recorder.of("propose_many") == [([(1, 3), (2, 2), (9, 3)],)]
    sampling = TargetSampling(0.5, 4, 0.75, -3, coupled=rule is RejectionRule.COUPLED, takes_q=True)
    assert recorder.of("heed")[0] == (1, sampling)
    ids += [7, 8]
    source.send([view(ids)], [(2, True), (77, True)])
    assert recorder.of("extend") == [(1, [7, 8])]
    assert recorder.of("close") == [(2, True)]
    (state,) = source.states()
    assert (state.name, state.method, state.draft_blocks) == ("draft_model", "draft_model", 2)


def test_nothing_is_drafted_while_nobody_waits() -> None:
    recorder = Recorder()
    source = LocalProposers([make(recorder)])
    source.send([view([1, 2])], [])
    assert source.collect(wait=False) == {}
    assert source.collect() == {}
    assert recorder.of("open") == [(1, [1, 2])] and not recorder.of("propose_many")


def test_blocks_stand_in_the_order_of_the_proposers() -> None:
    ngram = LocalProposer("ngram", "ngram", ngram_proposer(1, 2), 2)
    source = LocalProposers([make(Recorder()), ngram])
    source.send([view([1, 2, 1, 2])], [])
    assert [block.proposer for block in source.collect()[1]] == ["draft_model", "ngram"]
    source.send([view([1, 2, 1, 2, 1], only="ngram")], [])
    assert [block.proposer for block in source.collect()[1]] == ["ngram"]


def test_no_draft_reaches_beyond_the_models_context() -> None:
    recorder = Recorder()
    source = LocalProposers([make(recorder, limit=4)])
    source.send([view([1, 2, 3]), view([1, 2, 3, 4], 2), view([1], 3)], [])
    source.collect()
    assert recorder.of("propose_many") == [([(1, 1), (3, 3)],)]


def test_a_long_prompt_is_read_piece_by_piece() -> None:
    recorder = Recorder()
    source = LocalProposers([make(recorder)])
    for pieces in (1, 2, 3, 3):
        source.send([], [])
        assert len(recorder.of("catch_up")) == pieces


@pytest.mark.parametrize("call", ["open", "heed", "extend", "propose_many", "close", "catch_up"])
def test_a_model_that_fails_costs_its_drafts_alone(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    ngram = LocalProposer("ngram", "ngram", ngram_proposer(1, 2), 2)
    source, ids = LocalProposers([make(recorder), ngram]), [1, 2, 1, 2]
    source.send([view([3], 2)], [])
    recorder.fails = call
    for step in range(3):
        source.send([view(ids)], [(2, True)])
        assert "ngram" in [block.proposer for block in source.collect()[1]]
        ids += [1 + step % 2]
    assert source.states()[0].faults > 0
    assert sum("told to fail" in r.exc_text for r in caplog.records if r.exc_text) == 1
    recorder.fails = ""
    source.send([view(ids)], [])
    assert [block.proposer for block in source.collect()[1]] == ["draft_model", "ngram"]


def test_the_end_releases_the_model() -> None:
    recorder = Recorder()
    LocalProposers([make(recorder)]).close()
    assert recorder.calls == [("shut_down",)]


def test_a_draft_that_was_drawn_comes_with_its_q() -> None:
    ids, masses = (7, 8), (TOTAL_MASS // 2, TOTAL_MASS // 2)
    drawn = SparseQ(ids, masses)

    class Drawing(Recorder):
        def propose_many(self, wanted: Sequence[Wanted]) -> Generator[None, None, list[Draft]]:
            yield
            return [Draft((7, 8), q=(drawn, drawn)) for _ in wanted]

    recorder = Drawing()
    source = LocalProposers([make(recorder, RejectionRule.STANDARD)])
    source.send([view([1, 2, 3])], [])
    ((block,),) = source.collect().values()
    assert (block.q_form, block.q) == (QForm.SPARSE, (SparseRow(ids, masses),) * 2)
    ((_, told),) = recorder.of("heed")
    assert isinstance(told, TargetSampling)
    assert told.takes_q
    assert not told.coupled
