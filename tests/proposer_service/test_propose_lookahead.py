"""Propose over gRPC: look-ahead never holds back an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from speculation.v1 import proposer_pb2

from proposer_service.proposers.base import Ahead, Draft
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.server import (
    start,
)
from proposer_service.servicer import SLICE_NS, ProposerServicer
from proposer_service.session import Session
from tests.proposer_service.serving import TEXT, settings_at
from tests.proposer_service.verifier import (
    commit,
    opening,
    propose,
    step,
)


async def test_lookahead_follows_the_answer(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, lookahead=True))
    try:
        async with propose(running.address) as stream:
            await stream.greet()
            await stream.say(step(1, opening(1, TEXT, k=3)))
            assert (await stream.hear()).WhichOneof("message") == "drafts"
            lookahead = (await stream.hear()).lookahead
            assert [complete.sequence_id for complete in lookahead.complete] == [1]
            outcome = (await stream.hear()).lookahead.blocks[0]
            assert list(outcome.outcome_token_ids) == [3, 4, 5, 6]
            assert list(outcome.block.token_ids) == [7, 8, 9]
    finally:
        await running.stop()


async def test_who_takes_no_lookahead_gets_none(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, lookahead=True))
    try:
        async with propose(running.address) as stream:
            await stream.greet(no_lookahead=True)
            await stream.say(step(1, opening(1, TEXT, k=3)))
            assert (await stream.hear()).WhichOneof("message") == "drafts"
            await stream.say(step(2, commit(1, len(TEXT), [3], k=3)))
            assert (await stream.hear()).WhichOneof("message") == "drafts"
    finally:
        await running.stop()


class SlowAhead(NgramProposer):
    """Its look-ahead takes longer than the server works without looking for messages."""

    prepared = 0

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterator[Ahead]:
        self.prepared += 1
        end = time.perf_counter_ns() + 2 * SLICE_NS
        while time.perf_counter_ns() < end:
            pass
        yield from super().lookahead(sequence_id, draft, max_draft_tokens)


@pytest.mark.parametrize("arrived", [False, True])
async def test_lookahead_stops_where_a_step_has_arrived(arrived: bool) -> None:
    sent: list[proposer_pb2.ProposeResponse] = []

    class FakeContext:
        async def write(self, message: proposer_pb2.ProposeResponse) -> None:
            sent.append(message)

    class FakeStream:
        def __init__(self) -> None:
            self.arrived = arrived

    proposer = SlowAhead(2, 5)
    session = Session(proposer, sequence_numbers(), SequenceLimits(20), 8, "v")
    session.answer(step(1, *(opening(number, TEXT, k=3) for number in range(20))))
    servicer = ProposerServicer(proposer, proposer_pb2.Capabilities())
    stream: Any = FakeStream()
    context: Any = FakeContext()
    await servicer.look_ahead(stream, session, context)
    if arrived:
        assert proposer.prepared == 1
        assert not sent
    else:
        assert proposer.prepared == 20
        blocks = [len(message.lookahead.blocks) for message in sent]
        complete = [c.sequence_id for message in sent for c in message.lookahead.complete]
        # What was prepared is sent while the rest is made.
        assert blocks == [0, 64, 16]
        assert complete == list(range(20))


async def test_every_step_is_answered_whatever_lookahead_does(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, lookahead=True, max_sequences=64))
    try:
        async with propose(running.address) as stream:
            await stream.greet(max_sequences=64)
            many = [opening(number, TEXT, k=3) for number in range(64)]
            for message in (step(1, *many), step(2), step(3, commit(5, len(TEXT), [3], k=1))):
                await stream.say(message)
            answers: list[proposer_pb2.Drafts] = []
            while len(answers) < 3:
                heard = await stream.hear()
                if heard.WhichOneof("message") == "drafts":
                    answers.append(heard.drafts)
            assert [answer.step_id for answer in answers] == [1, 2, 3]
            assert [list(block.token_ids) for block in answers[2].blocks] == [[4]]
    finally:
        await running.stop()
