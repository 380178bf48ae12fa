"""Who joins the step behind the one that runs, while nothing of that one is known yet."""

from __future__ import annotations

from typing import cast

from tests.verifier_service.scheduler_bench import Bench, sampling
from verifier_service.engines.base import Chunk
from verifier_service.messages import Constraint
from verifier_service.scheduler import Newcomers, Planned, StepTimes

LONG = sampling(max_tokens=20)
PROMPT = [1, 2, 3, 1, 2]


def running(**changes: object) -> tuple[Bench, list[Planned]]:
    """Two that decode without drafts, and their next step, which runs."""
    bench = Bench(guess=None, k=0, **changes)  # type: ignore[arg-type]
    for name in ("a", "b"):
        bench.add(name, PROMPT, LONG)
    bench.step()
    bench.scheduler.views()
    planned = bench.scheduler.plan({})
    assert [len(part.chunk.ids) for part in planned] == [1, 1]
    return bench, planned


def end(bench: Bench, planned: list[Planned]) -> None:
    """The step has run."""
    verdicts = bench.engine.run([part.chunk for part in planned])
    for sink, output in bench.scheduler.apply(planned, verdicts, StepTimes(1, 2)):
        sink(output)


def follow(bench: Bench, joined: Newcomers) -> list[Chunk]:
    """The step that was begun, as it is planned."""
    bench.scheduler.views()
    planned = bench.scheduler.plan({}, joined)
    chunks = [part.chunk for part in planned]
    end(bench, planned)
    return chunks


def test_who_waits_joins_and_is_planned_as_it_joined() -> None:
    bench, planned = running()
    bench.add("c", [3, 3, 3], LONG)
    bench.add("d", [2], LONG)
    assert bench.scheduler.goes_on_behind(planned)
    joined = bench.scheduler.join(planned)
    assert joined.count == 2
    assert bench.scheduler.goes_on_behind(planned, 2)
    assert not bench.scheduler.goes_on_behind(planned)
    begun = joined.chunks()
    assert begun is not None
    # One whose prompt is one id decodes at once, among the rounds.
    assert [(chunk.ids, chunk.start) for chunk in begun] == [([2], 0), ([3, 3, 3], 0)]
    end(bench, planned)
    chunks = follow(bench, joined)
    assert [len(chunk.ids) for chunk in chunks] == [1, 1, 1, 3]
    assert chunks[2:] == begun
    bench.finish()
    assert [len(bench.tokens(name)) for name in "abcd"] == [20] * 4


def test_asked_again_it_says_the_same() -> None:
    bench, planned = running()
    bench.add("c", [3, 3, 3], LONG)
    first, again = bench.scheduler.join(planned), bench.scheduler.join(planned)
    assert first.count == again.count == 1
    assert first.shares == again.shares


def test_nobody_joins_where_all_seats_are_taken() -> None:
    bench, planned = running(max_num_seqs=2)
    bench.add("c", [3, 3, 3], LONG)
    joined = bench.scheduler.join(planned)
    assert (joined.count, joined.chunks()) == (0, [])
    # Nor does it keep the others from going on.
    assert bench.scheduler.goes_on_behind(planned, joined.count)


def test_the_step_has_no_more_tokens_than_its_budget() -> None:
    bench, planned = running(budget=20)
    bench.add("c", [3] * 40, LONG)
    joined = bench.scheduler.join(planned)
    (chunk,) = joined.chunks() or []
    assert len(chunk.ids) == 17
    assert not chunk.samples


def test_a_structure_keeps_the_step_from_being_begun() -> None:
    bench, planned = running()
    bench.add("c", [3, 3, 3], LONG, constraint=cast("Constraint", object()))
    assert bench.scheduler.join(planned).chunks() is None


def test_who_is_gone_by_then_is_not_planned() -> None:
    bench, planned = running()
    bench.add("c", [3, 3, 3], LONG)
    bench.add("d", [2], LONG)
    joined = bench.scheduler.join(planned)
    bench.scheduler.abort("c")
    bench.scheduler.abort("d")
    end(bench, planned)
    assert [len(chunk.ids) for chunk in follow(bench, joined)] == [1, 1]


def test_who_comes_later_is_not_planned_with_them() -> None:
    bench, planned = running()
    joined = bench.scheduler.join(planned)
    assert joined.count == 0
    end(bench, planned)
    bench.add("c", [3, 3, 3], LONG)
    assert [len(chunk.ids) for chunk in follow(bench, joined)] == [1, 1]
    assert [len(chunk.ids) for chunk in bench.step()] == [1, 1, 3]
