"""The core over captured steps, on a CPU: who comes at any time says what it says alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_run_ahead import LONG, LONG_FILTERED, LONG_RANDOM
from tests.verifier_service.engines.test_torch_engine import engine, llama
from tests.verifier_service.test_loop import Answer
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import Engine
from verifier_service.engines.graphs import GraphRunner
from verifier_service.engines.run_ahead import Joined
from verifier_service.loop import Core
from verifier_service.messages import DraftSource, NoDrafts, Output, Request
from verifier_service.scheduler import Scheduler

__all__ = ["llama"]


def core_over(target: Engine, source: DraftSource, budget: int) -> Core:
    controller = Controller(4, CostTable.from_profile({1: 0.005, 33: 0.006}))
    scheduler = Scheduler(
        target.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        max_waiting=50,
    )
    return Core(target, scheduler, controller, source, max_waiting=50, speculative=True)


def requests(seed: int, count: int) -> list[Request]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        prompt = [rng.randrange(97) for _ in range(rng.randrange(1, 30))]
        sampling = rng.choice([LONG, LONG_RANDOM, LONG_FILTERED])
        lengths = rng.randrange(1, 12)
        made.append(
            Request(f"r{number}", prompt, replace(sampling, max_tokens=lengths, seed=number))
        )
    return made


def alone(target: Engine, wanted: list[Request]) -> list[list[int]]:
    core = core_over(target, NoDrafts(), 64)
    answers = []
    for request in wanted:
        answer = Answer()
        core.submit(replace(request), answer)
        answers.append(answer.wait().tokens)
    core.shutdown()
    return answers


class Chained(Answer):
    """An answer at whose end, and some outputs before, other requests come."""

    def __init__(self, rng: random.Random, more: list[tuple[Request, Answer]]) -> None:
        super().__init__()
        self.rng, self.more = rng, more
        self.core: Core | None = None

    def __call__(self, output: Output) -> None:
        assert self.core is not None
        while self.more and (output.finish_reason or self.rng.random() < 0.3):
            self.core.submit(*self.more.pop())
        super().__call__(output)


@pytest.mark.parametrize("budget", [64, 12])
@pytest.mark.parametrize("begin", ["begin_behind", "begin_next"])
@pytest.mark.parametrize("seed", range(3))
def test_arrivals_at_any_time_change_nothing(
    llama: Path, monkeypatch: pytest.MonkeyPatch, seed: int, begin: str, budget: int
) -> None:
    joins: list[int] = []
    real = getattr(GraphRunner, begin)

    def counting(self: GraphRunner, expected: list[object], launched: object) -> object:
        joins.append(sum(isinstance(one, Joined) for one in expected))
        return real(self, expected, launched)

    monkeypatch.setattr(GraphRunner, begin, counting)
    wanted = requests(seed, 14)
    if begin == "begin_behind":
        # Steps of those that want no drafts are begun blindly, those of others after a look.
        wanted = [replace(one, num_speculative_tokens=0) for one in wanted]
    expected = alone(engine(llama), wanted)
    rng = random.Random(seed)
    more: list[tuple[Request, Answer]] = []
    answers: list[Chained] = [Chained(rng, more) for _ in wanted]
    more.extend(zip(wanted[2:], answers[2:], strict=True))
    core = core_over(paged_engine(llama, monkeypatch), NoDrafts(), budget)
    for answer in answers:
        answer.core = core
    for request, answer in zip(wanted[:2], answers[:2], strict=True):
        core.submit(request, answer)
    told = [answer.wait().tokens for answer in answers]
    core.shutdown()
    assert told == expected
    assert sum(joins) > 0, "nobody joined a step that was begun"


def test_who_goes_while_their_step_runs_is_not_missed(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = requests(7, 6)
    wanted = [replace(one, sampling=replace(one.sampling, max_tokens=12)) for one in wanted]
    expected = alone(engine(llama), wanted[:2])
    core = core_over(paged_engine(llama, monkeypatch), NoDrafts(), 64)
    answers = [Answer() for _ in wanted]

    class Leaving(Answer):
        """With each output one request comes, and the one that came with the last goes."""

        def __call__(self, output: Output) -> None:
            if left:
                if gone:
                    core.abort(gone[-1].request_id)
                gone.append(left.pop())
                core.submit(gone[-1], Answer())
            super().__call__(output)

    gone: list[Request] = []
    left = wanted[2:]
    answers[0] = Leaving()
    for request, answer in zip(wanted[:2], answers[:2], strict=True):
        core.submit(request, answer)
    told = [answer.wait().tokens for answer in answers[:2]]
    core.shutdown()
    assert told == expected
    assert len(gone) == 4


@pytest.mark.parametrize("drafts", [0, None], ids=["blindly", "after a look"])
def test_who_leaves_while_others_come_takes_nothing_with_it(
    llama: Path, monkeypatch: pytest.MonkeyPatch, drafts: int | None
) -> None:
    wanted = [
        replace(one, num_speculative_tokens=drafts, sampling=replace(one.sampling, max_tokens=20))
        for one in requests(11, 5)
    ]
    expected = alone(engine(llama), wanted)
    core = core_over(paged_engine(llama, monkeypatch), NoDrafts(), 64)
    answers = [Answer() for _ in wanted]

    class Host(Answer):
        """Others come and go at its outputs, in either order."""

        def __call__(self, output: Output) -> None:
            told = len(self.outputs)
            if told == 3:
                core.submit(wanted[2], answers[2])
                core.abort(wanted[1].request_id)
            if told == 6:
                core.abort(wanted[2].request_id)
                core.submit(wanted[3], answers[3])
                core.submit(wanted[4], answers[4])
            super().__call__(output)

    answers[0] = Host()
    core.submit(wanted[0], answers[0])
    core.submit(wanted[1], answers[1])
    for row in (0, 3, 4):
        assert answers[row].wait().tokens == expected[row]
    for row in (1, 2):
        assert answers[row].tokens == expected[row][: len(answers[row].tokens)]
    core.shutdown()
    assert not core.failure
