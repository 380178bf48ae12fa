"""Chunks of several tokens: joined without loss, in each choice's order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.calls import ChoiceCall
from gateway.generation import Choice, Event, EventKind
from gateway.pacing import paced
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

CHOICES = [Choice(ChoiceCall(index, 0, pb.GenerateRequest())) for index in range(2)]


def delta(text: str, choice: int = 0, *, ids: int | None = None) -> Event:
    count = len(text) if ids is None else ids
    told = pb.Delta(
        text=text,
        token_ids=range(count),
        logprobs=[pb.TokenLogprob(token_id=i) for i in range(count)],
    )
    return Event(CHOICES[choice], EventKind.DELTA, told)


def edge(kind: EventKind, choice: int = 0) -> Event:
    return Event(CHOICES[choice], kind)


async def shown(events: list[Event], interval: int) -> list[Any]:
    async def source() -> AsyncIterator[Event]:
        for event in events:
            yield event

    result: list[Any] = []
    async for event in paced(source(), interval):
        if event.delta is None:
            result.append((event.choice.call.index, event.kind))
        else:
            assert len(event.delta.logprobs) == len(event.delta.token_ids)
            result.append((event.choice.call.index, event.delta.text, len(event.delta.token_ids)))
    return result


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (1, [("a", 1), ("b", 1), ("cd", 2), ("e", 1), ("f", 1)]),
        (2, [("a", 1), ("bcd", 3), ("ef", 2)]),
        (4, [("a", 1), ("bcde", 4), ("f", 1)]),
        (99, [("a", 1), ("bcdef", 5)]),
    ],
)
async def test_deltas_are_joined(interval: int, expected: list[tuple[str, int]]) -> None:
    texts = ["a", "b", "cd", "e", "f"]
    events = [edge(EventKind.BEGAN), *map(delta, texts), edge(EventKind.FINISHED)]
    result = await shown(events, interval)
    assert result[0] == (0, EventKind.BEGAN)
    assert result[-1] == (0, EventKind.FINISHED)
    assert result[1:-1] == [(0, *pair) for pair in expected]


async def test_choices_wait_for_themselves_only() -> None:
    events = [delta("a"), delta("x", 1), delta("y", 1), delta("b"), delta("z", 1)]
    events += [edge(EventKind.FINISHED, 1), delta("c"), edge(EventKind.FINISHED)]
    assert await shown(events, 2) == [
        (0, "a", 1),
        (1, "x", 1),
        (1, "yz", 2),
        (1, EventKind.FINISHED),
        (0, "bc", 2),
        (0, EventKind.FINISHED),
    ]


async def test_text_behind_the_last_id_is_not_lost() -> None:
    events = [delta("a"), delta("…", ids=0), edge(EventKind.FINISHED)]
    assert await shown(events, 5) == [(0, "a", 1), (0, "…", 0), (0, EventKind.FINISHED)]


async def test_a_stream_with_an_interval(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[(letter, 0) for letter in "abcdefg"])
    stream = await client.completions.create(
        model=MODEL, prompt="x", stream=True, extra_body={"stream_interval": 3}
    )
    texts = [chunk.choices[0].text async for chunk in stream]
    assert [text for text in texts if text] == ["a", "bcd", "efg"]


async def test_an_interval_changes_no_whole_answer(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "x", "stream_interval": 3}
    response = await http.post("/v1/completions", json=body)
    assert response.json()["choices"][0]["text"] == "Hello!"
