"""How calls and the whole LLM end: Ctrl-C, shutdown from elsewhere, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.errors import OperationError
from tests.fakes import FakeCore
from tests.outrider.llm.conftest import SPECULATION, MakeLLM
from tests.verifier_service.serving import ANSWER, answering

WAIT_S = 20.0
PARAMS = SamplingParams(max_tokens=64, temperature=0)


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread does; fails after WAIT_S seconds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.002)


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Act on a thread of its own once the condition holds."""

    def wait() -> None:
        until(condition)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def held(text: str = ANSWER) -> FakeCore:
    core = answering(text)
    core.hold = True
    return core


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_aborts_the_call_and_leaves_the_engine_usable(
    scripted_llm: MakeLLM, ctrl_c: None
) -> None:
    core = held()
    llm = scripted_llm(core, speculative_config=SPECULATION)
    interrupter = when(
        lambda: len(core.submitted) == 3, lambda: os.kill(os.getpid(), signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], PARAMS, use_tqdm=False)
    interrupter.join()
    # It waits for that: nothing of the call is in the engine when the exception arrives.
    assert sorted(core.aborted) == sorted(request.request_id for request in core.submitted)
    core.step(100)
    (output,) = llm.generate("d", PARAMS, use_tqdm=False)
    assert output.outputs[0].text == ANSWER


def test_shutdown_ends_running_calls_with_what_there_is(scripted_llm: MakeLLM) -> None:
    core = held()
    llm = scripted_llm(core, speculative_config=SPECULATION)
    ended: list[Any] = []
    caller = threading.Thread(
        target=lambda: ended.extend(llm.generate(["a", "b"], PARAMS, use_tqdm=False))
    )
    caller.start()
    until(lambda: len(core.submitted) == 2)
    core.step()
    ledger = llm._engine.generations.ledger
    until(lambda: ledger.generation_tokens == 6)
    llm.shutdown()
    caller.join(WAIT_S)
    assert [output.outputs[0].finish_reason for output in ended] == ["abort", "abort"]
    assert all(ANSWER.startswith(output.outputs[0].text) for output in ended)
    assert [len(output.outputs[0].token_ids) for output in ended] == [3, 3]
    assert core.stopped.is_set()


def test_prompts_that_wait_when_it_shuts_down_are_an_error(
    scripted_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.llm_engine._IN_FLIGHT", 1)
    core = held()
    llm = scripted_llm(core, speculative_config=SPECULATION)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            llm.generate(["a", "b"], PARAMS, use_tqdm=False)
        except OperationError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    until(lambda: core.submitted)
    llm.shutdown()
    caller.join(WAIT_S)
    assert [str(error) for error in errors] == [
        "prompts[1]: no request is taken: the LLM is shut down"
    ]
    assert len(core.submitted) == 1


def test_after_shutdown_calls_are_refused_and_shutdown_may_be_repeated(toy_llm: MakeLLM) -> None:
    llm = toy_llm()
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(OperationError, match="the LLM is shut down"):
        llm.generate("a", PARAMS)
    assert repr(llm).endswith(", shut down)")


def own_threads() -> set[threading.Thread]:
    # One of tqdm's, which outlives its bars.
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}


def children() -> set[str]:
    """Process ids of this process's children."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_nothing_is_left_after_the_with_block(toy_llm: MakeLLM) -> None:
    threads, processes = own_threads(), children()
    with toy_llm(speculative_config=SPECULATION) as llm:
        constrained = SamplingParams(max_tokens=8, structured_outputs={"choice": ["cat", "dog"]})
        (output,) = llm.generate("the ", constrained, use_tqdm=False)
        assert output.outputs[0].text in ("cat", "dog")
        assert own_threads() > threads
    until(lambda: own_threads() <= threads and children() <= processes)


def test_an_llm_that_nobody_holds_ends(toy_llm: MakeLLM, toy_folder: Path) -> None:
    threads = own_threads()
    llm = LLM(str(toy_folder))
    assert own_threads() > threads
    del llm
    gc.collect()
    until(lambda: own_threads() <= threads)


def test_garbage_collected_on_the_event_loop_ends_it_too(toy_llm: MakeLLM) -> None:
    threads = own_threads()
    engine = toy_llm()._engine
    engine._loop.call_soon_threadsafe(engine.close)
    until(lambda: own_threads() <= threads)


def test_a_process_ends_without_being_asked_to_shut_down(tiny_folder: Path) -> None:
    program = (
        "import sys; from outrider import LLM, SamplingParams\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        f"llm = LLM({str(tiny_folder)!r}, dtype='float32', enforce_eager=True)\n"
        "print(len(llm.generate('a', SamplingParams(max_tokens=3))[0].outputs[0].token_ids))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"
    assert "Traceback" not in done.stderr and "Processed prompts" in done.stderr
