"""Runs the Generate calls of one HTTP request side by side and merges what they say.

Knows the verifier's messages; does not know the response's shape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.calls import ChoiceCall
from gateway.errors import unavailable
from gateway.logprobs import TextOffset
from gateway.metrics import GatewayMetrics
from gateway.routing import VerifierPool
from gateway.verifier import GenerateStream, Metadata

# Events kept for a client that reads slower than the verifier writes; beyond, it must wait.
_BUFFERED_EVENTS: Final = 64


@dataclass(slots=True)
class Choice:
    """One choice as it grows; `finished` is set when it is complete."""

    call: ChoiceCall
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    rounds: list[pb.Round] = field(default_factory=list)
    # What the verifier said first; with the prompt's log-probabilities, where asked for.
    started: pb.Started = field(default_factory=pb.Started)
    text_offset: TextOffset = field(default_factory=TextOffset)
    finished: pb.Finished | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def acceptance(self) -> types_pb2.AcceptanceStats:
        return self.finished.acceptance if self.finished else types_pb2.AcceptanceStats()

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's `stop` or `length`; None while it runs."""
        if self.finished is None:
            return None
        if self.call.prompt_only:
            return "length"
        return "length" if self.finished.reason == types_pb2.FINISH_REASON_LENGTH else "stop"

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or id the client asked for that ended it; None for end-of-sequence."""
        if self.finished is None or self.call.prompt_only:
            return None
        kind = self.finished.WhichOneof("stop")
        if kind == "stop_string":
            return self.finished.stop_string
        if kind is None:
            return None
        token_id = self.finished.stop_token_id
        asked = self.call.request.sampling.stop_token_ids
        return None if token_id in self.eos_token_ids and token_id not in asked else token_id


class EventKind(Enum):
    BEGAN = "began"
    DELTA = "delta"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    """Something a choice said; `delta` is set for kind DELTA."""

    choice: Choice
    kind: EventKind
    delta: pb.Delta | None = None


class Generation:
    """The calls of one request. Must be closed; closing cancels what still runs.

    `arrived` is when the request came (time.monotonic seconds); the time limit counts from there.
    `metadata` travel with each call.
    """

    def __init__(
        self,
        pool: VerifierPool,
        metrics: GatewayMetrics,
        calls: Sequence[ChoiceCall],
        *,
        timeout_s: float,
        arrived: float,
        metadata: Metadata = (),
    ) -> None:
        self.choices = [Choice(call) for call in calls]
        self.verifier_info: pb.GetInfoResponse | None = None
        self._pool = pool
        self._metrics = metrics
        self._deadline = arrived + timeout_s
        self._arrived = arrived
        self._metadata = metadata
        self._openings: list[asyncio.Task[GenerateStream]] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._counted: set[int] = set()

    async def begin(self) -> None:
        """Start all calls; wait until all are accepted and one has begun.

        Raises ApiError of one that is refused. A verifier accepts a call when it queues it, and
        begins it with its first token; where it is full, many calls begin much later than the
        first one. Those are not waited for, and may still fail in `events`.
        """
        self._metrics.begin_request()
        loop = asyncio.get_running_loop()
        acceptances: list[asyncio.Future[None]] = [loop.create_future() for _ in self.choices]
        self._openings = [
            asyncio.create_task(self._open(choice, acceptance))
            for choice, acceptance in zip(self.choices, acceptances, strict=True)
        ]
        await asyncio.gather(*acceptances)
        await asyncio.wait(self._openings, return_when=asyncio.FIRST_COMPLETED)
        for opening in sorted(self._openings, key=_failed, reverse=True):
            if opening.done():
                opening.result()

    async def events(self) -> AsyncIterator[Event]:
        """What the choices say, each in its order. Raises ApiError; the rest is then cancelled."""
        if len(self.choices) == 1:
            async for event in self._listen(self.choices[0], self._openings[0]):
                yield event
            return
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue(_BUFFERED_EVENTS)
        self._pumps = [
            asyncio.create_task(self._pump(choice, opening, queue))
            for choice, opening in zip(self.choices, self._openings, strict=True)
        ]
        running = len(self._pumps)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= item.kind is EventKind.FINISHED
            yield item

    async def collect_all(self) -> None:
        """Begin and run to the end, keeping texts and ids in `choices`. Raises ApiError."""
        await self.begin()
        async for event in self.events():
            if event.delta is not None:
                event.choice.texts.append(event.delta.text)
                event.choice.token_ids.extend(event.delta.token_ids)
                event.choice.logprobs.extend(event.delta.logprobs)
                event.choice.rounds.extend(event.delta.rounds)

    async def close(self, failed: bool = False) -> None:
        """Cancel what still runs; it counts as failed or as aborted. Idempotent."""
        for task in (*self._pumps, *self._openings):
            task.cancel()
        await asyncio.gather(*self._pumps, *self._openings, return_exceptions=True)
        for opening in self._openings:
            if not opening.cancelled() and opening.exception() is None:
                opening.result().close()
        for choice in self.choices:
            self._count(choice, "error" if failed else "abort")
        if self._openings:
            self._openings = []
            self._metrics.end_request()

    async def _open(self, choice: Choice, acceptance: asyncio.Future[None]) -> GenerateStream:
        """The call's stream after its first message; `acceptance` ends earlier, or fails."""

        def accepted() -> None:
            if not acceptance.done():
                acceptance.set_result(None)

        try:
            return await self._start(choice, accepted)
        except Exception as error:
            if not acceptance.done():
                acceptance.set_exception(error)
            raise

    async def _start(self, choice: Choice, accepted: Callable[[], None]) -> GenerateStream:
        remaining = max(self._deadline - time.monotonic(), 0.0)
        stream, first = await self._pool.generate(
            choice.call.request, remaining, accepted, self._metadata
        )
        info = stream.verifier.info
        if info is not None:
            choice.eos_token_ids = frozenset(info.eos_token_ids)
            self.verifier_info = info
        choice.started = first.started
        choice.prompt_tokens = first.started.prompt_tokens
        choice.cached_tokens = first.started.cached_prompt_tokens
        return stream

    async def _pump(
        self,
        choice: Choice,
        opening: asyncio.Task[GenerateStream],
        queue: asyncio.Queue[Event | Exception],
    ) -> None:
        try:
            async for event in self._listen(choice, opening):
                await queue.put(event)
        except Exception as error:
            await queue.put(error)

    async def _listen(
        self, choice: Choice, opening: asyncio.Task[GenerateStream]
    ) -> AsyncIterator[Event]:
        stream = await opening
        yield Event(choice, EventKind.BEGAN)
        while True:
            message = await stream.next()
            if message is None:
                raise unavailable(
                    f"the verifier at {stream.verifier.address} ended the answer too early"
                )
            kind = message.WhichOneof("message")
            if kind == "delta":
                if choice.completion_tokens == 0 and message.delta.token_ids:
                    self._metrics.first_token(self._model(choice), self._arrived)
                if choice.call.prompt_only:
                    continue
                choice.completion_tokens += len(message.delta.token_ids)
                yield Event(choice, EventKind.DELTA, message.delta)
            elif kind == "finished":
                self._finish(choice, message.finished)
                stream.close()
                yield Event(choice, EventKind.FINISHED)
                return

    def _finish(self, choice: Choice, finished: pb.Finished) -> None:
        if finished.reason not in (types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_LENGTH):
            raise unavailable(
                "the verifier gave up this request; it is shutting down or overloaded"
            )
        choice.finished = finished
        choice.prompt_tokens = finished.prompt_tokens
        choice.cached_tokens = finished.cached_prompt_tokens
        if not choice.call.prompt_only:
            choice.completion_tokens = finished.completion_tokens
        self._count(choice, choice.finish_reason or "stop")

    def _count(self, choice: Choice, reason: str) -> None:
        if choice.call.index not in self._counted:
            self._counted.add(choice.call.index)
            self._metrics.finished(self._model(choice), reason)

    def _model(self, choice: Choice) -> str:
        return choice.call.request.model


def _failed(opening: asyncio.Task[GenerateStream]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
