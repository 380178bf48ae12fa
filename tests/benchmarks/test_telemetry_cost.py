"""The order of a whole run, with a server that the test plays."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import telemetry_cost
from benchmarks.processor_time import Reading
from benchmarks.prompts import Prompt
from benchmarks.soak_watch import Watch
from benchmarks.systems import Answer, Work
from benchmarks.telemetry_asking import Asker
from benchmarks.telemetry_cost import Session, main, parse, works
from benchmarks.telemetry_page import CostReport
from benchmarks.telemetry_turns import Turn
from tests.benchmarks.turns import turn

PROMPTS = [Prompt("a", (1,)), Prompt("b", (2,)), Prompt("c", (3,))]


class FakeAsker:
    """Keeps what it was asked, ten seconds a turn on its own clock.

    `lost` traces never arrive, and `most` turns are answered.
    """

    def __init__(self, lost: int = 0, most: int = 10**6) -> None:
        self.asked: list[tuple[str, int, bool, tuple[Work, ...]]] = []
        self.traced = 0
        self.now = 0.0
        self._lost, self._most = lost, most

    def answer(self, work: Work, traced: bool) -> Answer:
        self._keep("warm", [work], traced)
        return Answer(1.0, ((1,),))

    def lead(self, given: Sequence[Work], traced: bool) -> None:
        self._keep("lead", given, traced)

    def turn(
        self,
        given: Sequence[Work],
        traced: bool,
        quad: int,
        read: Callable[[], Reading],
        cores: int,
    ) -> Turn:
        if not self._most:
            raise KeyboardInterrupt
        self._most -= 1
        self.now += 10.0
        self._keep("turn", given, traced)
        return turn(traced, [10.0] * len(given), clients=given[0].at_once, quad=quad)

    def received(self) -> int:
        return self.traced - self._lost

    def _keep(self, kind: str, given: Sequence[Work], traced: bool) -> None:
        self.asked.append((kind, given[0].at_once, traced, tuple(given)))
        self.traced += traced


def session(asker: FakeAsker, options: argparse.Namespace) -> Session:
    prompts = itertools.cycle(PROMPTS)
    return Session(cast(Asker, asker), Watch(1), prompts, options, cores=2)


def test_windows_take_the_next_prompts() -> None:
    made = works(itertools.cycle(PROMPTS), clients=2, tokens=9, windows=3)
    assert [work.prompts for work in made] == [((1,), (2,)), ((3,), (1,)), ((2,), (3,))]
    assert {(work.lengths, work.temperature) for work in made} == {((9, 9), 0.0)}


def test_a_quad_leads_in_where_the_mode_changes_and_keeps_its_prompts() -> None:
    asker = FakeAsker()
    made = session(asker, parse(["--windows", "2"]))
    for number in range(2):
        list(made.quad(number, 1, (True, False, False, True)))
    kinds = [(kind, traced) for kind, _, traced, _ in asker.asked]
    lead, turn_ = "lead", "turn"
    begins = [(lead, True), (turn_, True)]
    rest = [(lead, False), (turn_, False), (turn_, False), (lead, True), (turn_, True)]
    assert kinds == [*begins, *rest, (turn_, True), *rest]
    windows = [given for kind, _, _, given in asker.asked if kind == turn_]
    assert len(set(windows[:4])) == len(set(windows[4:])) == 1
    assert windows[0] != windows[4]


def test_another_number_of_clients_leads_in_too() -> None:
    asker = FakeAsker()
    made = session(asker, parse([]))
    list(made.quad(0, 1, (True, False, False, True)))
    asker.asked.clear()
    list(made.quad(1, 8, (True, False, False, True)))
    assert asker.asked[0][:3] == ("lead", 8, True)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, CostReport]]:
    """Run the command against a FakeAsker; its exit code and its report."""

    def play(asker: FakeAsker, *arguments: str) -> tuple[int, CostReport]:
        @contextmanager
        def serving(
            model: Path, level: str, options: argparse.Namespace, *_: object
        ) -> Iterator[Session]:
            assert level == "summary"
            yield session(asker, options)

        clock = SimpleNamespace(monotonic=lambda: asker.now)
        monkeypatch.setattr(telemetry_cost, "time", clock)
        monkeypatch.setattr(telemetry_cost, "_serving", serving)
        monkeypatch.setattr(telemetry_cost, "_prompts", lambda *_: itertools.cycle(PROMPTS))
        found = SimpleNamespace(folder=tmp_path)
        monkeypatch.setattr(telemetry_cost, "resolve_model", lambda *_: found)
        given = ["--out", str(tmp_path), "--idle-seconds", "0"]
        code = main([*given, *arguments])
        return code, CostReport.load(tmp_path / "telemetry_cost.json")

    return play


def test_levels_take_turns_until_the_time_is_up(
    play: Callable[..., tuple[int, CostReport]],
) -> None:
    code, report = play(FakeAsker(), "--minutes", "2.5", "--clients", "2,1", "--windows", "3")
    assert code == 0
    # A fourth quad of 40 s would end after 150 s.
    assert [made.clients for made in report.turns[::4]] == [2, 1, 2]
    assert report.received == report.traced > 0
    assert {len(made.seconds) for made in report.turns} == {3}


def test_what_is_interrupted_keeps_its_quads(
    play: Callable[..., tuple[int, CostReport]],
) -> None:
    code, report = play(FakeAsker(most=10), "--minutes", "60")
    assert code == 130
    assert [turn.quad for turn in report.turns] == [0] * 4 + [1] * 4
    assert report.received is None


def test_lost_traces_are_no_measurement(
    play: Callable[..., tuple[int, CostReport]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = play(FakeAsker(lost=2), "--minutes", "1")
    assert code == 1
    assert report.received == report.traced - 2
    assert "the evidence has" in capsys.readouterr().err


def test_what_two_servers_showed_is_kept(
    play: Callable[..., tuple[int, CostReport]], tmp_path: Path
) -> None:
    kept = {
        "command": "c",
        "machine": {"commit": "f00"},
        "result": {"ratio": 1.03, "low": 0.9, "high": 1.19},
        "pairs": [{}] * 16,
    }
    (tmp_path / "telemetry_cost.json").write_text(json.dumps({"two_servers": kept}))
    _, report = play(FakeAsker(most=4), "--minutes", "60")
    assert report.two_servers == kept
    assert len(report.turns) == 4


@pytest.mark.parametrize("given", ["0", "-1", "x", "1,"])
def test_wrong_numbers_of_clients(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--clients", given])
    assert "--clients" in capsys.readouterr().err
