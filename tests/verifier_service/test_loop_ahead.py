"""The step that is begun before the host has asked for it: when, and what it is said to cost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tests.toy import Toy
from tests.toy_engine import Guess, ToyEngine, ToySource, oracle, random_guess
from tests.verifier_service.test_loop import Answer, request
from verifier_service import loop, next_step
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import (
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.loop import Core
from verifier_service.messages import DraftBlock, Expected, Foreseen, Request, SequenceView
from verifier_service.prediction import PredictedIds
from verifier_service.scheduler import Scheduler

FORWARD_NS, ASKING_NS = 5_000_000, 1_000_000


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now


class AheadEngine(ToyEngine):
    """Asks after each step of verifications whether to begin the next; a forward takes its time.

    What was begun is computed when it is asked for; only the clock knows of the difference.
    """

    # How long the launch of a step takes that reads prompts.
    launch_ns = 0

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.ready: int | None = None
        self.asked: list[tuple[list[Verdict], bool]] = []
        self.sure: list[bool] = []
        # Of each step that was begun, how many joined it.
        self.joined: list[int] = []
        # What happens while the step with this number runs.
        self.during: dict[int, Callable[[], object]] = {}

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        self.sure.append(sure)
        self.during.get(len(self.sure), lambda: None)()
        begun, self.ready = self.ready, None
        begun = begun or self.clock.now + FORWARD_NS
        if sure and all(chunk.samples for chunk in chunks):
            self.joined.append(len(joining() or ()))
        if any(len(chunk.ids) > chunk.drafts + 1 for chunk in chunks):
            self.clock.now += self.launch_ns
        verdicts = super().run(chunks, meanwhile=meanwhile)
        self.clock.now = max(self.clock.now, begun)
        told = [verdict for verdict in verdicts if verdict is not None]
        if goes_on is not None and len(told) == len(chunks):
            begins = goes_on(told)
            self.asked.append((told, begins))
            if begins:
                if not sure:
                    self.joined.append(len(joining() or ()))
                self.ready = self.clock.now + FORWARD_NS
        return verdicts


class SlowSource(ToySource):
    """Takes its time, and knows beforehand what it is told to.

    `knows` says by the number of the question whether no draft will come, `foresees` whether the
    drafts themselves are known. `sent` are the times of its messages.
    """

    def __init__(
        self,
        clock: Clock,
        guess: Guess,
        knows: Callable[[int], bool],
        foresees: bool,
    ) -> None:
        super().__init__(guess)
        self.clock = clock
        self.knows = knows
        self.foresees = foresees
        self.sent: list[int] = []
        self.outcomes: list[list[tuple[int, list[int]]]] = []

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.sent.append(self.clock.now)
        super().send(views, closed)

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        self.clock.now += ASKING_NS if wait else 0
        return super().collect()

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        if not self.foresees:
            return None
        drafts = {view.sequence_id: tuple(self.guess(view, self.rng)) for view in views}
        return Foreseen(
            {
                view.sequence_id: [
                    DraftBlock("toy", len(view.ids), drafts[view.sequence_id], match_length=2)
                ]
                for view in views
                if drafts[view.sequence_id]
            }
        )

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        self.outcomes.append([(sequence_id, list(ids)) for sequence_id, ids in outcomes])
        return Expected(0, 0) if self.knows(len(self.outcomes)) else None


class SpyController(Controller):
    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=adaptive)
        self.waits: list[float] = []
        self.spent: list[float] = []
        self.unused: list[int] = []
        self.looks: list[tuple[int, int, bool]] = []
        self.begun: list[float | None] = []
        self.held: list[float] = []

    def observe_wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        super().observe_wait(seconds)

    def observe_held(self, known: int, sequences: int, seconds: float) -> None:
        self.held.append(seconds)
        super().observe_held(known, sequences, seconds)

    def observe_step(
        self,
        sequences: int,
        query_tokens: int,
        context_tokens: int,
        seconds: float,
        prefill_tokens: int = 0,
    ) -> None:
        if not prefill_tokens:
            self.spent.append(seconds)
        super().observe_step(sequences, query_tokens, context_tokens, seconds, prefill_tokens)


def run(
    monkeypatch: pytest.MonkeyPatch,
    guess: Guess,
    knows: Callable[[int], bool],
    requests: Sequence[Request],
    *,
    foresees: bool = False,
    kinds: tuple[type[SlowSource], type[SpyController]] = (SlowSource, SpyController),
    late: tuple[int, Request] | None = None,
) -> SimpleNamespace:
    clock = Clock()
    for module in (loop, next_step):
        monkeypatch.setattr(module, "time", clock)
    engine = AheadEngine(clock)
    source = kinds[0](clock, guess, knows, foresees)
    controller = kinds[1](4, CostTable.from_profile({1: 0.005, 33: 0.006}), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=10,
    )
    core = Core(engine, scheduler, controller, source, max_waiting=10, speculative=True)
    answers = [Answer() for _ in requests]
    if late is not None:
        step, arriving = late
        answers.append(Answer())
        engine.during[step] = partial(core.submit, arriving, answers[-1])
    # Whoever comes first runs alone for a step, and no longer, however slow this thread is.
    submitted = threading.Event()
    engine.during.setdefault(1, submitted.wait)
    for one, answer in zip(requests, answers, strict=False):
        core.submit(one, answer)
    submitted.set()
    tokens = [answer.wait().tokens for answer in answers]
    core.shutdown()
    return SimpleNamespace(engine=engine, source=source, controller=controller, tokens=tokens)


def nothing(view: SequenceView, rng: random.Random) -> Sequence[int]:
    return ()


def test_asking_is_free_where_no_draft_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")])
    # Behind the prompt's step nothing is begun; for the last token nothing is asked.
    assert seen.controller.waits == pytest.approx([ASKING_NS * 1e-9] + [0.0] * 9)
    assert seen.controller.spent == pytest.approx([FORWARD_NS * 1e-9] * 11)


def test_asking_costs_what_it_takes_where_drafts_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: False, [request("a")])
    # The last step asked for nothing: there is no room for a draft.
    assert [begins for _, begins in seen.engine.asked] == [False] * 11 + [True]
    assert seen.controller.waits == pytest.approx([ASKING_NS * 1e-9] * 10)
    assert seen.controller.spent == pytest.approx([FORWARD_NS * 1e-9] * 11)


def test_drafts_that_are_foreseen_are_verified_and_cost_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = oracle(Toy.target())
    greedy = request("a")
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    seen = run(monkeypatch, right, lambda _: False, [greedy], foresees=True)
    plain = run(monkeypatch, nothing, lambda _: False, [greedy])
    assert seen.tokens == plain.tokens
    # The prompt's token, then five a step; only the last step has no room for all four.
    assert len(seen.engine.steps) == 4
    assert seen.controller.waits == pytest.approx([0.0] * len(seen.controller.waits))


def test_proposers_are_told_while_the_engine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: False, [request("a")], foresees=True)
    # Each message leaves after its step began and before the forward has taken its time.
    assert seen.source.sent[:11] == [FORWARD_NS * number for number in range(11)]


def test_the_source_is_asked_of_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, random_guess, lambda number: number % 3 > 0, [request("a")])
    plain = run(monkeypatch, nothing, lambda _: True, [request("a")])
    assert seen.tokens == plain.tokens
    told = [ids for outcome in seen.source.outcomes for _, ids in outcome]
    # Of what follows a prompt nobody could have told.
    opening, *rounds = seen.engine.asked
    assert opening[1] is False
    said = [verdict.tokens for verdicts, _ in rounds for verdict in verdicts]
    assert told == said[: len(told)]
    assert len(told) >= len(said) - 1
    assert [begins for _, begins in rounds][: len(told)] == [
        number % 3 > 0 for number in range(1, len(told) + 1)
    ]


def test_nobody_is_asked_of_a_request_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = request("plain", 20)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [request("drafts", 12), plain])
    told = {sequence_id for outcome in seen.source.outcomes for sequence_id, _ in outcome}
    assert len(told) == 1
    assert any(begins for verdicts, begins in seen.engine.asked if len(verdicts) == 2)


def test_the_host_is_sure_only_where_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")])
    # There is no room for a draft behind the last step but one.
    assert seen.engine.sure == [False] * 11 + [True]
    plain = request("plain", 12)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [plain])
    assert seen.engine.sure == [True] * 12


class BlindController(SpyController):
    """Every step behind which nothing was seen may be begun blindly; drafts are always held for."""

    def begins_blindly(self, unused: int) -> bool:
        self.unused.append(unused)
        return unused == 0

    def observe_look(self, unused: int, found: int, *, holds: bool) -> None:
        self.looks.append((unused, found, holds))

    def observe_begun(self, looked: float | None) -> None:
        self.begun.append(looked)


class SeeingSource(SlowSource):
    """Behind the outcomes with these numbers there are drafts, of one sequence."""

    drafts: tuple[int, ...] = ()

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        super().behind(outcomes)
        return Expected(int(len(self.outcomes) in self.drafts), 0)


class HushedSource(SeeingSource):
    """Notes when nothing is read, and what is said meanwhile."""

    quiet = False
    hushed = 0
    heard = True

    def hush(self) -> None:
        self.quiet = True
        self.hushed += 1

    def listen(self) -> None:
        self.quiet = False

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.heard = self.heard and not self.quiet
        super().send(views, closed)


def test_readers_are_hushed_from_the_hold_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (HushedSource, SpyController)
    monkeypatch.setattr(HushedSource, "drafts", (4, 5, 7))
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], foresees=True, kinds=kinds)
    assert seen.source.hushed == 3
    assert not seen.source.quiet
    assert seen.source.heard, "messages leave behind the launch"


def test_nobody_is_hushed_where_the_device_has_its_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (SpyController, BlindController):
        # Looked at and begun, or begun before anybody looked.
        seen = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=(HushedSource, kind))
        assert [begins for _, begins in seen.engine.asked].count(True) >= 11
        assert seen.source.hushed == 0
    monkeypatch.setattr(HushedSource, "drafts", (4,))
    seen = run(
        monkeypatch, nothing, lambda _: True, [request("a")], kinds=(HushedSource, BlindController)
    )
    # What is seen too late holds the next step, not this one.
    assert seen.engine.sure.count(False) == 1
    assert seen.source.hushed == 0


def test_steps_are_begun_blindly_until_drafts_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeingSource, "drafts", (4, 5))
    seen = run(
        monkeypatch,
        nothing,
        lambda _: True,
        [request("a")],
        kinds=(SeeingSource, BlindController),
    )
    plain = run(monkeypatch, nothing, lambda _: True, [request("a")])
    assert seen.tokens == plain.tokens
    # What is seen behind the fourth outcome comes too late for the step that was begun already, so
    # the next one is looked for: there are drafts, and it is held.
    assert seen.engine.sure == [True] * 5 + [False] + [True] * 6
    assert [begins for _, begins in seen.engine.asked] == [True] * 5 + [False] + [True] * 6
    controller = seen.controller
    assert controller.looks[:7] == [
        # Behind the prompt.
        (0, 0, False),
        (0, 0, False),
        (0, 0, False),
        (0, 0, False),
        (0, 1, True),
        (1, 1, True),
        (0, 0, False),
    ]
    # The step behind the one that was held was planned; all others were begun without a look.
    assert controller.begun == [None] * len(controller.begun)
    assert len(controller.begun) == 11


def test_what_a_look_takes_is_told_where_a_step_is_begun_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LookingController(BlindController):
        def begins_blindly(self, unused: int) -> bool:
            return False

    monkeypatch.setattr(SeeingSource, "drafts", (4, 5))
    kinds = (SeeingSource, LookingController)
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds)
    # The step behind the prompt waited, and two were held for drafts.
    assert len(seen.controller.looks) == 11
    assert seen.controller.begun == [0.0] * 8 + [None]


def test_looks_behind_prompts_are_learnt_from_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (SeeingSource, BlindController)
    monkeypatch.setattr(SeeingSource, "drafts", ())
    seen = run(
        monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds, late=(4, request("b", 4))
    )
    alone = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds)
    assert [len(tokens) for tokens in seen.tokens] == [12, 4]
    # As many as without the prompt: the step that read it was looked at as well.
    assert len(seen.controller.looks) == len(alone.controller.looks)


def test_a_prediction_of_its_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = request("a")
    own.prediction = PredictedIds([1, 2, 3, 4, 5])
    seen = run(monkeypatch, nothing, lambda _: True, [own])
    assert seen.engine.asked
    assert not any(begins for _, begins in seen.engine.asked)


class LateSource(SlowSource):
    """A draft model on the target's own card: nothing of it is known before it is asked."""

    looks_ahead = False  # type: ignore[assignment]
    asked = 0

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.asked += any(view.max_draft_tokens for view in views)
        super().send(views, closed)

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen:
        return Foreseen({}, unknown=sum(view.max_draft_tokens > 0 for view in views))

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected:
        return Expected(0, len(outcomes))


class WaitingController(SpyController):
    """Waits, or does not, as `pays` says."""

    pays = True

    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=True)
        self.prepared: set[bool] = set()

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        if unknown > 0:
            self.prepared.add(prepared)
        return unknown > 0 and self.pays


@pytest.mark.parametrize("pays", [True, False])
def test_who_does_not_look_ahead_is_asked_and_waited_for_or_left_alone(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitingController, "pays", pays)
    greedy = request("a", 24)
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    kinds = (LateSource, WaitingController)
    seen = run(monkeypatch, oracle(Toy.target()), lambda _: False, [greedy], kinds=kinds)
    plain = run(monkeypatch, nothing, lambda _: True, [greedy])
    assert seen.tokens == plain.tokens
    begun = [begins for _, begins in seen.engine.asked]
    if pays:
        assert seen.controller.prepared == {False}
        # The prompt's token, then five a step.
        assert len(seen.engine.steps) == 6
        assert seen.source.asked == 5
        assert True not in begun[:-1]
    else:
        assert seen.source.asked == 0
        assert begun == [True] * len(begun)
        assert len(seen.engine.steps) == 24


def test_nobody_looks_behind_a_step_for_whoever_wants_no_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = request("plain", 12)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [plain], kinds=(LateSource, WaitingController))
    assert seen.engine.sure == [True] * 12
    assert seen.controller.prepared == set()


class HesitantController(WaitingController):
    """Waits from the fourth question on, and is switched off to begin with."""

    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=adaptive)
        self._switch.on, self._switch.gain, self._switch.wait = False, -0.5, 0.1
        self.questions = 0

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        self.questions += unknown > 0
        return unknown > 0 and self.questions > 3


def test_who_was_left_alone_is_asked_once_a_wait_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = request("a", 24)
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    kinds = (LateSource, HesitantController)
    seen = run(monkeypatch, oracle(Toy.target()), lambda _: False, [greedy], kinds=kinds)
    begun = [begins for _, begins in seen.engine.asked]
    # The prompt's step and two behind it; asking is off, but it is what the next one is held for.
    assert begun[:4] == [True, True, True, False]
    assert seen.source.asked >= 4
    assert len(seen.engine.steps) < 10
