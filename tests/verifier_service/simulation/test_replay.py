"""The replay itself: what it emits, what it charges, and the order in which it calls."""

from __future__ import annotations

import pytest

from outrider.draft_schedule import DraftSchedule
from tests.verifier_service.simulation.loads import CPU, GPU, K, load, steady
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.simulation.policies import Load, compare, load_of
from verifier_service.simulation.recording import (
    Header,
    Offer,
    RecordedRound,
    RecordedStep,
    Recording,
)
from verifier_service.simulation.replay import replay
from verifier_service.simulation.traces import traces_of

HEADER = Header(4, {1: 0.01, 5: 0.01, 33: 0.02})


def recording(*rounds: RecordedRound) -> Recording:
    steps = (RecordedStep(0.01, 0.0, 0.0, 1, 10, 0, (part,)) for part in rounds)
    return Recording(HEADER, tuple(steps))


def fixed(k: int) -> Controller:
    return Controller(k, CostTable.from_profile(HEADER.profile), adaptive=False)


class Flat:
    def seconds(self, rows: int, sequences: int, context: int) -> float:
        return 0.01


ANSWER = recording(
    RecordedRound(1, 10, 4, 4, True, 1, offers=(Offer("ngram", 4, 2, 3),)),
    RecordedRound(1, 11, 4, 4, True, 1),
    RecordedRound(1, 12, 4, 4, True, 1),
    RecordedRound(1, 13, 4, 4, True, 3),
)


def run(k: int, **more: object) -> list[int]:
    traces = traces_of(ANSWER.steps, 4)
    return replay(traces, fixed(k), Flat(), ceiling=4, concurrency=1, **more).tokens  # type: ignore[arg-type]


def test_every_policy_emits_the_whole_answer() -> None:
    assert run(0) == [1] * 6
    # Three drafts right, one wrong: four tokens. Then nothing is offered.
    assert run(4) == [4, 1, 1]
    assert run(2) == [3, 1, 1, 1]
    assert all(sum(run(k)) == 6 for k in range(5))


def test_an_answer_ends_where_it_ended() -> None:
    long = recording(RecordedRound(1, 10, 4, 4, True, 2, offers=(Offer("ngram", 4, 2, 4),)))
    traces = traces_of(long.steps, 4)
    assert replay(traces, fixed(4), Flat(), ceiling=4, concurrency=1).tokens == [2]


def test_asking_and_noise_are_charged_for() -> None:
    traces = traces_of(ANSWER.steps, 4)
    result = replay(
        traces,
        fixed(4),
        Flat(),
        ceiling=4,
        concurrency=1,
        noise=(1.0, 3.0),
        asking=lambda step: 0.001 * (step + 1),
    )
    assert result.seconds == pytest.approx([0.011, 0.032, 0.013])
    assert result.asked == 3
    plain = replay(traces, fixed(0), Flat(), ceiling=4, concurrency=1, asking=lambda _: 9.0)
    assert plain.seconds == pytest.approx([0.01] * 6)
    assert plain.asked == 0


def test_sequences_follow_one_another() -> None:
    made = load(steady(0.5), GPU, batch=4, tokens=20, sequences=10)
    whole = Load(made.header, made.traces, made.cost, 4)
    result = whole.run(Controller(0, CostTable.from_profile(made.header.profile)))
    assert sum(result.tokens) == 200
    assert result.tokens[:40] == [4] * 40
    assert result.tokens[40:] == [2] * 20
    # Without draining it ends with the last whole crew.
    assert made.run(Controller(0, CostTable.from_profile(made.header.profile))).tokens == [4] * 40


def test_a_concurrency_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency is 0; allowed: 1 or more"):
        replay([], fixed(1), Flat(), ceiling=4, concurrency=0)


def test_a_recording_without_decoding_is_refused() -> None:
    with pytest.raises(ValueError, match="no decoding step"):
        load_of(Recording(HEADER, ()))


def test_reasons_are_counted_without_their_figures() -> None:
    made = load(steady(0.0), CPU, batch=1, tokens=60)
    result = compare(made, fixed=()).controller
    assert "verifying does not pay" in result.off_reasons
    assert all(":" not in reason for reason in result.off_reasons)


def test_a_schedule_holds_for_the_controller() -> None:
    made = load(steady(0.9), GPU, batch=4, tokens=60)
    assert sum(compare(made, fixed=()).controller.drafted) > 0
    off = compare(made, fixed=(), schedule=DraftSchedule(((1, 2, K), (3, 9, 0)))).controller
    assert sum(off.drafted) == 0
    assert set(off.off_reasons) == {"num_speculative_tokens_per_batch_size is 0"}


def test_replays_repeat_exactly() -> None:
    first, again = (
        compare(load(steady(0.6), CPU, batch=4, tokens=60), fixed=()).controller for _ in range(2)
    )
    assert first == again


def test_the_best_k_is_the_fastest_and_none_where_none_pays() -> None:
    good = compare(load(steady(0.95), GPU, batch=1, tokens=120), fixed=(1, 8))
    assert good.best_k == 8
    assert good.best is good.fixed[8]
    bad = compare(load(steady(0.0), CPU, batch=1, tokens=120), fixed=(1, 8))
    assert bad.best_k == 0
    assert bad.best is bad.plain
