"""What a parser's events come to, for tests: contents and calls, however they were cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from hypothesis import strategies as st

from gateway.tools.events import (
    Arguments,
    CallBegan,
    CallEnded,
    Content,
    ToolCallParser,
    ToolEvent,
)

NAMES = ("get_weather", "f")

MakeParser = Callable[[], ToolCallParser]


def fold(events: Iterable[ToolEvent]) -> list[tuple[str, ...]]:
    """Neighbouring contents joined; each call as ("call" or "broken", name, arguments[, raw])."""
    folded: list[tuple[str, ...]] = []
    running: tuple[str, str] | None = None
    for event in events:
        if isinstance(event, Content):
            assert running is None, "content inside a call"
            if folded and folded[-1][0] == "text":
                folded[-1] = ("text", folded[-1][1] + event.text)
            else:
                folded.append(("text", event.text))
        elif isinstance(event, CallBegan):
            assert running is None, "a call inside a call"
            running = (event.name, "")
        else:
            assert running is not None, f"{event} outside a call"
            if isinstance(event, Arguments):
                running = (running[0], running[1] + event.text)
                continue
            if isinstance(event, CallEnded):
                folded.append(("call", *running))
            else:
                folded.append(("broken", *running, event.raw))
            running = None
    assert running is None, "a call without an end"
    return folded


def whole(make: MakeParser, text: str) -> list[tuple[str, ...]]:
    parser = make()
    return fold([*parser.push(text), *parser.finish()])


def in_pieces(make: MakeParser, pieces: Sequence[str]) -> list[tuple[str, ...]]:
    parser = make()
    events = [event for piece in pieces for event in parser.push(piece)]
    return fold([*events, *parser.finish()])


def texts_of(*fragments: str) -> st.SearchStrategy[str]:
    """Texts put together from a notation's own fragments, cut and mixed."""
    common = (
        '{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}',
        '{"name": "get_weather", "parameters": {"city": "S\\u00e3o \\"P\\""}}',
        '{"arguments": {"x": 1}, "name": "f"}',
        '{"name": "f"}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f", "arguments": {"a": oops}}',
        '{"name": "f", "arguments": {"a": 1',
        '{"name": 12, "arguments": {}}',
        "Hello",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        "é東🚀",
    )
    part = st.sampled_from((*common, *fragments)) | st.sampled_from(fragments).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda n: text[:n])
    )
    return st.lists(part, max_size=8).map("".join)


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """`text` as pieces, some of them empty."""

    def split(points: list[int]) -> list[str]:
        edges = [0, *sorted(points), len(text)]
        return [text[a:b] for a, b in pairwise(edges)]

    return st.lists(st.integers(0, len(text)), max_size=12).map(split)
