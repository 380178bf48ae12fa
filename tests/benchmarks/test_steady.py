from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.steady import Span, Steady, steady


def test_answers_that_end_together_are_steady_to_the_end() -> None:
    spans = [Span(0, 2), Span(0, 2), Span(2, 4), Span(2, 4)]
    assert steady(spans, [10] * 4, clients=2, seconds=4.1) == Steady(4, 40)


def test_the_part_ends_when_a_client_first_finds_no_prompt_left() -> None:
    # The second client is answered at 1 and 3, takes the fourth prompt and ends at 7; the first
    # one finds none at 4. Of the fourth answer a quarter lies before that.
    spans = [Span(0, 4), Span(0, 1), Span(1, 3), Span(3, 7)]
    assert steady(spans, [10, 10, 10, 8], clients=2, seconds=7.0) == Steady(4, 32)


def test_the_order_of_the_prompts_does_not_matter() -> None:
    spans = [Span(0, 4), Span(0, 1), Span(1, 3), Span(3, 7)]
    tokens = [10, 10, 10, 8]
    there = steady(spans, tokens, clients=2, seconds=7.0)
    assert steady(spans[::-1], tokens[::-1], clients=2, seconds=7.0) == there


def test_a_request_that_was_sent_at_the_end_itself_counts_nothing() -> None:
    # Both clients are answered at once; the last prompt is taken a moment after.
    spans = [Span(0, 1), Span(0, 1), Span(1.25, 3)]
    assert steady(spans, [10] * 3, clients=2, seconds=3.0) == Steady(1, 20)


def test_all_of_one_clients_time_counts() -> None:
    spans = [Span(0.5, 1), Span(1.5, 2)]
    assert steady(spans, [4, 4], clients=1, seconds=2.5) == Steady(2.5, 8)


@pytest.mark.parametrize("clients", [2, 3])
def test_where_nobody_takes_a_second_prompt_all_the_time_counts(clients: int) -> None:
    assert steady([Span(0, 1), Span(0, 3)], [6, 6], clients, seconds=3.5) == Steady(3.5, 12)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="0 clients"):
        steady([Span(0, 1)], [1], clients=0, seconds=1.0)
    with pytest.raises(ValueError, match="longer"):
        steady([Span(0, 1), Span(1, 2), Span(0, 3)], [1], clients=2, seconds=3.0)


def load(clients: int, prompts: int, pace: Callable[[int], int]) -> tuple[list[Span], int]:
    """Answers of 60 tokens; a step takes a second and gives the n-th answer pace(n) of them."""
    spans: list[Span] = []
    running: dict[int, int] = {}
    now = 0
    while running or len(spans) < prompts:
        while len(running) < clients and len(spans) < prompts:
            running[len(spans)] = 60
            spans.append(Span(now, now))
        now += 1
        for number in list(running):
            running[number] -= pace(number)
            if running[number] <= 0:
                del running[number]
                spans[number] = spans[number]._replace(received=now)
    return spans, now


def test_a_short_load_with_drafts_tells_what_a_long_one_does() -> None:
    def speeds(prompts: int) -> tuple[float, float]:
        spans, seconds = load(8, prompts, lambda number: 1 + number % 3)
        part = steady(spans, [60] * prompts, 8, seconds)
        return part.tokens / part.seconds, 60 * prompts / seconds

    there, _ = speeds(800)
    short, whole = speeds(24)
    assert short == pytest.approx(there, rel=0.05)
    # Its end alone would make it a fifth slower.
    assert whole < 0.8 * there
