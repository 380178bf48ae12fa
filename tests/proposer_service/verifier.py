"""What tests need to play a verifier: messages in few words, and a stream over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from speculation.v1 import proposer_pb2, proposer_pb2_grpc, types_pb2

# Nothing is decided by it; it only ends a test that would hang.
WAIT_S = 20.0
VOCABULARY = 1000


def hello(**changes: Any) -> proposer_pb2.Hello:
    """A hello that any proposer takes, with `changes`."""
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "verifier_instance_id": "verifier-1",
        "vocabulary_fingerprint": "fingerprint",
        "vocabulary_size": VOCABULARY,
        "max_sequences": 8,
        "max_draft_tokens": 8,
        "context_limit": 512,
        "accepted_q_forms": [types_pb2.Q_FORM_COUPLED, types_pb2.Q_FORM_ONE_HOT],
        "first_position": types_pb2.FIRST_POSITION_AFTER_COMMITTED,
    }
    return proposer_pb2.Hello(**(fields | changes))


def opening(
    sequence_id: int,
    ids: Sequence[int],
    *,
    epoch: int = 1,
    k: int = 0,
    offset: int = 0,
    more: bool = False,
    prompt_length: int | None = None,
    salt: str = "",
) -> proposer_pb2.SequenceUpdate:
    return proposer_pb2.SequenceUpdate(
        sequence_id=sequence_id,
        epoch=epoch,
        max_draft_tokens=k,
        open=proposer_pb2.SequenceOpen(
            offset=offset,
            token_ids=ids,
            prompt_length=len(ids) if prompt_length is None else prompt_length,
            more=more,
            cache_salt=salt,
        ),
    )


def commit(
    sequence_id: int, base: int, ids: Sequence[int], *, epoch: int = 1, k: int = 0
) -> proposer_pb2.SequenceUpdate:
    return proposer_pb2.SequenceUpdate(
        sequence_id=sequence_id,
        epoch=epoch,
        max_draft_tokens=k,
        commit=proposer_pb2.SequenceCommit(base_length=base, token_ids=ids),
    )


def step(
    step_id: int,
    *updates: proposer_pb2.SequenceUpdate,
    closes: Sequence[tuple[int, bool]] = (),
) -> proposer_pb2.Step:
    return proposer_pb2.Step(
        step_id=step_id,
        updates=updates,
        closes=[
            proposer_pb2.SequenceClose(sequence_id=number, finished=finished)
            for number, finished in closes
        ],
    )


class Stream:
    """One Propose call as the verifier sees it; every wait is bounded."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def say(self, message: proposer_pb2.Hello | proposer_pb2.Step) -> None:
        field = "hello" if isinstance(message, proposer_pb2.Hello) else "step"
        await self.call.write(proposer_pb2.ProposeRequest(**{field: message}))

    async def hear(self) -> proposer_pb2.ProposeResponse:
        """The next message; raises AioRpcError where the stream ended with a status."""
        message = await asyncio.wait_for(self.call.read(), WAIT_S)
        assert message is not grpc.aio.EOF, "the stream ended"
        return message

    async def greet(self, **changes: Any) -> proposer_pb2.Capabilities:
        await self.say(hello(**changes))
        return (await self.hear()).welcome.capabilities

    async def ask(self, message: proposer_pb2.Step) -> proposer_pb2.Drafts:
        """The answer to a step; look-ahead before it is skipped."""
        await self.say(message)
        while (answer := await self.hear()).WhichOneof("message") == "lookahead":
            pass
        return answer.drafts

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended; what it still sends is skipped."""

        async def drain() -> None:
            while await self.call.read() is not grpc.aio.EOF:
                pass

        try:
            await asyncio.wait_for(drain(), WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await self.call.code(), await self.call.details()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """A stub of the proposer at `address`."""
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield proposer_pb2_grpc.ProposerServiceStub(channel)


@asynccontextmanager
async def propose(address: str) -> AsyncIterator[Stream]:
    """An open stream, before its hello."""
    async with connected(address) as stub:
        call = stub.Propose()
        yield Stream(call)
        call.cancel()
