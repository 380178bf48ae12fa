"""Streams of fewer, larger chunks (`stream_interval`).

Knows how many tokens wait for each choice; does not know what they say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from speculation.v1 import verifier_pb2 as pb

from gateway.generation import Choice, Event, EventKind


@dataclass(slots=True)
class _Waiting:
    delta: pb.Delta = field(default_factory=pb.Delta)
    told: bool = False

    def add(self, delta: pb.Delta) -> None:
        text = self.delta.text + delta.text
        self.delta.MergeFrom(delta)
        self.delta.text = text

    def take(self, choice: Choice) -> Event:
        event = Event(choice, EventKind.DELTA, self.delta)
        self.delta, self.told = pb.Delta(), True
        return event


async def paced(events: AsyncIterator[Event], interval: int) -> AsyncIterator[Event]:
    """`events` with each choice's deltas joined until they hold `interval` tokens.

    As in vLLM a choice's first delta waits for nothing, and the end lets everything out. A delta
    may hold more tokens: one round's are never parted.
    """
    waiting: dict[int, _Waiting] = {}
    async for event in events:
        held = waiting.setdefault(event.choice.call.index, _Waiting())
        if event.delta is not None:
            held.add(event.delta)
            if held.told and len(held.delta.token_ids) < interval:
                continue
            yield held.take(event.choice)
            continue
        if event.kind is EventKind.FINISHED and held.delta.ByteSize():
            yield held.take(event.choice)
        yield event
