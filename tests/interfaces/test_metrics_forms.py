"""Every form of a response's `metrics` as the official client reads it: level, endpoint, stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.settings import SpecDecodeMetrics
from tests.interfaces.stack import MODEL, K, stack

SUMMARY = [
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
]
STEPS = ["per_step_accepted", "per_step_drafted"]
TIMINGS = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}
LEVELS = list(SpecDecodeMetrics)
# What is asked of each endpoint, and how many choices that makes.
ASKED: list[tuple[str, dict[str, Any], int]] = [
    ("completions", {"prompt": "the cat"}, 1),
    ("completions", {"prompt": "the cat", "n": 2}, 2),
    ("completions", {"prompt": ["the cat", "a dog", "12"]}, 3),
    ("completions", {"prompt": ["the cat", "a dog"], "n": 2}, 4),
    ("chat", {"messages": [{"role": "user", "content": "a dog"}]}, 1),
    ("chat", {"messages": [{"role": "user", "content": "a dog"}], "n": 3}, 3),
]


async def ask(client: openai.AsyncOpenAI, endpoint: str, **options: Any) -> Any:
    api = client.completions if endpoint == "completions" else client.chat.completions
    answer: Any = await api.create(model=MODEL, max_tokens=24, temperature=0.8, seed=5, **options)
    return answer


def check_figures(told: dict[str, Any], level: SpecDecodeMetrics, *, nulls: bool) -> None:
    """vLLM's fields in its order, agreeing with each other."""
    names = SUMMARY + (STEPS if level is SpecDecodeMetrics.DETAILED else [])
    steps, accepted = told["num_spec_steps"], told["num_accepted_draft_tokens"]
    drafted, histogram = told["num_draft_tokens"], told["acceptance_histogram"]
    assert list(told) == (names if nulls or steps else SUMMARY)
    assert told["num_spec_tokens"] == K == len(histogram) - 1
    assert sum(histogram) == steps
    assert sum(j * count for j, count in enumerate(histogram)) == accepted
    assert told["mean_acceptance_length"] == (1 + accepted / steps if steps else 1.0)
    assert told["draft_acceptance_rate"] == (accepted / drafted if drafted else 0.0)
    if level is SpecDecodeMetrics.DETAILED and steps:
        assert len(told["per_step_accepted"]) == len(told["per_step_drafted"]) == steps
        assert sum(told["per_step_accepted"]) == accepted
        assert sum(told["per_step_drafted"]) == drafted


def check(body: Any, level: SpecDecodeMetrics, choices: int, *, nulls: bool) -> None:
    """`metrics` and `usage` of a whole answer, or, without `nulls`, of a usage chunk."""
    details = body.usage.completion_tokens_details
    verified = details.accepted_prediction_tokens + details.rejected_prediction_tokens
    if level is SpecDecodeMetrics.NONE:
        assert body.model_extra.get("metrics") is None
        assert ("metrics" in body.model_extra) == nulls
        assert verified > 0
        return
    metrics = body.model_extra["metrics"]
    members = {"speculative_decoding"} | (TIMINGS if nulls else set())
    assert set(metrics) == members | ({"choices"} if choices > 1 else set())
    assert all(metrics.get(name) is None for name in TIMINGS)
    figures = metrics["speculative_decoding"]
    check_figures(figures, level, nulls=nulls)
    assert details.accepted_prediction_tokens == figures["num_accepted_draft_tokens"]
    assert verified == figures["num_draft_tokens"] > 0
    if choices == 1:
        return
    parts = metrics["choices"]
    assert [list(part) for part in parts] == [["index", "speculative_decoding"]] * choices
    assert [part["index"] for part in parts] == list(range(choices))
    for part in parts:
        check_figures(part["speculative_decoding"], level, nulls=nulls)
    for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens"):
        assert sum(part["speculative_decoding"][name] for part in parts) == figures[name]
    columns = zip(
        *(part["speculative_decoding"]["acceptance_histogram"] for part in parts), strict=True
    )
    assert [sum(column) for column in columns] == figures["acceptance_histogram"]


@pytest.mark.parametrize("forced", [False, True], ids=["asked", "forced"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
async def test_every_form(socket_dir: Path, level: SpecDecodeMetrics, forced: bool) -> None:
    options = {"per_request_spec_decode_metrics": level, "force_include_usage": forced}
    async with stack(socket_dir, gateway_options=options) as running:
        for endpoint, asked, choices in ASKED:
            whole = await ask(running.client, endpoint, **asked)
            assert len(whole.choices) == choices
            check(whole, level, choices, nulls=True)
            for usage in ({}, {"stream_options": {"include_usage": True}}):
                stream = await ask(running.client, endpoint, **asked, stream=True, **usage)
                chunks = [chunk async for chunk in stream]
                # Only the chunk of the usage has them, and it comes last.
                assert not any("metrics" in (chunk.model_extra or {}) for chunk in chunks[:-1])
                if not usage and not forced:
                    assert all(chunk.choices and not chunk.usage for chunk in chunks)
                    assert "metrics" not in (chunks[-1].model_extra or {})
                    continue
                assert chunks[-1].choices == []
                check(chunks[-1], level, choices, nulls=False)
