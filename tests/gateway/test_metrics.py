"""`/metrics`: names, labels, and totals that equal the sum of what every request did."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier
from tests.gateway.test_disconnect import send_and_leave

LABELS = (("engine", "0"), ("model_name", MODEL))

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(http: httpx.AsyncClient) -> Samples:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = Counter(
        line.split()[2] for line in response.text.splitlines() if line.startswith("# TYPE")
    )
    assert max(names.values()) == 1
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def at(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted((*LABELS, *labels.items())))]


async def test_vllms_four_counters(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": "abc"})
    samples = await scrape(http)
    assert at(samples, "vllm:spec_decode_num_drafts_total") == 2
    assert at(samples, "vllm:spec_decode_num_draft_tokens_total") == 6
    assert at(samples, "vllm:spec_decode_num_accepted_tokens_total") == 3
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [at(samples, per_position, position=str(p)) for p in range(4)] == [2, 1, 0, 0]


async def test_own_metrics(http: httpx.AsyncClient, verifier: FakeVerifier) -> None:
    await http.post("/v1/completions", json={"prompt": "abc"})
    samples = await scrape(http)
    proposed = "outrider:spec_decode_num_draft_tokens_per_pos_total"
    assert [at(samples, proposed, position=str(p)) for p in range(4)] == [2, 2, 1, 1]
    steps = "outrider:spec_decode_num_drafts_by_accepted_total"
    assert [at(samples, steps, accepted=str(j)) for j in range(5)] == [0, 1, 1, 0, 0]
    assert at(samples, "vllm:prompt_tokens_total") == 3
    assert at(samples, "vllm:generation_tokens_total") == 6
    assert at(samples, "vllm:prefix_cache_queries_total") == 100
    assert at(samples, "vllm:prefix_cache_hits_total") == 64
    assert at(samples, "vllm:num_preemptions_total") == 3
    off = {"off_reason": "drafts do not pay"}
    assert at(samples, "outrider:speculation_on", **off) == 0
    without = "outrider:rounds_without_drafts_total"
    assert at(samples, without, off_reason="no draft arrived") == 7
    assert at(samples, "outrider:verifier_requests_total", finished_reason="stop") == 5
    ngram = {"proposer": "ngram"}
    assert at(samples, "outrider:proposer_connected", **ngram) == 1
    assert at(samples, "outrider:proposer_draft_blocks_total", **ngram) == 3
    dropped = "outrider:proposer_dropped_blocks_total"
    assert at(samples, dropped, **ngram, reason="stale") == 2
    lookahead = "outrider:proposer_lookahead_total"
    assert at(samples, lookahead, **ngram, result="hit") == 1
    assert at(samples, lookahead, **ngram, result="none") == 2
    up = (("address", verifier.address), ("engine", "0"))
    assert samples["outrider:verifier_up", up] == 1


async def test_requests_by_how_they_ended(
    http: httpx.AsyncClient, gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    await http.post("/v1/completions", json={"prompt": ["a", "b"]})
    verifier.script = lambda request: Answer(truncate=True)
    await http.post("/v1/completions", json={"prompt": "x"})
    verifier.script = lambda request: Answer(hang_after=1)
    await send_and_leave(gateway, verifier, stream=True, after_text=True)
    await asyncio.wait_for(verifier.cancelled.wait(), 10)

    def ended(samples: Samples, reason: str) -> float | None:
        labels = (("finished_reason", reason), ("model_name", MODEL))
        return samples.get(("outrider:requests_total", labels))

    samples = await scrape(http)
    async with asyncio.timeout(10):
        while ended(samples, "abort") is None:
            samples = await scrape(http)
    assert ended(samples, "stop") == 2
    assert ended(samples, "error") == 1
    assert ended(samples, "abort") == 1
    first = samples["outrider:time_to_first_token_seconds_count", (("model_name", MODEL),)]
    assert first == 4
    assert samples["outrider:http_requests_in_flight", ()] == 0
    route = (("route", "/v1/completions"), ("status", "200"))
    assert samples["outrider:http_responses_total", route] == 1


async def test_totals_equal_the_sum_of_the_requests_cancelled_ones_included(
    client: openai.AsyncOpenAI,
    http: httpx.AsyncClient,
    gateway: RunningGateway,
    verifier: FakeVerifier,
) -> None:
    shapes = [[("ab", 4), ("c", 1)], [("xyzw", 3)], [("q", 0)], [("12345", 4), ("6", 2)]]
    scripts = iter([Answer(pieces=list(s)) for s in shapes] * 3)
    verifier.script = lambda request: next(scripts)
    totals: Counter[str] = Counter()
    histogram = [0] * 5
    tokens = 0

    def count(figures: dict[str, object]) -> None:
        for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
            totals[name] += figures[name]  # type: ignore[assignment, arg-type]
        for j, value in enumerate(figures["acceptance_histogram"]):  # type: ignore[arg-type]
            histogram[j] += value

    for prompts in (["a"], ["b", "c"], ["d"]):
        whole = await client.completions.create(model=MODEL, prompt=prompts)
        count(whole.model_extra["metrics"]["speculative_decoding"])
        tokens += whole.usage.completion_tokens
        stream = await client.completions.create(
            model=MODEL, prompt=prompts, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        count(chunks[-1].model_extra["metrics"]["speculative_decoding"])
        tokens += chunks[-1].usage.completion_tokens

    # A client that leaves after one round: that round was emitted, so it counts.
    verifier.script = lambda request: Answer(pieces=[("abc", 4), ("d", 1)], hang_after=1)
    await send_and_leave(gateway, verifier, stream=True, after_text=True)
    await asyncio.wait_for(verifier.cancelled.wait(), 10)
    totals.update(num_spec_steps=1, num_draft_tokens=4, num_accepted_draft_tokens=2)
    histogram[2] += 1
    tokens += 3

    samples = await scrape(http)
    assert at(samples, "vllm:spec_decode_num_drafts_total") == totals["num_spec_steps"]
    assert at(samples, "vllm:spec_decode_num_draft_tokens_total") == totals["num_draft_tokens"]
    accepted = at(samples, "vllm:spec_decode_num_accepted_tokens_total")
    assert accepted == totals["num_accepted_draft_tokens"]
    steps = "outrider:spec_decode_num_drafts_by_accepted_total"
    assert [at(samples, steps, accepted=str(j)) for j in range(5)] == histogram
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert sum(at(samples, per_position, position=str(p)) for p in range(4)) == accepted
    assert at(samples, "vllm:generation_tokens_total") == tokens


async def test_two_gateways_show_the_same_totals(
    http: httpx.AsyncClient, verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    other = await start_gateway(verifier.address)
    async with httpx.AsyncClient(base_url=other.url, trust_env=False, verify=False) as second:
        await http.post("/v1/completions", json={"prompt": "abc"})
        await second.post("/v1/completions", json={"prompt": "abc"})
        for one in (http, second):
            samples = await scrape(one)
            assert at(samples, "vllm:spec_decode_num_drafts_total") == 4
            labels = (("finished_reason", "stop"), ("model_name", MODEL))
            assert samples["outrider:requests_total", labels] == 1


async def test_scrape_while_no_verifier_serves(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    await http.post("/v1/completions", json={"prompt": "abc"})
    await verifier.stop()
    samples = await scrape(http)
    up = (("address", verifier.address), ("engine", "0"))
    assert samples["outrider:verifier_up", up] == 0
    assert not any(name.startswith("vllm:") for name, _ in samples)
