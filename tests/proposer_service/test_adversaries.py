"""Each adversary misbehaves in the way its name says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from speculation.v1 import proposer_pb2

from proposer_service.adversaries import Kind, random_ids, start_adversary
from tests.proposer_service.verifier import (
    VOCABULARY,
    Stream,
    commit,
    hello,
    opening,
    propose,
    step,
)

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
METHOD = "/speculation.v1.ProposerService/Propose"


@asynccontextmanager
async def adversary(kind: Kind, folder: Path, **options: Any) -> AsyncIterator[Stream]:
    """A greeted stream to an adversary."""
    running = await start_adversary(
        kind, f"unix:{folder}/a.sock", vocabulary_size=VOCABULARY, **options
    )
    try:
        async with propose(running.address) as stream:
            await stream.greet()
            yield stream
    finally:
        await running.stop()


FIRST = step(1, opening(1, TEXT, k=3))


async def blocks_of(stream: Stream) -> list[proposer_pb2.DraftBlock]:
    return list((await stream.ask(FIRST)).blocks)


async def test_random_ids_are_of_the_vocabulary_and_repeatable(socket_dir: Path) -> None:
    async with adversary(Kind.RANDOM, socket_dir) as stream:
        (block,) = await blocks_of(stream)
    assert len(block.token_ids) == 3
    assert all(0 <= token < VOCABULARY for token in block.token_ids)
    proposer = random_ids(VOCABULARY)
    proposer.open(1, TEXT, 0, "")
    assert proposer.propose(1, 3).ids == tuple(block.token_ids)


async def test_wrong_ids_never_are_the_truth(socket_dir: Path) -> None:
    options = {"truth": lambda text, k: [7] * k}
    async with adversary(Kind.ALWAYS_WRONG, socket_dir, **options) as stream:
        (block,) = await blocks_of(stream)
    assert list(block.token_ids) == [8, 8, 8]


async def test_an_id_is_out_of_range(socket_dir: Path) -> None:
    async with adversary(Kind.OUT_OF_RANGE, socket_dir) as stream:
        (odd,) = await blocks_of(stream)
        (even,) = (await stream.ask(step(2, commit(1, len(TEXT), [3], k=3)))).blocks
    assert min(odd.token_ids) == -1
    assert max(even.token_ids) == VOCABULARY


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(Kind.STALE_EPOCH, "epoch", 0), (Kind.STALE_BASE, "base_length", len(TEXT) - 1)],
)
async def test_a_block_names_another_state(
    socket_dir: Path, kind: Kind, field: str, value: int
) -> None:
    async with adversary(kind, socket_dir) as stream:
        (block,) = await blocks_of(stream)
    assert getattr(block, field) == value


async def test_a_block_is_longer_than_was_wanted(socket_dir: Path) -> None:
    async with adversary(Kind.WRONG_LENGTH, socket_dir) as stream:
        (block,) = await blocks_of(stream)
    assert len(block.token_ids) > 300


async def test_each_message_comes_twice(socket_dir: Path) -> None:
    async with adversary(Kind.DUPLICATED, socket_dir) as stream:
        await stream.say(FIRST)
        assert await stream.hear() == await stream.hear()


async def test_a_flood_is_a_flood(socket_dir: Path) -> None:
    async with adversary(Kind.FLOOD, socket_dir) as stream:
        await stream.say(FIRST)
        messages = [await stream.hear() for _ in range(200)]
    assert all(message.drafts.step_id == 1 for message in messages)


async def test_messages_come_in_another_order(socket_dir: Path) -> None:
    async with adversary(Kind.REORDERED, socket_dir) as stream:
        await stream.say(FIRST)
        kinds = [(await stream.hear()).WhichOneof("message") for _ in range(2)]
    assert kinds == ["lookahead", "drafts"]


async def test_a_false_claim_names_no_outcome_though_there_are_drafts(socket_dir: Path) -> None:
    async with adversary(Kind.FALSE_CLAIM, socket_dir) as stream:
        (block,) = await blocks_of(stream)
        lookahead = (await stream.hear()).lookahead
    assert block.token_ids
    assert [list(claim.token_ids) for claim in lookahead.complete] == [[]]
    assert not lookahead.blocks


async def test_the_late_one_does_answer(socket_dir: Path) -> None:
    async with adversary(Kind.DELAYED, socket_dir, delay_seconds=0.01) as stream:
        (block,) = await blocks_of(stream)
    assert list(block.token_ids) == [3, 4, 5]


async def test_the_silent_one_says_nothing_after_its_welcome(socket_dir: Path) -> None:
    async with adversary(Kind.SILENT, socket_dir) as stream:
        await stream.say(FIRST)
        await stream.call.done_writing()
        assert await stream.status() == (grpc.StatusCode.OK, "")


async def test_garbage_is_bytes_that_are_no_message(socket_dir: Path) -> None:
    running = await start_adversary(Kind.GARBAGE, f"unix:{socket_dir}/a.sock")
    try:
        async with grpc.aio.insecure_channel(running.address) as channel:
            call = channel.stream_stream(METHOD)()
            await call.write(proposer_pb2.ProposeRequest(hello=hello()).SerializeToString())
            await call.read()
            await call.write(proposer_pb2.ProposeRequest(step=FIRST).SerializeToString())
            assert await call.read() == b"\xff\xfe no message"
            call.cancel()
    finally:
        await running.stop()


async def test_another_vocabulary_is_announced_to_any_verifier(socket_dir: Path) -> None:
    running = await start_adversary(
        Kind.OTHER_VOCABULARY, f"unix:{socket_dir}/a.sock", vocabulary_size=VOCABULARY
    )
    try:
        async with propose(running.address) as stream:
            capabilities = await stream.greet()
    finally:
        await running.stop()
    assert capabilities.vocabulary_size == VOCABULARY + 1
    assert capabilities.vocabulary_fingerprint not in ("", "fingerprint")


async def test_an_unknown_kind_is_refused(socket_dir: Path) -> None:
    with pytest.raises(ValueError, match="polite"):
        await start_adversary("polite", f"unix:{socket_dir}/a.sock")
