from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.measurements import Measurement
from benchmarks.plan import Observer, Plan, Sweep, execute, lengths
from benchmarks.prompts import Prompt
from benchmarks.systems import Answer, Row, Work

PROMPTS = tuple(Prompt(f"p{i}", (i, i + 1)) for i in range(8))


class Echo:
    """Answers at once with as many tokens as asked for, and remembers the work."""

    def __init__(self, short: bool = False) -> None:
        self.works: list[Work] = []
        self._short = short

    def generate(self, work: Work) -> Answer:
        self.works.append(work)
        lengths = [length - self._short for length in work.lengths]
        return Answer(0.5, tuple((7,) * length for length in lengths), 1, 4, 2)


class Clock:
    """Each look at it takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self._now = 0.0
        self._step = step

    def __call__(self) -> float:
        self._now += self._step
        return self._now


def rows(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, Echo(), (1, 8), (0.0,)) for name in names)


def plan(*table: Row) -> Plan:
    return Plan(
        rows=table,
        prompts={"rag": PROMPTS},
        clients=(1, 8),
        temperatures=(0.0,),
        prompts_per_set=3,
        new_tokens=8,
        repetitions=2,
        minutes=1.0,
    )


def run(what: Plan, step: float = 0.0) -> list[Measurement]:
    found: list[Measurement] = []
    execute(what, Observer(lambda *_: None, found.append, lambda *_: None), Clock(step))
    return found


def test_every_unit_is_measured_by_all_rows_in_turn_and_the_first_rotates() -> None:
    found = run(replace(plan(*rows("a", "b")), clients=(1,), repetitions=1))
    assert [(item.unit, item.row) for item in found] == [
        ("p0", "a"),
        ("p0", "b"),
        ("p1", "b"),
        ("p1", "a"),
        ("p2", "a"),
        ("p2", "b"),
    ]


def test_several_clients_are_one_batch_of_different_prompts() -> None:
    (row,) = rows("a")
    (found,) = run(replace(plan(row), clients=(8,), repetitions=1, prompts_per_client=1))
    assert isinstance(row.system, Echo)
    assert row.system.works[0].prompts == tuple(prompt.token_ids for prompt in PROMPTS)
    assert (found.new_tokens, found.prompt_tokens, len(found.outputs)) == (60, 16, 8)


def test_rows_are_measured_only_where_they_belong() -> None:
    (row,) = rows("a")
    single = replace(row, clients=(1,), temperatures=(1.0,))
    both = replace(plan(single), temperatures=(0.0, 1.0), repetitions=1)
    assert {(item.clients, item.temperature) for item in run(both)} == {(1, 1.0)}


def test_units_and_once_limit_a_row() -> None:
    (row,) = rows("a")
    limited = replace(plan(replace(row, units=2, once=True)), clients=(1,))
    assert [(item.unit, item.repetition) for item in run(limited)] == [("p0", 0), ("p1", 0)]


def test_the_first_repetition_is_done_whatever_it_takes() -> None:
    assert {item.repetition for item in run(plan(*rows("a")), step=1000.0)} == {0}


def test_later_repetitions_stop_before_the_time_is_over() -> None:
    assert {item.repetition for item in run(plan(*rows("a")), step=0.01)} == {0, 1}


def test_a_short_answer_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"a answered p0 with \[7\] tokens instead of \[8\]"):
        run(plan(Row("a", Echo(short=True), (1,), (0.0,))))


def test_answers_may_be_short_where_end_of_sequence_counts() -> None:
    stopping = replace(plan(Row("a", Echo(short=True), (1,), (0.0,))), stop_at_eos=True)
    assert {item.new_tokens for item in run(stopping)} == {7}


def test_sums_of_the_answer_are_kept() -> None:
    found = run(plan(*rows("a")))[0]
    assert (found.steps, found.drafted, found.accepted, found.seconds) == (1, 4, 2, 0.5)


def test_the_steady_part_of_the_answer_is_kept() -> None:
    class Steady(Echo):
        def generate(self, work: Work) -> Answer:
            return replace(super().generate(work), steady_seconds=0.25, steady_tokens=6.5)

    found = run(plan(Row("a", Steady(), (1,), (0.0,))))[0]
    assert (found.steady_seconds, found.steady_tokens) == (0.25, 6.5)
    assert run(plan(*rows("a")))[0].steady_seconds is None


def test_the_observer_hears_of_every_sweep() -> None:
    swept: list[tuple[Sweep, int]] = []

    def heard(sweep: Sweep, repetition: int) -> None:
        swept.append((sweep, repetition))

    execute(plan(*rows("a")), Observer(lambda *_: None, lambda _: None, heard), Clock(0.0))
    sweeps: Iterator[Sweep] = (Sweep("rag", clients, 0.0) for clients in (1, 8))
    assert swept == [(sweep, 0) for sweep in sweeps] + [
        (Sweep("rag", clients, 0.0), 1) for clients in (1, 8)
    ]


def test_answers_of_several_clients_differ_in_length() -> None:
    assert lengths(128, 1, 2) == (128, 128)
    several = lengths(128, 8, 24)
    assert sorted(set(several)) == [64 + 16 * n for n in range(8)]
    assert several[:8] == several[8:16]
    assert lengths(1, 8, 3) == (1, 1, 1)


def test_a_short_set_starts_anew() -> None:
    (row,) = rows("a")
    run(replace(plan(row), clients=(8,), repetitions=1, prompts_per_client=2))
    assert isinstance(row.system, Echo)
    assert row.system.works[0].prompts == 2 * tuple(prompt.token_ids for prompt in PROMPTS)


def test_each_of_several_clients_sends_prompts_of_its_own_one_after_the_other() -> None:
    table = (Row("a", Echo(), (1, 2), (0.0,)),)
    what = replace(plan(*table), clients=(1, 2), prompts_per_client=3)
    run(what)
    echo = what.rows[0].system
    assert isinstance(echo, Echo)
    several = [work for work in echo.works if work.clients == 2]
    assert several and all(len(set(work.prompts)) == 6 for work in several)
