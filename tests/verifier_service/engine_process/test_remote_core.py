"""The core as its edge sees it, joined to a real one in this process."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.toy_engine import ToyEngine
from tests.verifier_service.engine_process.joined import WAIT_S, Answer, Far, join, joined
from tests.verifier_service.engine_process.toy_core import build
from tests.verifier_service.grammar.toy_grammar import constraint
from tests.verifier_service.serving import settings_for
from tests.verifier_service.test_loop import GatedEngine, make
from verifier_service.core import CoreStats, EngineCore, QueueFullError
from verifier_service.engine_process import wire
from verifier_service.messages import FinishReason, NoDrafts, Output, OutputSink, Request, Sampling
from verifier_service.prediction import PredictedIds
from verifier_service.proposer_state import LinkState, ProposerState

SETTINGS = settings_for("unix:unused", max_num_seqs=8)


def request(name: str, max_tokens: int = 12, seed: int = 1) -> Request:
    return Request(name, [1, 2], Sampling(temperature=1.0, seed=seed, max_tokens=max_tokens))


def wait_for(remote: EngineCore, condition: object) -> CoreStats:
    """Stats that `condition` holds for; moments come without being asked for."""
    deadline = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition(remote.stats()):  # type: ignore[operator]
            return remote.stats()
        deadline.wait(0.01)
    raise AssertionError(remote.stats())


def test_answers_are_those_of_a_core_here() -> None:
    here = build(SETTINGS, NoDrafts())
    prediction = [40, 41, 42, 43, 44]
    with joined(build(SETTINGS, NoDrafts())) as remote:
        assert remote.model == here.model
        for i in range(4):
            one, other = Answer(), Answer()
            for core, sink in ((here, one), (remote, other)):
                asked = request(f"r{i}", 24, seed=i)
                asked.sampling = replace(asked.sampling, logprobs=2, prompt_logprobs=i % 2)
                asked.prediction = PredictedIds(prediction)
                core.submit(asked, sink)
            assert other.wait().tokens == one.wait().tokens
            # An approximation on the float's way is none: the numbers are the same ones.
            told = [entry for output in other.outputs for entry in output.logprobs]
            assert told == [entry for output in one.outputs for entry in output.logprobs]
            assert other.outputs[0].prompt_logprobs == one.outputs[0].prompt_logprobs
            assert other.outputs[-1].finish_reason is FinishReason.LENGTH
    here.shutdown()


def test_stats_and_states_follow_what_happens() -> None:
    proposer = ProposerState("ngram", "ngram", "unix:/p", LinkState.CONNECTING)
    core, _ = make(ToyEngine())
    remote, far, _ = join(core, states=[proposer])
    assert list(remote.states()) == [proposer]
    total = remote.stats().kv_blocks_total
    assert total == core.stats().kv_blocks_total > 0
    far.states[0] = replace(proposer, state=LinkState.CONNECTED)
    answer = Answer()
    remote.submit(request("a"), answer)
    answer.wait()
    stats = wait_for(remote, lambda s: sum(s.step_times.prefill.counts) == 1 and not s.running)
    assert stats.kv_blocks_free == total
    assert remote.states()[0].state is LinkState.CONNECTED
    remote.shutdown()


def test_all_outputs_of_a_step_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = GatedEngine()
    core, _ = make(engine, k=0)
    sizes: list[int] = []
    decode = wire.decode_report

    def counted(data: bytes) -> wire.Report:
        report = decode(data)
        sizes.append(len(report.outputs))
        return report

    monkeypatch.setattr(wire, "decode_report", counted)
    remote, _, _ = join(core)
    engine.gate.clear()
    answers = [Answer() for _ in range(4)]
    for number, answer in enumerate(answers):
        remote.submit(request(str(number), 3), answer)
    assert engine.reached.wait(WAIT_S)
    engine.gate.set()
    for answer in answers:
        answer.wait()
    remote.shutdown()
    steps = len(engine.steps)
    assert sum(sizes) == 12
    # Never more messages with outputs than steps, and the last ones are of several requests.
    assert sum(size > 0 for size in sizes) <= steps
    assert max(sizes) >= 2


def test_an_aborted_request_gets_no_further_output_and_is_forgotten() -> None:
    engine = GatedEngine()
    core, _ = make(engine)
    with joined(core) as remote:
        engine.gate.clear()
        gone, stays = Answer(), Answer()
        remote.submit(request("gone", 200), gone)
        assert engine.reached.wait(WAIT_S)
        remote.submit(request("stays"), stays)
        remote.abort("gone")
        remote.abort("unknown")
        engine.gate.set()
        stays.wait()
        assert not gone.outputs
        assert not (remote._sinks or remote._names or remote._numbers)
        # The id is free again.
        again = Answer()
        remote.submit(request("gone"), again)
        assert len(again.wait().tokens) == 12


def test_a_request_id_in_use_is_an_error_to_its_sender_only() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine)
    with joined(core) as remote:
        first, second = Answer(), Answer()
        remote.submit(request("a"), first)
        assert engine.reached.wait(WAIT_S)
        remote.submit(request("a"), second)
        engine.gate.set()
        assert "already running" in second.wait().outputs[-1].error
        assert len(first.wait().tokens) == 12


def test_the_queue_is_bounded_at_once_and_opens_again() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine, max_waiting=2)
    with joined(core, max_waiting=2) as remote:
        answers = [Answer() for _ in range(3)]
        remote.submit(request("a"), answers[0])
        assert engine.reached.wait(WAIT_S)
        remote.submit(request("b"), answers[1])
        remote.submit(request("c"), answers[2])
        with pytest.raises(QueueFullError, match="2 requests are waiting: the queue is full"):
            remote.submit(request("d"), Answer())
        engine.gate.set()
        for answer in answers:
            answer.wait()
        # No moment has to have come meanwhile: the core is asked.
        last = Answer()
        remote.submit(request("e"), last)
        last.wait()


def test_a_queue_that_only_seems_full_takes_requests() -> None:
    core, _ = make(ToyEngine(), max_waiting=1)
    with joined(core, max_waiting=1) as remote:
        for number in range(20):
            answer = Answer()
            remote.submit(request(str(number), 1), answer)
            assert answer.wait().tokens


def test_a_constraint_that_cannot_travel_is_refused_at_once() -> None:
    core, _ = make(ToyEngine())
    with joined(core) as remote:
        asked = request("a")
        asked.constraint = constraint("a+")
        with pytest.raises(ValueError, match="its structure can"):
            remote.submit(asked, Answer())
        assert not remote._sinks


def test_a_failing_engine_fails_its_requests_and_takes_no_more() -> None:
    engine = ToyEngine()
    engine.fail_at = 2
    core, source = make(engine)
    with joined(core) as remote:
        answer = Answer()
        failures: list[str] = []

        def sink(output: Output) -> None:
            failures.append(remote.failure)
            answer(output)

        remote.submit(request("a"), sink)
        assert "told to fail" in answer.wait().outputs[-1].error
        # Whoever is told of the failure finds the engine dead.
        assert "RuntimeError" in failures[-1]
        with pytest.raises(RuntimeError, match="told to fail"):
            remote.submit(request("b"), Answer())
    assert source.ended and engine.closed


def test_shutdown_fails_what_is_left() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, source = make(engine)
    remote, _, _ = join(core)
    answer = Answer()
    remote.submit(request("a", 200), answer)
    assert engine.reached.wait(WAIT_S)
    stopping = threading.Thread(target=remote.shutdown)
    stopping.start()
    engine.gate.set()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert answer.wait().outputs[-1].error == "the verifier is shutting down"
    assert remote.failure == ""
    remote.shutdown()
    assert source.ended
    with pytest.raises(RuntimeError, match="shut down"):
        remote.submit(request("b"), Answer())


def test_a_process_that_dies_fails_everything_in_words() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine)
    remote, far, _ = join(core)
    answers = [Answer() for _ in range(3)]
    for number, answer in enumerate(answers):
        remote.submit(request(str(number), 200), answer)
    assert engine.reached.wait(WAIT_S)
    _cut(far)
    for answer in answers:
        assert "process was killed by SIGKILL" in answer.wait().outputs[-1].error
    assert remote.failure == "the engine's process was killed by SIGKILL"
    with pytest.raises(RuntimeError, match="SIGKILL"):
        remote.submit(request("late"), Answer())
    remote.abort("0")
    engine.gate.set()
    remote.shutdown()


def test_the_far_side_ends_when_the_edge_is_gone() -> None:
    engine = ToyEngine()
    core, source = make(engine)
    _, far, process = join(core)
    _cut_connection(process.connection.fileno())
    far.thread.join(WAIT_S)
    assert not far.thread.is_alive()
    assert source.ended and engine.closed


def test_words_that_cannot_be_read_end_the_process_and_fail_its_requests() -> None:
    engine = GatedEngine()
    engine.gate.clear()
    core, _ = make(engine)
    remote, far, process = join(core)
    answer = Answer()
    remote.submit(request("a"), answer)
    assert engine.reached.wait(WAIT_S)
    far.connection.send_bytes(b"no pickle")
    assert "cannot be read" in answer.wait().outputs[-1].error
    assert process.killed
    engine.gate.set()
    remote.shutdown()


def test_a_sink_that_fails_harms_nobody_else() -> None:
    core, _ = make(ToyEngine())
    with joined(core) as remote:

        def broken(output: Output) -> None:
            raise ValueError("a bug of one receiver")

        sinks: list[OutputSink] = [broken, Answer()]
        for number, sink in enumerate(sinks):
            remote.submit(request(str(number)), sink)
        assert isinstance(sinks[1], Answer)
        assert len(sinks[1].wait().tokens) == 12
        assert remote.failure == ""


def _cut(far: Far) -> None:
    """As if the process were gone: its end of the channel is closed, whoever reads or writes."""
    _cut_connection(far.connection.fileno())


def _cut_connection(descriptor: int) -> None:
    import socket

    with socket.socket(fileno=socket.dup(descriptor)) as half:
        half.shutdown(socket.SHUT_RDWR)
