"""The card's busy seconds from the engine's account to what operators read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.toy_engine import ToyEngine
from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_torch_engine import GREEDY, engine, llama
from tests.verifier_service.serving import answering, serving
from tests.verifier_service.test_loop import Answer, make, request
from verifier_service.core import CoreStats
from verifier_service.engines import torch_engine
from verifier_service.engines.base import Chunk
from verifier_service.engines.device_time import DeviceTime, Mark

__all__ = ["llama"]


@pytest.mark.parametrize("busy", [None, 0.0, 2.5])
async def test_info_has_it_where_a_device_works(busy: float | None, socket_dir: Path) -> None:
    core = answering()
    core.core_stats = CoreStats(device_busy_s=busy)
    async with serving(core, socket_dir) as client:
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert info.HasField("device_busy_seconds_total") is (busy is not None)
    assert info.device_busy_seconds_total == (busy or 0.0)


def test_the_core_asks_its_engine() -> None:
    target = ToyEngine()
    target.busy_s = 1.5
    core, _ = make(target)
    try:
        core.submit(request("a"), answer := Answer())
        answer.wait()
        assert core.stats().device_busy_s == 1.5
    finally:
        core.shutdown()


@dataclass
class Tick:
    """A mark that has passed when it is recorded, a millisecond after the one before."""

    clock: Iterator[int]
    at: int = -1

    def record(self) -> None:
        self.at = next(self.clock)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Mark) -> float:
        assert isinstance(end, Tick)
        return end.at - self.at


def test_the_engine_counts_replays_and_what_it_launches_itself(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count()
    time = DeviceTime(lambda: Tick(clock))
    monkeypatch.setattr(torch_engine, "device_time", lambda device: time)
    target = paged_engine(llama, monkeypatch, max_captured_prefill_tokens=0)

    def launches(*chunks: Chunk) -> int:
        before = target.device_busy_s()
        target.run(list(chunks))
        after = target.device_busy_s()
        assert before is not None and after is not None
        return round((after - before) * 1000)

    prompt = Chunk([5, 17, 23], 0, [0], 0, False, GREEDY)
    decode = Chunk([41], 3, [0], 0, True, GREEDY)
    assert launches(prompt) == 1, "what is launched operator by operator is one"
    assert launches(decode) == 2, "the captured forward and the captured choice"


def test_a_processor_tells_nothing(llama: Path) -> None:
    target = engine(llama)
    assert target.device_busy_s() is None
