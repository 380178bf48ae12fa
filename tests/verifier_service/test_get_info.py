"""GetInfo: totals, limits, states; and reflection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import (
    ANSWER,
    answering,
    encode,
    request,
    serving,
)
from verifier_service.core import CoreStats
from verifier_service.proposer_state import LinkState, ProposerState


async def test_totals_are_the_sum_over_requests(socket_dir: Path) -> None:
    core = FakeCore(
        lambda r: rounds(encode(ANSWER), per_round=1 + len(core.submitted) % 5, off_reason="slow")
    )
    async with serving(core, socket_dir) as client:
        replies = await asyncio.gather(
            *(client.generate(request(stop=["STOP"] if i % 2 else [])) for i in range(12))
        )
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    ends = [reply.finished for reply in replies if reply.finished is not None]
    assert info.generation_tokens_total == sum(e.completion_tokens for e in ends)
    assert info.prompt_tokens_total == sum(e.prompt_tokens for e in ends)
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert getattr(info.acceptance, name) == sum(getattr(e.acceptance, name) for e in ends)
    histograms = zip(*(e.acceptance.acceptance_histogram for e in ends), strict=True)
    assert list(info.acceptance.acceptance_histogram) == [sum(column) for column in histograms]
    assert info.off_rounds["slow"] > 0
    assert dict(info.finished_requests) == {"stop": 6, "length": 6}


async def test_info_tells_model_limits_proposers_and_state(socket_dir: Path) -> None:
    class Proposers:
        def states(self) -> list[ProposerState]:
            return [
                ProposerState(
                    "ngram", "ngram", "unix:/n", LinkState.CONNECTED, dropped={"stale": 2}
                )
            ]

    core = answering()
    core.core_stats = CoreStats(
        running=1,
        waiting=2,
        kv_blocks_total=9,
        kv_blocks_free=8,
        prefix_cache_queries=100,
        prefix_cache_hits=64,
        preemptions=3,
        speculation_state="on",
        step_cost_ms={1: 2.5},
    )
    async with serving(core, socket_dir, proposers=Proposers()) as client:
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert (info.model, info.engine, info.dtype) == ("toy", "fake", "float32")
    assert (info.max_model_len, info.vocabulary_size) == (512, 400)
    assert len(info.vocabulary_fingerprint) >= 16 and info.instance_id and info.version
    assert info.num_speculative_tokens == 4
    assert info.rejection_rule == types_pb2.REJECTION_RULE_COUPLED
    assert info.proposers[0].state == "connected" and info.proposers[0].dropped["stale"] == 2
    assert (info.running_requests, info.waiting_requests) == (1, 2)
    assert (info.kv_blocks_total, info.kv_blocks_free) == (9, 8)
    assert (info.prefix_cache_queries_total, info.prefix_cache_hits_total) == (100, 64)
    assert info.preemptions_total == 3
    assert info.speculation_state == "on" and info.step_cost_ms[1] == 2.5


async def test_reflection_lists_the_services(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {s.name async for m in call for s in m.list_services_response.service}
    assert {"speculation.v1.VerifierService", "grpc.health.v1.Health"} <= names
