from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator

import pytest

from benchmarks.gpu_idle import RUN, Idle
from benchmarks.gpu_trace import loads, parse, trace
from benchmarks.gpu_trace_load import Load
from benchmarks.gpu_trace_marks import watched
from benchmarks.gpu_trace_page import Traced, TraceReport
from benchmarks.outrider_system import ServerFailed
from benchmarks.step_kinds import StepKinds
from tests.toy_engine import ToyEngine, ToySource, random_guess
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.scheduler import Scheduler


@pytest.fixture
def core() -> Iterator[Core]:
    engine = ToyEngine()
    controller = Controller(4, CostTable.from_profile({1: 0.01, 33: 0.011}), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=10,
    )
    source = ToySource(random_guess)
    core = Core(engine, scheduler, controller, source, max_waiting=10, speculative=True)
    yield core
    core.shutdown()


def options(*arguments: str) -> argparse.Namespace:
    given = ("--device", "cpu", "--seconds", "0.05", "--settle-tokens", "2")
    return parse([*given, *arguments])


def load(core: Core, *, speculating: bool, clients: int = 2) -> Load:
    return Load(core, [[1, 2], [2, 1]], clients, 0.0, 12, speculating)


def test_a_load_of_the_toy_is_traced(core: Core) -> None:
    kinds = watched(ToyEngine, ToySource)
    made, missing = trace(kinds, load(core, speculating=True), options(), "both")
    assert missing == []
    assert (made.mode, made.clients, made.speculation) == ("both", 2, "on")
    assert made.idle.steps > 0 and made.untraced > 0 and made.traced > 0
    assert 0 < made.idle.idle < 1
    assert made.verifying > 0
    # Neither has the toy anything begun nor its source anything known.
    assert made.steps.steps > 0
    assert (made.steps.blindly, made.steps.looked, made.steps.held) == (0, 0, 0)
    assert {"scheduler: plan", "proposers: tell"} <= set(made.idle.host)
    assert RUN not in made.idle.host


def test_a_plain_load_asks_nobody(core: Core) -> None:
    made, _ = trace(
        watched(ToyEngine, ToySource), load(core, speculating=False), options(), "plain"
    )
    assert made.verifying == 0
    assert "proposers: wait" not in made.idle.host


def test_nothing_is_left_of_a_load(core: Core) -> None:
    with load(core, speculating=True) as running:
        running.wait_until_decoding(2)
    stats = core.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert not any(thread.name == "load" for thread in threading.enumerate())


def test_clients_ask_again_when_they_are_answered(core: Core) -> None:
    asked = threading.Event()
    with load(core, speculating=True) as running:
        # Twelve tokens each: with more than 24 somebody has asked again.
        while not asked.is_set():
            running.check()
            if running.counts.tokens > 24:
                asked.set()
    assert asked.is_set()


def test_an_engine_that_fails_ends_the_trace(core: Core) -> None:
    def refuse(chunks: object, **more: object) -> None:
        raise RuntimeError("no device")

    core._engine.run = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(ServerFailed, match="no device"), load(core, speculating=True) as running:
        running.wait_until_decoding(2)


def traced(clients: int, share: float) -> Traced:
    found = Idle(1.0, share, 0.9 - share, 200, 3, {"scheduler: plan": 20.0, RUN: 0.1}, ())
    steps = StepKinds(200, 80, 60, 40, 5, 10)
    return Traced("both", clients, 0.0, 1000.0, 900.0, 0.5, "on", found, steps=steps)


def test_the_page_holds_traces_against_the_bars() -> None:
    traces = (traced(1, 0.14), traced(8, 0.06), traced(32, 0.05))
    report = TraceReport("c", {"gpu": "H200"}, {}, 1.0, traces, ("Core._flush",), True)
    page = report.to_markdown()
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}
    assert "| **14.0 %** | ≤ 15 % met |" in lines["both, 1 client, T=0"]
    assert "| **6.0 %** | ≤ 5 % missed |" in lines["both, 8 clients, T=0"]
    assert "| **5.0 %** | ≤ 5 % met |" in lines["both, 32 clients, T=0"]
    assert (
        "3 gaps, 0.101 ms a step; in them the host did, ms a step: scheduler: plan 0.100." in page
    )
    assert "- Not marked: Core._flush" in page
    assert (
        "Speculation: on. 200 steps: 80 begun blindly, 60 begun after a look, 40 planned with "
        "drafts that were known (held), 5 waited for proposers, 10 had prompts."
    ) in page
    assert TraceReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_engines_own_account_is_read_around_the_untraced_stretch(core: Core) -> None:
    engine = core._engine
    assert isinstance(engine, ToyEngine)
    engine.busy_s = 5.0
    made, _ = trace(
        watched(ToyEngine, ToySource), load(core, speculating=False), options(), "plain"
    )
    # The toy's device never works.
    assert made.own_idle == 1.0
    page = TraceReport("c", {}, {}, traces=(made,)).to_markdown()
    assert "| 100.0 % |" in page


def test_further_temperatures_are_traced_where_many_verify_drafts() -> None:
    assert loads(parse([])) == [
        *(("plain", 0.0, count) for count in (1, 8, 32)),
        *(("both", 0.0, count) for count in (1, 8, 32)),
        ("both", 1.0, 8),
        ("both", 1.0, 32),
    ]
    only = parse(["--temperatures", "1", "--modes", "plain", "--clients", "1"])
    assert loads(only) == [("plain", 1.0, 1)]


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--modes", "all"], ["--new-tokens", "9999"]):
        with pytest.raises(SystemExit):
            parse(arguments)
    said = capsys.readouterr().err
    assert "'all' is not one of plain, both" in said and "--new-tokens" in said
