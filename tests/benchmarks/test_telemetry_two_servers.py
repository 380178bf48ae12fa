"""The arithmetic of the telemetry benchmarks; one needs two servers for the rest."""

from __future__ import annotations

import pytest

from benchmarks.outrider_system import OutriderSystem
from benchmarks.prompts import Prompt
from benchmarks.systems import Answer, Work
from benchmarks.telemetry_spans import measure
from benchmarks.telemetry_two_servers import Pair, Result, compare, parse, works
from outrider.errors import OperationError
from outrider.telemetry import TraceLevel


class Scripted(OutriderSystem):
    """Answers in `seconds` with `token`; `order` is who was asked, in order."""

    def __init__(self, name: str, seconds: float, order: list[str], token: int = 7) -> None:
        self._name, self._seconds, self._order, self._token = name, seconds, order, token

    def generate(self, work: Work) -> Answer:
        self._order.append(self._name)
        return Answer(self._seconds, ((self._token,) * work.lengths[0],))


def test_the_result_is_a_median_of_neighbours() -> None:
    pairs = [Pair(100.0, 99.0), Pair(50.0, 49.0), Pair(10.0, 10.0), Pair(40.0, 38.0)]
    result = Result.of(pairs)
    assert result.ratio == pytest.approx(0.985)
    assert result.low < result.ratio < result.high
    assert (result.without, result.with_it) == (45.0, 43.5)
    assert Result.of(pairs[:1]) == Result(0.99, 0.99, 0.99, 100.0, 99.0)


def test_prompts_start_anew_where_they_are_too_few() -> None:
    prompts = [Prompt("a", (1,)), Prompt("b", (2,)), Prompt("c", (3,))]
    made = works(prompts, clients=2, tokens=9, pairs=3)
    assert [work.prompts for work in made] == [((1,), (2,)), ((3,), (1,)), ((2,), (3,))]
    assert {work.lengths for work in made} == {(9, 9)}


@pytest.mark.parametrize("first", [True, False])
def test_who_begins_alternates_and_changes_no_figure(first: bool) -> None:
    order: list[str] = []
    (work,) = works([Prompt("a", (1,))], 1, 10, 1)
    pair = compare(Scripted("without", 2.0, order), Scripted("with", 4.0, order), work, first)
    assert order == (["without", "with"] if first else ["with", "without"])
    assert (pair.without, pair.with_it, pair.ratio) == (5.0, 2.5, 0.5)


def test_other_tokens_are_no_comparison() -> None:
    (work,) = works([Prompt("a", (1,))], 1, 10, 1)
    with pytest.raises(OperationError, match="different tokens"):
        compare(Scripted("a", 1.0, []), Scripted("b", 1.0, [], token=8), work, True)


def test_options() -> None:
    options = parse(["--level", "detailed", "--serve-option=--threads=1"])
    assert (options.level, options.serve_option) == ("detailed", ["--threads=1"])


def test_the_micro_benchmark_measures_every_level() -> None:
    for level in TraceLevel:
        cost = measure(level, rounds=4, requests=3)
        assert cost.round_ns > 0
        assert (cost.request_ns > 0) == (cost.export_ns > 0) == (level is not TraceLevel.NONE)
