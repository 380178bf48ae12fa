"""A real model of a few kilobytes, on the real engine: plain, speculating, and served over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb
from speculation.v1 import verifier_pb2_grpc

from outrider import LLM, RequestOutput, SamplingParams
from proposer_service.server import start as start_proposer
from proposer_service.settings import ProposerSettings
from tests.outrider.llm.conftest import SPECULATION
from tests.outrider.llm.test_llm import answers, drafted
from tests.verifier_service.serving import Reply, settings_for, until
from verifier_service.server import start as start_verifier

PROMPTS = [
    "the ferry leaves at noon and the ferry",
    "a crate of lemons and a crate of",
    "a crate of limes and a crate of lemons and a crate of",
]
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 24},
    {"temperature": 0.8, "max_tokens": 24, "seed": 3, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "max_tokens": 24, "seed": -9, "repetition_penalty": 1.1, "top_k": 50},
]
ENGINE: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256}


@pytest.fixture(scope="module")
def speculating(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), speculative_config=SPECULATION, **ENGINE) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), **ENGINE) as llm:
        yield llm


def run(llm: LLM, fields: dict[str, Any], **options: Any) -> list[RequestOutput]:
    return llm.generate(PROMPTS, SamplingParams(**fields), use_tqdm=False, **options)


@pytest.mark.parametrize("fields", FIELDS, ids=["greedy", "top_p", "penalty"])
def test_speculation_changes_no_token(plain: LLM, speculating: LLM, fields: dict[str, Any]) -> None:
    expected = answers(run(plain, fields))
    fast = run(speculating, fields)
    assert answers(fast) == expected and drafted(fast) > 0
    off = run(speculating, fields, speculative_decoding={"enabled": False})
    assert answers(off) == expected and drafted(off) == 0


def test_a_draft_model_changes_no_token_and_agrees_with_itself(
    plain: LLM, tiny_folder: Path
) -> None:
    model = {"method": "draft_model", "model": str(tiny_folder), "num_speculative_tokens": 3}
    every = {"enable_adaptive_verification": False}
    options = {**ENGINE, "draft_kv_cache_memory_bytes": 1 << 20}
    with LLM(str(tiny_folder), speculative_config={**model, **every}, **options) as llm:
        for fields in FIELDS:
            outputs = run(llm, fields)
            assert answers(outputs) == answers(run(plain, fields))
            assert drafted(outputs) > 0
        # The target with the request's own noise: nothing that it drafts is refused.
        for fields in (FIELDS[0], {"temperature": 1.0, "top_p": 0.9, "max_tokens": 24, "seed": 5}):
            for output in run(llm, fields):
                metrics = output.outputs[0].spec_decode_metrics
                assert metrics is not None
                assert metrics.num_accepted_draft_tokens == metrics.num_draft_tokens > 0


async def test_a_server_answers_the_same(plain: LLM, speculating: LLM, socket_dir: Path) -> None:
    backend = plain._engine.backend
    server = await start_verifier(
        settings_for(f"unix:{socket_dir}/v.sock", num_speculative_tokens=0),
        core=_Shared(backend.core),
        text=backend.text,
        defaults=backend.defaults,
    )
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            for fields in FIELDS:
                offline = await asyncio.to_thread(run, speculating, fields)
                for prompt, output in zip(PROMPTS, offline, strict=True):
                    reply = Reply()
                    request = pb.GenerateRequest(text=prompt, sampling=pb.SamplingParams(**fields))
                    async for message in stub.Generate(request, timeout=60):
                        reply.add(message)
                    assert reply.token_ids == output.outputs[0].token_ids
                    assert reply.text == output.outputs[0].text
    finally:
        await server.stop(0)


class _Shared:
    """A core that its server may not shut down."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def shutdown(self) -> None:
        return


async def test_running_proposers_are_used(plain: LLM, tiny_folder: Path, socket_dir: Path) -> None:
    proposer = await start_proposer(
        ProposerSettings(
            listen=f"unix:{socket_dir}/p.sock",
            method="ngram",
            prompt_lookup_min=1,
            prompt_lookup_max=3,
            lookahead=False,
        )
    )
    llm = await asyncio.to_thread(
        LLM,
        str(tiny_folder),
        proposers=[proposer.address],
        num_speculative_tokens=3,
        enable_adaptive_verification=False,
        draft_deadline_ms=30_000.0,
        **ENGINE,
    )
    try:
        states = llm._engine.backend.proposers.states
        await until(lambda: states()[0].to_proto().state == "connected")
        expected = await asyncio.to_thread(run, plain, FIELDS[1])
        fast = await asyncio.to_thread(run, llm, FIELDS[1])
        assert answers(fast) == answers(expected) and drafted(fast) > 0
    finally:
        await asyncio.to_thread(llm.shutdown)
        await proposer.stop()


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_other_rules_are_reproducible_with_a_seed(tiny_folder: Path, rule: str) -> None:
    # What suffix knows of other requests depends on when they came.
    ngram, suffix = (entry | {"rejection_sample_method": rule} for entry in SPECULATION)
    config = [ngram, suffix | {"suffix_decoding_max_cached_requests": 0}]

    def once() -> Any:
        with LLM(str(tiny_folder), speculative_config=config, **ENGINE) as llm:
            outputs = run(llm, FIELDS[1])
            assert drafted(outputs) > 0
            return answers(outputs)

    assert once() == once()
