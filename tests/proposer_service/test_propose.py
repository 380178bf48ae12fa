"""Propose over gRPC: handshake, steps, faults, ends of streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from speculation.v1 import proposer_pb2

from proposer_service.handshake import describe
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.server import (
    MAX_MESSAGE_BYTES,
    RunningServer,
    serve_proposer,
    start,
)
from tests.proposer_service.serving import TEXT, settings_at
from tests.proposer_service.verifier import (
    WAIT_S,
    Stream,
    commit,
    hello,
    opening,
    propose,
    step,
)


async def test_a_stream_from_hello_to_drafts(server: RunningServer) -> None:
    async with propose(server.address) as stream:
        assert (await stream.greet()).name == "ngram"
        drafts = await stream.ask(step(1, opening(1, TEXT, k=3), opening(2, [5], k=3)))
        assert drafts.step_id == 1
        assert [list(block.token_ids) for block in drafts.blocks] == [[3, 4, 5]]
        drafts = await stream.ask(step(2, commit(1, len(TEXT), [3], k=2), commit(2, 7, [3])))
        assert [list(block.token_ids) for block in drafts.blocks] == [[4, 5]]
        assert [fault.sequence_id for fault in drafts.faults] == [2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol_version": 3}, "protocol_version 3"),
        ({"max_draft_tokens": 9}, "max_draft_tokens 9"),
        ({"accepted_q_forms": []}, "accepted_q_forms none"),
        ({"first_position": 2}, "FIRST_POSITION_AFTER_BONUS"),
    ],
)
async def test_a_mismatch_ends_the_stream_in_words(
    server: RunningServer, changes: dict[str, Any], words: str
) -> None:
    async with propose(server.address) as stream:
        await stream.say(hello(**changes))
        code, detail = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert words in detail


async def test_another_vocabulary_is_refused_where_it_matters(socket_dir: Path) -> None:
    capabilities = describe(
        instance_id="1",
        name="own",
        method="draft_model",
        max_sequences=8,
        max_draft_tokens=8,
        context_limit=0,
        lookahead=False,
        vocabulary_fingerprint="mine",
    )
    running = await serve_proposer(NgramProposer(), capabilities, f"unix:{socket_dir}/v.sock")
    try:
        async with propose(running.address) as stream:
            await stream.say(hello())
            code, detail = await stream.status()
    finally:
        await running.stop()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "'mine'" in detail


async def test_a_stream_starts_with_one_hello(server: RunningServer) -> None:
    async with propose(server.address) as stream:
        await stream.say(step(1))
        code, detail = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "hello" in detail
    async with propose(server.address) as stream:
        await stream.greet()
        await stream.say(hello())
        code, _ = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_message_of_a_newer_protocol_harms_nothing(server: RunningServer) -> None:
    async with propose(server.address) as stream:
        await stream.greet()
        await stream.call.write(proposer_pb2.ProposeRequest())
        assert (await stream.ask(step(5))).step_id == 5


async def test_sequences_are_dropped_when_their_stream_ends(socket_dir: Path) -> None:
    proposer = NgramProposer(2, 5)
    capabilities = describe(
        instance_id="1",
        name="n",
        method="ngram",
        max_sequences=8,
        max_draft_tokens=8,
        context_limit=0,
        lookahead=False,
    )
    running = await serve_proposer(proposer, capabilities, f"unix:{socket_dir}/p.sock")
    try:
        for hard in (False, True):
            async with propose(running.address) as stream:
                await stream.greet()
                await stream.ask(step(1, opening(1, TEXT), opening(2, TEXT)))
                assert len(proposer._texts) == 2
                if hard:
                    stream.call.cancel()
                else:
                    await stream.call.done_writing()
                    assert await stream.status() == (grpc.StatusCode.OK, "")
            async with asyncio.timeout(WAIT_S):
                while proposer._texts:
                    await asyncio.sleep(0.005)
    finally:
        await running.stop()


async def test_a_newer_stream_of_a_verifier_takes_over(server: RunningServer) -> None:
    async with propose(server.address) as old, propose(server.address) as other:
        await old.greet()
        await other.greet(verifier_instance_id="verifier-2")
        await old.ask(step(1, opening(1, TEXT)))
        async with propose(server.address) as new:
            await new.greet()
            code, detail = await old.status()
            assert code is grpc.StatusCode.ABORTED
            assert "newer stream" in detail
            assert (await new.ask(step(2, commit(1, len(TEXT), [3])))).faults
        assert (await other.ask(step(9))).step_id == 9


async def test_a_message_over_the_limit_ends_the_stream_only(server: RunningServer) -> None:
    async with propose(server.address) as stream:
        await stream.greet()
        await stream.say(step(1, opening(1, [1], salt="x" * (MAX_MESSAGE_BYTES + 1))))
        code, _ = await stream.status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    async with propose(server.address) as stream:
        await stream.greet()


async def test_running_requests_draft_for_each_other_between_steps(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, method="suffix"))
    try:
        async with propose(running.address) as stream:
            await stream.greet()
            await stream.ask(step(1, opening(1, [5, *range(60, 100)], prompt_length=1)))
            (block,) = (await stream.ask(step(2, opening(2, [9, 60, 61], k=4)))).blocks
            assert list(block.token_ids) == [62, 63]
    finally:
        await running.stop()


async def test_verifiers_of_different_vocabularies_share_no_outputs(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, method="suffix"))

    async def draft(stream: Stream) -> list[int]:
        drafts = await stream.ask(step(3, opening(3, [9, 60, 61], k=4)))
        return [token for block in drafts.blocks for token in block.token_ids]

    try:
        async with propose(running.address) as stream:
            await stream.greet()
            await stream.ask(step(1, opening(1, [5, 60, 61, 62], prompt_length=1)))
            await stream.ask(step(2, closes=[(1, True)]))
            assert await draft(stream) == [62]
        async with propose(running.address) as stream:
            await stream.greet(verifier_instance_id="2")
            assert await draft(stream) == [62]
        async with propose(running.address) as stream:
            await stream.greet(verifier_instance_id="3", vocabulary_fingerprint="other")
            assert await draft(stream) == []
    finally:
        await running.stop()
