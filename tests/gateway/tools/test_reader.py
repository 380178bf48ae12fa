"""One answer's messages and deltas, without a server between."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from gateway.tools.hermes import HermesParser
from gateway.tools.named import NamedParser
from gateway.tools.reader import ToolReader

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
BROKEN = '<tool_call>{"name": "f", "arguments": {"a": oops'


def reader(**options: Any) -> ToolReader:
    numbers = count(1)
    return ToolReader(HermesParser(["f"]), lambda: f"id{next(numbers)}", **options)


def call(number: int, arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {
        "id": f"id{number}",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }


def test_a_message() -> None:
    message = reader().message(f"a {CALL} {CALL} b")
    assert message == {"content": "a b", "tool_calls": [call(1), call(2)]}
    assert reader().message("") == {"content": "", "tool_calls": []}
    assert reader().message(CALL) == {"content": None, "tool_calls": [call(1)]}


def test_a_long_message_is_the_same() -> None:
    arguments = '{"a": "' + "x" * 10_000 + '"}'
    long = CALL.replace('{"a": 1}', arguments)
    message = reader().message("y" * 5000 + long + "z" * 5000)
    assert message["tool_calls"] == [call(1, arguments)]
    assert message["content"] == "y" * 5000 + "z" * 5000


def test_one_delta_may_hold_all() -> None:
    read = reader()
    assert read.delta(f"a{CALL}{CALL}b") == {
        "content": "ab",
        "tool_calls": [{"index": 0, **call(1)}, {"index": 1, **call(2)}],
    }
    assert read.rest() == {}


def test_what_is_held_back_is_an_empty_delta() -> None:
    read = reader()
    assert read.delta("<tool_") == {}
    assert read.rest() == {"content": "<tool_"}


def test_only_the_first_call_is_told_without_parallel_calls() -> None:
    read = reader(parallel=False)
    assert read.delta(CALL + CALL + "b") == {
        "content": "b",
        "tool_calls": [{"index": 0, **call(1)}],
    }
    message = reader(parallel=False).message(CALL + CALL + "b")
    assert message == {"content": "b", "tool_calls": [call(1)]}


def test_a_further_call_that_breaks_is_content_as_nothing_of_it_was_told() -> None:
    read = reader(parallel=False)
    parts = [read.delta(CALL), read.delta(BROKEN), read.rest()]
    assert "".join(part.get("content", "") for part in parts) == BROKEN
    assert reader(parallel=False).message(CALL + BROKEN)["content"] == BROKEN


@pytest.mark.parametrize(
    ("text", "reason", "told"),
    [
        (CALL, "stop", "tool_calls"),
        (CALL, "length", "length"),
        ("a", "stop", "stop"),
        (BROKEN, "stop", "stop"),
        (CALL, None, None),
    ],
)
def test_finish_reasons(text: str, reason: str | None, told: str | None) -> None:
    whole, streamed = reader(), reader()
    whole.message(text)
    streamed.delta(text)
    streamed.rest()
    assert whole.finish_reason(reason) == told
    assert streamed.finish_reason(reason) == told


def test_a_named_call_ends_with_stop() -> None:
    read = ToolReader(NamedParser("f"), lambda: "id1", named=True)
    assert read.message('{"a": 1}') == {"content": None, "tool_calls": [call(1)]}
    assert read.finish_reason("stop") == "stop"
