"""How many tokens came when, whatever the server tells of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.reading import Reading, error_message
from outrider.bench.records import Arrival, CountedBy, Record


def chunk(text: str = "", *, ids: list[int] | None = None, told: int | None = None) -> Any:
    choice: dict[str, Any] = {"index": 0, "text": text}
    if ids is not None:
        choice["token_ids"] = ids
    event: dict[str, Any] = {"choices": [choice]}
    if told is not None:
        event["usage"] = {"prompt_tokens": 3, "completion_tokens": told}
    return event


def last(told: int, **more: Any) -> Any:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": told}, **more}


def read(*events: tuple[float, Any]) -> Record:
    reading = Reading()
    for at, event in events:
        reading.event(at, event)
    return reading.record(0, "s", 10.0, closed=True)


def test_tokens_of_a_chunk_are_its_ids() -> None:
    record = read((11, chunk("a", ids=[1])), (12, chunk("bc", ids=[2, 3, 4])), (13, last(4)))
    assert record.arrivals == (Arrival(11, 1), Arrival(12, 3))
    assert record.output_tokens == 4
    assert record.counted_by is CountedBy.TOKEN_IDS
    assert record.counted_by.per_token


def test_running_usage_counts_what_each_chunk_adds() -> None:
    record = read((11, chunk("a", told=1)), (12, chunk("bc", told=4)), (13, last(4)))
    assert record.arrivals == (Arrival(11, 1), Arrival(12, 3))
    assert record.counted_by is CountedBy.RUNNING_USAGE
    assert record.prompt_tokens == 3


def test_a_token_without_text_is_counted_when_usage_tells_it() -> None:
    record = read((11, chunk("a", told=1)), (12, chunk("", told=2)), (13, last(3)))
    assert record.arrivals == (Arrival(11, 1), Arrival(12, 1), Arrival(13, 1))
    assert record.output_tokens == 3


def test_the_first_chunk_of_a_chat_is_no_token() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    record = read((10.5, role), (11, chunk("a")), (12, last(1)))
    assert record.ttft == 1


def test_usage_at_the_end_gives_the_total_only() -> None:
    record = read((11, chunk("a")), (12, chunk("bcd")), (13, last(9)))
    assert record.output_tokens == 9
    assert record.arrivals == (Arrival(11, 1), Arrival(12, 1))
    assert record.counted_by is CountedBy.FINAL_USAGE
    assert not record.counted_by.per_token
    assert record.tpot == pytest.approx(1 / 8)


def test_without_usage_chunks_are_counted_and_it_is_said() -> None:
    record = read((11, chunk("a")), (12, chunk("bcd")))
    assert (record.output_tokens, record.counted_by) == (2, CountedBy.CHUNKS)


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "so"},
        {"reasoning": "so"},
        {"tool_calls": [{"function": {"name": "so", "arguments": None}}]},
        {"tool_calls": [{"function": {"arguments": "so"}}]},
    ],
)
def test_reasoning_and_tool_calls_are_tokens_too(delta: Any) -> None:
    assert read((11, {"choices": [{"delta": delta}]})).output_tokens == 1


def test_what_is_told_of_drafts_is_kept() -> None:
    told = {
        "acceptance_histogram": [1, 0, 2],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 6,
    }
    record = read((11, chunk("a", told=1)), (12, last(1, metrics={"speculative_decoding": told})))
    assert record.drafts is not None
    assert record.drafts.accepted_per_position == (2, 2)


def test_equal_texts_have_equal_digests_however_they_are_cut() -> None:
    one = read((11, chunk("ab")), (12, chunk("c")))
    other = read((11, chunk("a")), (12, chunk("bc")))
    third = read((11, chunk("a")), (12, chunk("bd")))
    assert one.text_digest == other.text_digest != third.text_digest


def test_an_error_in_the_stream_is_the_record_s() -> None:
    record = read((11, chunk("a")), (12, {"error": {"message": "out of\nmemory"}}))
    assert not record.ok
    assert record.error == "out of memory"


def test_an_answer_that_stops_short_is_an_error() -> None:
    reading = Reading()
    reading.event(11, chunk("a"))
    assert "ended before" in reading.record(0, "s", 10, closed=False).error
    reading.event(12, {"choices": [{"text": "", "finish_reason": "stop"}]})
    assert reading.record(0, "s", 10, closed=False).ok


def test_an_answer_without_tokens_is_an_error() -> None:
    assert "no token" in read((11, last(0))).error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "a  b", "code": 400}}, "a b"),
        ({"error": "plain"}, "plain"),
        ({"detail": "fastapi"}, "fastapi"),
        ({"object": "error", "message": "old vllm"}, "old vllm"),
        ("<html>", "<html>"),
    ],
)
def test_error_messages_of_any_form(body: object, message: str) -> None:
    assert error_message(body) == message


@given(st.lists(st.tuples(st.floats(0.001, 5), st.integers(1, 6)), min_size=1, max_size=20))
def test_times_between_tokens_add_up(chunks: list[tuple[float, int]]) -> None:
    """However tokens are bundled: one time for each token after the first, their sum the whole."""
    at, arrivals = 1.0, []
    for pause, tokens in chunks:
        at += pause
        arrivals.append(Arrival(at, tokens))
    total = sum(tokens for _, tokens in chunks)
    record = Record(0, "s", 1.0, tuple(arrivals), output_tokens=total)
    assert len(record.itls()) == total - 1
    assert sum(record.itls()) == pytest.approx(arrivals[-1].at - arrivals[0].at)
    assert record.e2el == pytest.approx(sum(pause for pause, _ in chunks))
    if total > 1:
        assert record.tpot == pytest.approx(sum(record.itls()) / (total - 1))


def test_gaps_are_what_a_reader_waits() -> None:
    record = Record(0, "s", 0.0, (Arrival(1, 1), Arrival(3, 4)), output_tokens=5)
    assert record.gaps() == [2.0]
    assert record.itls() == [0.5] * 4
