"""The core's thread: submit, abort, failure, shutdown."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from tests.toy_engine import ToyEngine, ToySource, random_guess
from verifier_service.controller import Controller
from verifier_service.core import QueueFullError
from verifier_service.costs import CostTable
from verifier_service.engines.base import no_more, nobody
from verifier_service.loop import Core
from verifier_service.messages import FinishReason, Output, Request, Sampling
from verifier_service.scheduler import Scheduler

_WAIT_S = 30.0


@dataclass
class Answer:
    """A sink that knows when it is complete."""

    outputs: list[Output] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        self.began.set()
        if output.finish_reason or output.error:
            self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    def wait(self) -> Answer:
        assert self.done.wait(_WAIT_S)
        return self


class GatedEngine(ToyEngine):
    """Stops before a step until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def run(self, chunks, *, goes_on=None, sure=False, joining=nobody, meanwhile=no_more):  # type: ignore[no-untyped-def]
        self.reached.set()
        assert self.gate.wait(_WAIT_S)
        return super().run(chunks, meanwhile=meanwhile)


def make(engine: ToyEngine, *, k: int = 4, max_waiting: int = 10) -> tuple[Core, ToySource]:
    source = ToySource(random_guess)
    controller = Controller(k, CostTable.from_profile({1: 0.01, 33: 0.011}), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=k,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=max_waiting,
    )
    core = Core(engine, scheduler, controller, source, max_waiting=max_waiting, speculative=k > 0)
    return core, source


def request(name: str, max_tokens: int = 12, seed: int = 1) -> Request:
    return Request(name, [1, 2], Sampling(temperature=1.0, seed=seed, max_tokens=max_tokens))


def test_answers_arrive_and_equal_plain_ones() -> None:
    speculative, _ = make(ToyEngine())
    plain, _ = make(ToyEngine(), k=0)
    answers = [(Answer(), Answer()) for _ in range(6)]
    for i, (one, other) in enumerate(answers):
        speculative.submit(request(f"r{i}", seed=i), one)
        plain.submit(request(f"r{i}", seed=i), other)
    for one, other in answers:
        assert one.wait().tokens == other.wait().tokens
        assert one.outputs[-1].finish_reason is FinishReason.LENGTH
        assert one.outputs[0].queue_ns > 0
    speculative.shutdown()
    plain.shutdown()


def test_all_is_free_and_told_when_requests_end() -> None:
    core, source = make(ToyEngine())
    answer = Answer()
    core.submit(request("a"), answer)
    answer.wait()
    core.shutdown()
    assert source.closed == [(1, True)]
    stats = core.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.kv_blocks_free == stats.kv_blocks_total


def test_an_aborted_request_gets_no_further_output() -> None:
    engine = GatedEngine()
    core, _ = make(engine)
    engine.gate.clear()
    gone, stays = Answer(), Answer()
    core.submit(request("gone", 200), gone)
    assert engine.reached.wait(_WAIT_S)
    core.submit(request("stays"), stays)
    core.abort("gone")
    engine.gate.set()
    stays.wait()
    assert sum(len(output.token_ids) for output in gone.outputs) < 200
    assert not gone.done.is_set()
    core.shutdown()


def test_a_failing_engine_fails_its_requests_and_takes_no_more() -> None:
    engine = ToyEngine()
    engine.fail_at = 2
    core, source = make(engine)
    answer = Answer()
    core.submit(request("a"), answer)
    assert "told to fail" in answer.wait().outputs[-1].error
    core.shutdown()
    assert "RuntimeError" in core.failure
    with pytest.raises(RuntimeError, match="told to fail"):
        core.submit(request("b"), Answer())
    assert source.ended
    assert engine.closed


def test_shutdown_fails_what_is_left() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, source = make(engine)
    answer = Answer()
    core.submit(request("a", 200), answer)
    assert engine.reached.wait(_WAIT_S)
    stopping = threading.Thread(target=core.shutdown)
    stopping.start()
    engine.gate.set()
    stopping.join(_WAIT_S)
    assert not stopping.is_alive()
    assert answer.wait().outputs[-1].error == "the verifier is shutting down"
    assert core.failure == ""
    core.shutdown()
    assert source.ended
    with pytest.raises(RuntimeError, match="shut down"):
        core.submit(request("b"), Answer())


def test_the_queue_is_bounded_before_the_thread_sees_it() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine, max_waiting=2)
    core.submit(request("a"), Answer())
    assert engine.reached.wait(_WAIT_S)
    core.submit(request("b"), Answer())
    core.submit(request("c"), Answer())
    with pytest.raises(QueueFullError, match="the queue is full"):
        core.submit(request("d"), Answer())
    engine.gate.set()
    core.shutdown()


def test_a_request_id_in_use_is_an_error_to_its_sender_only() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine)
    first, second = Answer(), Answer()
    core.submit(request("a"), first)
    assert engine.reached.wait(_WAIT_S)
    core.submit(request("a"), second)
    engine.gate.set()
    assert "already running" in second.wait().outputs[-1].error
    assert len(first.wait().tokens) == 12
    core.shutdown()


def test_speculation_state_names_its_reason() -> None:
    core, _ = make(ToyEngine(), k=0)
    assert core.stats().speculation_state == "off: not configured"
    core.shutdown()
    core, _ = make(ToyEngine())
    assert core.stats().speculation_state == "on"
    core.shutdown()
