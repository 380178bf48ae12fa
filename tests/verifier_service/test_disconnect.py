"""Clients that go away: the real server and core over the toy engine, counted in steps."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.toy_engine import ToyEngine, ToySource, random_guess
from tests.verifier_service.serving import serving, until
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import (
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.loop import Core
from verifier_service.scheduler import Scheduler

_WAIT_S = 30.0
# Told apart by its first prompt token.
GONE, STAYS = 1, 2


class SteppedEngine(ToyEngine):
    """Runs a step each time the test allows one; knows which requests each step served."""

    def __init__(self) -> None:
        super().__init__(num_blocks=200)
        self.allowed = threading.Semaphore(0)
        self.at_step = 0
        self.served: list[set[int]] = []

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        self.at_step += 1
        assert self.allowed.acquire(timeout=_WAIT_S)
        self.served.append({chunk.sequence_ids[0] for chunk in chunks})
        return super().run(chunks, meanwhile=meanwhile)

    def allow(self, steps: int) -> None:
        for _ in range(steps):
            self.allowed.release()


class NotingCore(Core):
    """Knows how many aborts were asked for, run or not."""

    aborts = 0

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.aborts += 1


def make(engine: SteppedEngine, *, running: int = 4, waiting: int = 10) -> NotingCore:
    controller = Controller(4, CostTable.from_profile({1: 0.01, 33: 0.011}), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=running,
        max_num_batched_tokens=64,
        max_waiting=waiting,
    )
    source = ToySource(random_guess)
    return NotingCore(engine, scheduler, controller, source, max_waiting=waiting, speculative=True)


def generate(first: int, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[first, 0]),
        sampling=pb.SamplingParams(seed=1, max_tokens=max_tokens),
        detokenize=False,
    )


async def test_a_client_that_leaves_costs_one_step_more_at_most(socket_dir: Path) -> None:
    engine = SteppedEngine()
    core = make(engine)
    async with serving(core, socket_dir) as client:  # type: ignore[arg-type]
        gone = client.stub.Generate(generate(GONE, 200))
        stays = client.stub.Generate(generate(STAYS, 10))
        await gone.initial_metadata()
        await stays.initial_metadata()
        engine.allow(2)
        await until(lambda: engine.at_step == 3)
        gone.cancel()
        # The step at hand holds it still; nothing behind it may.
        await until(lambda: core.aborts == 1)
        engine.allow(100)
        async for _ in stays:
            pass
        assert GONE in engine.served[1]
        assert all(GONE not in step for step in engine.served[3:])
        await until(lambda: core.stats().running == 0)
        assert core.stats().kv_blocks_free == core.stats().kv_blocks_total


async def test_a_deadline_that_passes_in_the_queue_drops_the_request_unrun(
    socket_dir: Path,
) -> None:
    engine = SteppedEngine()
    core = make(engine, running=1)
    async with serving(core, socket_dir) as client:  # type: ignore[arg-type]
        stays = client.stub.Generate(generate(STAYS, 30))
        await stays.initial_metadata()
        await until(lambda: engine.at_step == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in client.stub.Generate(generate(GONE, 30), timeout=0.3):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: core.aborts == 1)
        engine.allow(100)
        async for _ in stays:
            pass
        await until(lambda: core.stats().running == 0)
        assert all(GONE not in step for step in engine.served)
        assert (core.stats().waiting, core.stats().running) == (0, 0)
        assert core.stats().kv_blocks_free == core.stats().kv_blocks_total
        info = await client.stub.GetInfo(pb.GetInfoRequest())
        assert dict(info.finished_requests) == {"abort": 1, "length": 1}


async def test_a_full_queue_refuses_at_once_and_takes_again_when_there_is_room(
    socket_dir: Path,
) -> None:
    engine = SteppedEngine()
    core = make(engine, running=1, waiting=1)
    async with serving(core, socket_dir, max_waiting_requests=1) as client:  # type: ignore[arg-type]
        running = client.stub.Generate(generate(STAYS, 3))
        await running.initial_metadata()
        await until(lambda: engine.at_step == 1)
        queued = client.stub.Generate(generate(STAYS, 3))
        await queued.initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in client.stub.Generate(generate(GONE, 3)):
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most 1" in (caught.value.details() or "")
        engine.allow(100)
        for call in running, queued:
            async for _ in call:
                pass
        async for _ in client.stub.Generate(generate(GONE, 3)):
            pass
        assert any(GONE in step for step in engine.served)
