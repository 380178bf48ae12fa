"""Events whole, however the bytes are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outrider.bench.sse import event_data

STREAM = (
    ": hello\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\n\ndata: a\ndata: ü\n\ndata: [DONE]\n\n"
)


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for i in range(0, len(data), size):
        yield data[i : i + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_cuts_do_not_matter(size: int) -> None:
    found = [data async for data in event_data(pieces(STREAM.encode(), size))]
    assert found == ["one", "two", "a\nü", "[DONE]"]


async def test_an_event_without_its_end_is_left_out() -> None:
    found = [data async for data in event_data(pieces(b"data: one\n\ndata: two\n", 5))]
    assert found == ["one"]


async def test_an_event_comes_before_the_next_bytes_are_asked_for() -> None:
    asked: list[int] = []

    async def source() -> AsyncIterator[bytes]:
        for i in range(3):
            asked.append(i)
            yield f"data: {i}\n\n".encode()

    events = event_data(source())
    assert await anext(events) == "0"
    assert asked == [0]
    await events.aclose()  # type: ignore[attr-defined]
