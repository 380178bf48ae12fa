"""What is told of the controller's decisions, and how often."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier_metrics import VerifierSnapshot
from tests.verifier_service.test_controller import controller, step
from verifier_service.controller import Controller
from verifier_service.explanation import Explanation
from verifier_service.speculation_watch import SpeculationWatch

LOG = logging.getLogger("watched")


class Scripted(Controller):
    """A controller whose state is told to it."""

    def __init__(self) -> None:
        super().__init__(4, controller().costs)
        self.told = "on"

    def state(self) -> str:
        return self.told


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def test_a_change_of_figures_is_no_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    control = Scripted()
    now = [0.0]
    watch = SpeculationWatch(control, LOG, clock=lambda: now[0])
    for second, state in (
        (0, "on"),
        (1, "on"),
        (2, "off: too dear: 1 ms"),
        (3, "off: too dear: 2 ms"),
        (4, "off: none"),
        (5, "off: too dear: 3 ms"),
        (20, "off: too dear: 4 ms"),
        (40, "off: none"),
        (41, "on"),
    ):
        now[0], control.told = float(second), state
        watch.observe(watch.state())
    assert lines(caplog, logging.INFO) == [
        "speculation on",
        "speculation off: too dear: 1 ms",
        "speculation off: none",
        "speculation on",
    ]


def test_the_line_carries_the_numbers_once_there_are_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    control = controller()
    watch = SpeculationWatch(control, LOG)
    step(control, 4)
    watch.observe(watch.state())
    (line,) = lines(caplog, logging.INFO)
    assert line.startswith("speculation on (average gain +")
    assert "plain step 20.0" in line


def test_a_line_at_debug_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=LOG.name)
    now = [0.0]
    control = controller()
    watch = SpeculationWatch(control, LOG, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        step(control, 4)
        watch.observe(watch.state())
    assert len(lines(caplog, logging.INFO)) == 1
    told = lines(caplog, logging.DEBUG)
    assert len(told) == 2
    assert all("ngram/greedy accepts" in line for line in told)


def test_the_explanation_is_fresh_within_64_steps() -> None:
    control = controller()
    watch = SpeculationWatch(control, LOG)
    assert watch.explanation.plain_step_ms == 0.0
    for _ in range(64):
        step(control, 4)
        watch.observe(watch.state())
    assert watch.explanation == control.explain()
    assert watch.explanation.gain > 0.5


def test_a_verifier_that_never_speculates_says_so() -> None:
    watch = SpeculationWatch(None, LOG)
    watch.observe(watch.state())
    assert watch.state() == watch.explanation.state == "off: not configured"


def test_the_figures_reach_the_gateways_metrics() -> None:
    control = controller()
    for _ in range(20):
        step(control, 4)
    shown = control.explain()
    info = pb.GetInfoResponse(
        model="m", num_speculative_tokens=4, speculation=shown.to_proto(), speculation_state="on"
    )

    class Place:
        index, address, problem = 0, "unix:v", ""

    registry = CollectorRegistry(auto_describe=False)
    registry.register(VerifierSnapshot([Place()], [(Place(), info)]))  # type: ignore[list-item]
    text = generate_latest(registry).decode()
    for name, value in (
        ("outrider:speculation_average_gain", shown.average_gain),
        ("outrider:speculation_gain", shown.gain),
        ("outrider:speculation_ceiling", 4.0),
        ("outrider:plain_step_seconds", shown.plain_step_ms / 1e3),
        ("outrider:draft_asking_seconds", shown.draft_wait_ms / 1e3),
    ):
        assert f'{name}{{engine="0",model_name="m"}} {value}' in text


def test_a_state_without_figures_is_its_own_kind() -> None:
    assert Explanation(state="off: no draft offered").kind == "off: no draft offered"
    assert Explanation(state="off: a: 1 ms: 2").kind == "off: a"
    assert Explanation(state="on").kind == "on"
