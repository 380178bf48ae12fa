"""The stall benchmark's arithmetic and options; it needs a server for the rest."""

from __future__ import annotations

import json

import httpx
import pytest

from benchmarks.prefill_stall import Phase, counter, parse, percentile, prompts, stream, summary


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51.0
    assert percentile(values, 0.99) == 100.0
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no gaps"):
        percentile([], 0.5)


def test_a_summary_is_in_milliseconds() -> None:
    found = summary([0.01] * 98 + [0.5, 0.2])
    assert found == {
        "messages": 100,
        "p50_ms": 10.0,
        "p90_ms": 10.0,
        "p99_ms": 500.0,
        "max_ms": 500.0,
    }


def test_no_two_prompts_begin_alike() -> None:
    made = prompts(5, 40, seed=1)
    assert [len(prompt) for prompt in made] == [40] * 5
    assert len({tuple(prompt[:4]) for prompt in made}) == 5
    assert made == prompts(5, 40, seed=1)


def test_counters_are_summed_over_their_labels() -> None:
    text = 'a_total{engine="0"} 2.0\na_total{engine="1"} 3.0\nab_total 9.0\n# HELP a_total x 4\n'
    assert counter(text, "a_total") == 5


def test_gaps_belong_to_the_phase_they_began_in() -> None:
    phase = Phase()
    clock = iter([10.0, 11.0, 13.0, 16.0])

    def lines():  # type: ignore[no-untyped-def]
        chunk = f"data: {json.dumps({'choices': []})}\n\n".encode()
        yield chunk
        yield chunk
        phase.prompts_wait.set()
        yield chunk
        phase.over.set()
        yield chunk

    class Body(httpx.SyncByteStream):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return lines()

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Body()))
    with httpx.Client(transport=transport, base_url="http://x") as client:
        gaps = stream(client, [1], phase, 10, lambda: next(clock))
    assert (gaps.quiet, gaps.waiting) == ([1.0, 2.0], [3.0])


def test_options() -> None:
    options = parse(["--model", "m", "--stall-ms", "50"])
    assert (options.stall_ms, options.total_tokens) == ([50.0], 100_000)
    with pytest.raises(SystemExit):
        parse(["--model", "m", "--total-tokens", "10"])
