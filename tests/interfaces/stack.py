"""All of Outrider but a model in one process: gateway, verifier, scheduler, toy target, drafts.

The toy target writes: it prefers what follows the last token in a text it knows, so that answers
are words, stop strings occur and drafts are accepted, sometimes.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
from speculation.v1 import verifier_pb2_grpc

from gateway.server import start as start_gateway
from gateway.settings import GatewaySettings
from tests.toy_engine import ToySource
from tests.verifier_service.serving import settings_for
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from tests.writer import KNOWN, MAX_MODEL_LEN, MODEL, Writer, WriterEngine
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.messages import NoDrafts, SequenceView
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState, ProposerState
from verifier_service.scheduler import Scheduler
from verifier_service.server import start as start_verifier
from verifier_service.text import Text

__all__ = ["KNOWN", "MAX_MODEL_LEN", "MODEL", "Stack", "Writer", "WriterEngine", "stack"]

K = 4


@dataclass(frozen=True)
class Attached:
    """Connected proposers of these names."""

    names: Sequence[str]

    def states(self) -> list[ProposerState]:
        return [ProposerState(n, "ngram", f"unix:/{n}", LinkState.CONNECTED) for n in self.names]


@dataclass(frozen=True)
class Stack:
    """Clients of one running stack; `verifier` is a stub of the gRPC service at `address`."""

    client: openai.AsyncOpenAI
    http: httpx.AsyncClient
    verifier: Any
    address: str
    engine: WriterEngine
    text: Text

    def ids(self, text: str) -> list[int]:
        return self.text.encode(text, add_special_tokens=False)


@asynccontextmanager
async def stack(
    folder: Path,
    *,
    k: int = K,
    attached: Sequence[str] = (),
    pool: ProposerPool | None = None,
    gateway_options: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Stack]:
    """A stack that speculates with K = 4, or without proposers where `k` is 0.

    `attached` are the proposers that the verifier says it has; `pool` has real ones, instead of
    guesses in process. `changes` are of its settings, `gateway_options` of the gateway's.
    """
    text = Text(byte_level_tokenizer())
    toy = Writer.of(KNOWN, len(byte_level_tokenizer()))
    settings = settings_for(f"unix:{folder}/v.sock", num_speculative_tokens=k, **changes)
    engine = WriterEngine(toy, num_blocks=512, block_size=8, rule=settings.rejection_rule)
    controller = Controller(
        settings.draft_ceiling,
        CostTable.from_profile({1: 1e-3, 2: 1.1e-3, 5: 1.2e-3}, 64),
        adaptive=False,
    )
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=k,
        num_prediction_tokens=settings.draft_ceiling,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        max_waiting=64,
    )
    core = Core(
        engine,
        scheduler,
        controller,
        pool or (ToySource(_mostly_right(toy)) if k else NoDrafts()),
        max_waiting=64,
        speculative=k > 0,
    )
    server = await start_verifier(
        settings, core=core, text=text, proposers=pool or Attached(attached)
    )
    gateway = await start_gateway(
        GatewaySettings(
            port=0,
            verifiers=(server.address,),
            poll_interval_s=0.05,
            connect_timeout_s=5.0,
            drain_timeout_s=0.0,
            **(gateway_options or {}),
        )
    )
    http = httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False)
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=False),
    )
    async with http, client, grpc.aio.insecure_channel(server.address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            yield Stack(client, http, stub, server.address, engine, text)
        finally:
            await gateway.stop()
            await server.stop(0)


def _mostly_right(toy: Writer) -> Any:
    """Greedy guesses, every fifth of them wrong."""

    def guess(view: SequenceView, rng: random.Random) -> list[int]:
        ids = list(view.ids)
        for _ in range(view.max_draft_tokens):
            right = int(toy.logits_after(ids).argmax())
            ids.append((right + 1) % toy.vocab_size if rng.randrange(5) == 0 else right)
        return ids[len(view.ids) :]

    return guess
