"""The span of a Generate call says what the answer's own sums say, however the call ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from outrider import telemetry as names
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.collector import Collector, Span, collecting
from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import ANSWER, answering, encode, request, serving, until
from verifier_service import tracing
from verifier_service.proposer_state import LinkState, ProposerState

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
OK, ERROR = 0, 2


@pytest.fixture
def collector(socket_dir: Path) -> Iterator[Collector]:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


def settings(collector: Collector, level: str = "summary", **options: Any) -> dict[str, Any]:
    return {"trace": TraceSettings(collector.address, TraceLevel(level), **options)}


class Proposers:
    def states(self) -> list[ProposerState]:
        return [ProposerState("fake", "ngram", "unix:/n", LinkState.CONNECTED)]


def assert_equal(span: Span, finished: pb.Finished) -> None:
    stats, told = finished.acceptance, span.attributes
    assert told[names.INPUT_TOKENS] == finished.prompt_tokens
    assert told[names.OUTPUT_TOKENS] == finished.completion_tokens
    assert told[names.CACHED_TOKENS] == finished.cached_prompt_tokens
    assert told[names.QUEUE_NS] == finished.queue_ns
    assert told[names.FIRST_TOKEN_NS] == finished.first_token_ns
    assert told[names.CEILING] == stats.num_spec_tokens
    assert told[names.STEPS] == stats.num_spec_steps
    assert told[names.DRAFT_TOKENS] == stats.num_draft_tokens
    assert told[names.ACCEPTED_TOKENS] == stats.num_accepted_draft_tokens
    assert told[names.HISTOGRAM] == list(stats.acceptance_histogram)
    assert told[names.ACCEPTED_PER_POSITION] == list(stats.accepted_per_position)
    assert told[names.PROPOSED_PER_POSITION] == list(stats.proposed_per_position)


async def test_sums_are_those_of_the_answers(collector: Collector, socket_dir: Path) -> None:
    core = FakeCore(
        lambda r: rounds(encode(ANSWER), per_round=1 + len(core.submitted) % 5, off_reason="slow")
    )
    async with serving(core, socket_dir, **settings(collector)) as client:
        asked = [request(stop=["STOP"] if i % 2 else []) for i in range(12)]
        for number, one in enumerate(asked):
            one.request_id = f"r{number}"
        replies = await asyncio.gather(*(client.generate(one) for one in asked))
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    spans = {span.attributes[names.RESPONSE_ID]: span for span in collector.of(names.REQUEST_SPAN)}
    assert len(collector.spans) == len(spans) == 12
    for number, reply in enumerate(replies):
        assert reply.finished is not None
        span = spans[f"r{number}"]
        assert_equal(span, reply.finished)
        assert span.attributes[names.FINISH_REASONS] == ["stop" if number % 2 else "length"]
        off = dict(
            zip(span.attributes[names.OFF_REASONS], span.attributes[names.OFF_ROUNDS], strict=True)
        )
        rounds_told = span.attributes[names.ROUNDS]
        assert rounds_told == span.attributes[names.STEPS] + off.get("slow", 0)
        assert span.status == OK
        assert not span.events_of(names.ROUND_EVENT)
    assert sum(s.attributes[names.DRAFT_TOKENS] for s in spans.values()) == (
        info.acceptance.num_draft_tokens
    )


async def test_what_was_asked_for_is_told(collector: Collector, socket_dir: Path) -> None:
    async with serving(answering(), socket_dir, **settings(collector)) as client:
        asked = request(temperature=0.5, top_p=0.9, top_k=7, seed=-3, max_tokens=50)
        asked.sampling.frequency_penalty, asked.sampling.presence_penalty = 0.5, -1.5
        asked.workload, asked.model = "code/v2", "toy"
        await client.generate(asked)
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    (span,) = collector.spans
    assert span.attributes[names.OPERATION] == "text_completion"
    assert span.attributes[names.PROVIDER] == "outrider"
    assert span.attributes[names.FREQUENCY_PENALTY] == 0.5
    assert span.attributes[names.PRESENCE_PENALTY] == -1.5
    assert span.attributes[names.TEMPERATURE] == 0.5
    assert span.attributes[names.TOP_P] == pytest.approx(0.9)
    assert span.attributes[names.TOP_K] == 7
    assert span.attributes[names.SEED] == -3
    assert span.attributes[names.MAX_TOKENS] == 50
    assert span.attributes[names.WORKLOAD] == "code/v2"
    assert span.attributes[names.REQUEST_MODEL] == "toy"
    assert span.attributes[names.RESPONSE_MODEL] == "toy"
    assert span.attributes[names.RULE] == "coupled"
    assert span.attributes[names.SAMPLING_RATIO] == 1.0
    assert span.attributes[names.VERIFIER] == info.instance_id
    assert span.resource["service.name"] == names.VERIFIER_SERVICE
    assert span.resource["service.instance.id"] == info.instance_id


async def test_each_proposer_has_its_part(collector: Collector, socket_dir: Path) -> None:
    core = answering(per_round=3)
    async with serving(core, socket_dir, proposers=Proposers(), **settings(collector)) as client:
        reply = await client.generate(request())
    (span,) = collector.spans
    (event,) = span.events_of(names.PROPOSER_EVENT)
    assert reply.finished is not None
    assert event.attributes[names.PROPOSER] == "fake"
    assert event.attributes[names.METHOD] == "ngram"
    for name in (names.STEPS, names.DRAFT_TOKENS, names.HISTOGRAM, names.PROPOSED_PER_POSITION):
        assert event.attributes[name] == span.attributes[name]
    assert event.attributes[names.STEPS] > 0


async def test_rounds_are_told_one_by_one(collector: Collector, socket_dir: Path) -> None:
    core = answering(per_round=3)
    async with serving(core, socket_dir, **settings(collector, "detailed")) as client:
        asked = request(stop=["STOP"])
        asked.include_rounds = True
        reply = await client.generate(asked)
    (span,) = collector.spans
    events = span.events_of(names.ROUND_EVENT)
    assert len(events) == len(reply.rounds) == span.attributes[names.ROUNDS]
    for event, round_ in zip(events, reply.rounds, strict=True):
        told = event.attributes
        assert told[names.ROUND_BASE] == round_.base
        assert told[names.ROUND_OFFERED] == round_.offered
        assert told[names.ROUND_VERIFIED] == round_.drafted
        assert told[names.ROUND_ACCEPTED] == round_.accepted
        assert told[names.ROUND_EMITTED] == round_.emitted
        assert told.get(names.PROPOSER, "") == round_.proposer
        assert told[names.RULE] == "coupled"
        assert told[names.ROUND_LOOKAHEAD_HIT] is False
        assert names.ROUND_DRAFT_TEXTS not in told
        assert names.ROUND_EMITTED_TEXTS not in told
    times = [event.time_ns for event in events]
    assert times == sorted(times)
    assert span.start_ns <= times[0] and times[-1] <= span.end_ns


async def test_texts_are_told_only_where_asked_for(collector: Collector, socket_dir: Path) -> None:
    options = settings(collector, "detailed", content=True)
    async with serving(answering(per_round=3), socket_dir, **options) as client:
        reply = await client.generate(request())
    (span,) = collector.spans
    texts = [e.attributes[names.ROUND_EMITTED_TEXTS] for e in span.events_of(names.ROUND_EVENT)]
    assert [len(t) for t in texts] == [
        e.attributes[names.ROUND_EMITTED] for e in span.events_of(names.ROUND_EVENT)
    ]
    # Parts of characters are no text by themselves.
    said = "".join(text for part in texts for text in part)
    assert " a dog " in said and " a dog " in reply.text


@pytest.mark.parametrize("level", ["summary", "detailed"])
async def test_without_content_no_text_leaves(
    collector: Collector, socket_dir: Path, level: str
) -> None:
    async with serving(answering(), socket_dir, **settings(collector, level)) as client:
        await client.generate(request("a secret prompt", stop=["STOP"]))
        with pytest.raises(grpc.aio.AioRpcError):
            await client.generate(request("a secret prompt", stop=["secret"] * 99))
    told = repr(collector.spans)
    for text in ("secret", "dog", "STOP", "über"):
        assert text not in told


async def test_a_client_that_leaves_is_no_error(collector: Collector, socket_dir: Path) -> None:
    core = answering(per_round=2)
    core.hold = True
    async with serving(core, socket_dir, **settings(collector)) as client:
        call = client.stub.Generate(request())
        core.step(3)
        received: list[int] = []
        while len(received) < 6:
            message = await call.read()
            received += message.delta.token_ids
        call.cancel()
        await until(lambda: bool(core.aborted))
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    (span,) = collector.spans
    assert span.attributes[names.FINISH_REASONS] == ["abort"]
    assert span.attributes[names.OUTPUT_TOKENS] == info.generation_tokens_total == 6
    assert span.attributes[names.ACCEPTED_TOKENS] == info.acceptance.num_accepted_draft_tokens == 3
    assert names.ERROR_TYPE not in span.attributes
    assert span.status == OK


async def test_an_engine_that_dies_is_an_error_with_what_was_emitted(
    collector: Collector, socket_dir: Path
) -> None:
    core = answering(per_round=2)
    core.hold = True
    async with serving(core, socket_dir, **settings(collector)) as client:
        call = client.stub.Generate(request())
        core.step(2)
        received: list[int] = []
        while len(received) < 4:
            received += (await call.read()).delta.token_ids
        core.die("out of memory")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    (span,) = collector.spans
    assert span.attributes[names.FINISH_REASONS] == ["error"]
    assert span.attributes[names.ERROR_TYPE] == "INTERNAL"
    assert span.attributes[names.OUTPUT_TOKENS] == 4
    assert span.status == ERROR
    assert span.message == ""


async def test_a_refused_request_has_an_error_and_no_sums(
    collector: Collector, socket_dir: Path
) -> None:
    async with serving(answering(), socket_dir, **settings(collector)) as client:
        asked = request(max_tokens=0)
        asked.workload = "code"
        for workload in ("code", "no label at all"):
            asked.workload = workload
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.generate(asked)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for span in collector.spans:
        assert span.attributes[names.ERROR_TYPE] == "INVALID_ARGUMENT"
        assert span.status == ERROR
        assert names.STEPS not in span.attributes
        assert names.OUTPUT_TOKENS not in span.attributes
        assert names.WORKLOAD not in span.attributes
    assert len(collector.spans) == 2


async def test_a_shutdown_tells_of_what_it_aborted(collector: Collector, socket_dir: Path) -> None:
    core = answering(per_round=2)
    core.hold = True
    async with serving(core, socket_dir, **settings(collector)) as client:
        reading = asyncio.create_task(client.generate(request()))
        await until(lambda: bool(core.submitted))
    with contextlib.suppress(grpc.aio.AioRpcError):
        await reading
    (span,) = collector.spans
    assert span.attributes[names.FINISH_REASONS] == ["abort"]
    assert span.attributes[names.OUTPUT_TOKENS] == 0


async def test_a_workload_that_is_no_label_is_refused_by_name(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        asked = request()
        asked.workload = "two words"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(asked)
    assert "workload 'two words' is not allowed" in (caught.value.details() or "")


@pytest.mark.parametrize(("flags", "told"), [("01", 1), ("00", 0)])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_callers_trace_goes_on(
    collector: Collector, socket_dir: Path, flags: str, told: int, ratio: float
) -> None:
    metadata = [("traceparent", f"00-{TRACE}-{CALLER}-{flags}"), ("tracestate", "a=1")]
    core = answering()
    options = settings(collector, sample_ratio=ratio)
    async with serving(core, socket_dir, **options) as client:
        call = client.stub.Generate(request(), metadata=metadata)
        back = dict(await call.initial_metadata())
        async for _ in call:
            pass
    assert len(collector.spans) == told
    for span in collector.spans:
        assert (span.trace_id, span.parent) == (TRACE, CALLER)
        # Where callers alone decide, nobody here knows what share is traced.
        assert (names.SAMPLING_RATIO in span.attributes) == (ratio > 0)
    (sent,) = core.submitted
    expected = "".join(f"00-{TRACE}-{span.span_id}-01" for span in collector.spans)
    assert sent.traceparent == expected == back.get("traceparent", "")


async def test_a_request_that_is_not_sampled_tells_nothing(
    collector: Collector, socket_dir: Path
) -> None:
    core = answering()
    async with serving(core, socket_dir, **settings(collector, sample_ratio=0.0)) as client:
        await client.generate(request())
    assert collector.spans == []
    assert core.submitted[0].traceparent == ""


async def test_more_rounds_than_are_told_count_all_the_same(
    collector: Collector, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_ROUNDS", 2)
    async with serving(answering(), socket_dir, **settings(collector, "detailed")) as client:
        reply = await client.generate(request())
    (span,) = collector.spans
    assert len(span.events_of(names.ROUND_EVENT)) == 2
    assert reply.finished is not None
    assert_equal(span, reply.finished)


async def test_a_collector_that_is_away_changes_no_answer(socket_dir: Path) -> None:
    away = TraceSettings(f"unix:{socket_dir}/nobody.sock", TraceLevel.DETAILED)
    async with serving(answering(), socket_dir, trace=away) as client:
        replies = [await client.generate(request()) for _ in range(3)]
    assert [reply.text for reply in replies] == [ANSWER] * 3


async def test_totals_are_metrics_too(collector: Collector, socket_dir: Path) -> None:
    core = answering(per_round=3)
    async with serving(core, socket_dir, proposers=Proposers(), **settings(collector)) as client:
        await client.generate(request())
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    (proposer,) = info.acceptance_by_proposer
    for name, value in (
        (names.METRIC_STEPS, proposer.num_spec_steps),
        (names.METRIC_DRAFT_TOKENS, proposer.num_draft_tokens),
        (names.METRIC_ACCEPTED_TOKENS, proposer.num_accepted_draft_tokens),
    ):
        assert collector.point(name, **{names.PROPOSER: "fake"}) == value > 0
    assert collector.point(names.METRIC_GENERATION_TOKENS) == info.generation_tokens_total
    assert collector.point(names.METRIC_PROMPT_TOKENS) == info.prompt_tokens_total
    for reason, rounds_ in info.off_rounds.items():
        assert (
            collector.point(names.METRIC_OFF_ROUNDS, **{names.ROUND_OFF_REASON: reason}) == rounds_
        )
    assert collector.point(names.METRIC_LOOKAHEAD_HITS, **{names.METHOD: "ngram"}) == 0
    assert collector.point(names.METRIC_LOOKAHEAD_MISSES, **{names.METHOD: "ngram"}) == 0
    assert collector.point(names.METRIC_LOOKAHEAD_NONE, **{names.METHOD: "ngram"}) == 0
    assert collector.point(names.METRIC_RUNNING) == 0
    assert collector.point(names.METRIC_WAITING) == 0
