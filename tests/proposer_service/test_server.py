"""The server over gRPC: handshake, steps, faults, ends of streams and of the process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from speculation.v1 import proposer_pb2

from proposer_service.handshake import describe
from proposer_service.proposers.base import Draft, Outcome
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.server import (
    MAX_MESSAGE_BYTES,
    SERVICE_NAME,
    RunningServer,
    make_proposer,
    serve_proposer,
    start,
)
from proposer_service.servicer import SLICE_NS, ProposerServicer
from proposer_service.session import Session
from proposer_service.settings import ProposerSettings
from tests.proposer_service.verifier import (
    WAIT_S,
    Stream,
    commit,
    connected,
    hello,
    opening,
    propose,
    step,
)

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def settings_at(folder: Path, **changes: Any) -> ProposerSettings:
    fields: dict[str, Any] = {
        "listen": f"unix:{folder / 'p.sock'}",
        "method": "ngram",
        "prompt_lookup_min": 2,
        "max_draft_tokens": 8,
        "max_sequences": 8,
        "lookahead": False,
    }
    return ProposerSettings(**(fields | changes))


@pytest.fixture
async def server(socket_dir: Path) -> AsyncIterator[RunningServer]:
    running = await start(settings_at(socket_dir))
    yield running
    await running.stop()


async def test_capabilities_say_what_it_is(server: RunningServer) -> None:
    async with connected(server.address) as stub:
        response = await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
    capabilities = response.capabilities
    assert (capabilities.name, capabilities.method) == ("ngram", "ngram")
    assert (capabilities.max_draft_tokens, capabilities.max_sequences) == (8, 8)
    assert capabilities.vocabulary_size == 0
    assert not capabilities.lookahead
    assert capabilities.instance_id


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


async def test_lookahead_follows_the_answer(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, lookahead=True))
    try:
        async with propose(running.address) as stream:
            await stream.greet()
            await stream.say(step(1, opening(1, TEXT, k=3)))
            assert (await stream.hear()).WhichOneof("message") == "drafts"
            (outcome,) = (await stream.hear()).lookahead.blocks
            assert list(outcome.outcome_token_ids) == [3, 4, 5, 6]
            assert list(outcome.block.token_ids) == [7, 8, 9]
    finally:
        await running.stop()


class SlowAhead(NgramProposer):
    """Its look-ahead takes longer than the server works without looking for messages."""

    prepared = 0

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        self.prepared += 1
        end = time.perf_counter_ns() + 2 * SLICE_NS
        while time.perf_counter_ns() < end:
            pass
        return super().lookahead(sequence_id, draft, max_draft_tokens)


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
    session.answer(step(1, *(opening(number, TEXT, k=3) for number in range(10))))
    servicer = ProposerServicer(proposer, proposer_pb2.Capabilities())
    stream: Any = FakeStream()
    context: Any = FakeContext()
    await servicer.look_ahead(stream, session, context)
    if arrived:
        assert proposer.prepared == 1
        assert not sent
    else:
        assert proposer.prepared == 10
        assert [len(message.lookahead.blocks) for message in sent] == [10]


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


async def test_health_and_reflection(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE_NAME):
            response = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        answer = await call.read()
        assert SERVICE_NAME in [entry.name for entry in answer.list_services_response.service]


async def test_stopping_ends_idle_streams_with_a_reason(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, drain_seconds=60))
    async with propose(running.address) as stream:
        await stream.greet()
        await stream.ask(step(1, opening(1, TEXT, k=3)))
        async with asyncio.timeout(WAIT_S):
            await running.stop()
            await running.stop()
        code, detail = await stream.status()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in detail
    assert not (socket_dir / "p.sock").exists()


@pytest.mark.parametrize("method", ["ngram", "suffix"])
async def test_both_methods_serve(socket_dir: Path, method: str) -> None:
    running = await start(settings_at(socket_dir, method=method, name="mine"))
    try:
        async with propose(running.address) as stream:
            assert (await stream.greet()).name == "mine"
            (block,) = (await stream.ask(step(1, opening(1, TEXT, k=2)))).blocks
            assert list(block.token_ids) == [3, 4]
    finally:
        await running.stop()


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


async def read_line(process: asyncio.subprocess.Process, words: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(WAIT_S):
        while words not in (line := (await process.stderr.readline()).decode()):
            assert line, "the process ended"


async def start_process(address: str) -> asyncio.subprocess.Process:
    code = (
        "from proposer_service.server import run\n"
        "from proposer_service.settings import ProposerSettings\n"
        f"run(ProposerSettings(listen={address!r}, method='suffix', drain_seconds=60))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=subprocess.PIPE
    )
    await read_line(process, "proposer ready")
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_process(socket_dir: Path, number: signal.Signals) -> None:
    address = f"unix:{socket_dir}/p.sock"
    process = await start_process(address)
    async with propose(address) as stream:
        await stream.greet()
        process.send_signal(number)
        code, _ = await stream.status()
        assert code is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    assert not (socket_dir / "p.sock").exists()


async def test_a_killed_process_leaves_a_socket_that_the_next_one_replaces(
    socket_dir: Path,
) -> None:
    address = f"unix:{socket_dir}/p.sock"
    process = await start_process(address)
    process.kill()
    await asyncio.wait_for(process.wait(), WAIT_S)
    assert (socket_dir / "p.sock").exists()
    running = await start(settings_at(socket_dir, listen=address))
    try:
        async with propose(running.address) as stream:
            await stream.greet()
    finally:
        await running.stop()


def test_the_service_imports_no_torch() -> None:
    code = (
        "import sys, proposer_service.server, proposer_service.adversaries\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_choose_the_method() -> None:
    settings = ProposerSettings(listen="unix:/x", method="ngram")
    assert type(make_proposer(settings)) is NgramProposer
