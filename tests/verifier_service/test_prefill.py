"""Prefill beside running streams: both limits, order, and nobody starved."""

from __future__ import annotations

import pytest

from tests.verifier_service.scheduler_bench import Bench, plain, sampling

TOKEN_S = 0.001
STEP_S = 0.01


class Clocked(Bench):
    """Each step takes 10 ms and 1 ms for each token of prefill in it, by a clock of its own."""

    def step(self):  # type: ignore[no-untyped-def]
        self.scheduler.admit()
        self.scheduler.views()
        planned = self.scheduler.plan({})
        self.engine.copy_blocks(self.scheduler.take_copies())
        chunks = [part.chunk for part in planned]
        prefill = sum(len(c.ids) for c in chunks if not c.samples or len(c.ids) > 1)
        times = type(self).times(int((STEP_S + TOKEN_S * prefill) * 1e9))
        for sink, output in self.scheduler.apply(planned, self.engine.run(chunks), times):
            sink(output)
        self.gaps.append((STEP_S + TOKEN_S * prefill, [c for c in chunks if c.samples]))
        return chunks

    @staticmethod
    def times(nanoseconds: int):  # type: ignore[no-untyped-def]
        from verifier_service.scheduler import StepTimes

        return StepTimes(0, nanoseconds)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gaps: list[tuple[float, list[object]]] = []


def text(length: int, seed: int) -> list[int]:
    return [(i * i + seed * i // 3 + seed) % 4 for i in range(length)]


def loaded(stall_s: float, prompts: int = 6, length: int = 200) -> Clocked:
    bench = Clocked(guess=None, k=0, num_blocks=800, max_num_seqs=16, budget=512, stall_s=stall_s)
    bench.add("stream", [1, 2], sampling(max_tokens=120))
    bench.step()
    for number in range(prompts):
        bench.add(f"p{number}", text(length, number), sampling(max_tokens=2))
    return bench


def test_waiting_prompts_do_not_stretch_a_streams_gap_beyond_the_limit() -> None:
    bench = loaded(0.05)
    bench.finish()
    # Each gap is a step; the first one with prefill rests on a guess of what prefill costs.
    gaps = [seconds for seconds, _ in bench.gaps[1:]]
    assert max(gaps[2:]) <= STEP_S + 0.05 + TOKEN_S
    assert len([gap for gap in gaps if gap > STEP_S + 0.03]) > 20, "the limit is not used"
    for number in range(6):
        wanted = sampling(max_tokens=2)
        assert bench.tokens(f"p{number}") == plain(text(200, number), wanted)


def test_without_the_limit_a_gap_is_as_long_as_the_budget_allows() -> None:
    bench = loaded(float("inf"))
    bench.finish()
    assert max(seconds for seconds, _ in bench.gaps) > 0.4


def test_the_stream_has_a_token_in_every_step() -> None:
    bench = loaded(0.05)
    for _ in range(60):
        before = len(bench.tokens("stream"))
        bench.step()
        assert len(bench.tokens("stream")) == before + 1


def test_nobody_decoding_means_no_time_limit() -> None:
    bench = Clocked(guess=None, k=0, num_blocks=800, budget=512, stall_s=0.0)
    bench.add("p", text(500, 1), sampling(max_tokens=1))
    assert [len(chunk.ids) for chunk in bench.step()] == [500]


@pytest.mark.parametrize("stall_s", [0.0, 1e-9])
def test_prefill_always_gets_on(stall_s: float) -> None:
    """With next to no time left for it: as long as the decoding takes, and 16 tokens at least."""
    bench = loaded(stall_s, prompts=1)
    bench.step()
    for _ in range(8):
        chunks = bench.step()
        assert any(len(chunk.ids) >= 10 for chunk in chunks)


def test_a_slow_decoder_may_be_held_up_as_long_as_it_takes_itself() -> None:
    """200 ms a step: prefill within 50 ms would be hardly any, and reads all weights each time."""
    bench = loaded(0.05, prompts=0)
    for _ in range(400):
        bench.controller.observe_step(1, 1, 10, 0.2)
    assert bench.controller.costs.seconds(1) > 0.15
    bench.add("p", text(400, 1), sampling(max_tokens=1))
    bench.step()
    widest = max(len(c.ids) for _ in range(3) for c in bench.step())
    assert widest > 100


def test_the_token_budget_holds_too() -> None:
    bench = Clocked(guess=None, k=0, num_blocks=800, budget=40, stall_s=10.0)
    bench.add("stream", [1, 2], sampling(max_tokens=50))
    bench.step()
    bench.add("p", text(200, 1), sampling(max_tokens=1))
    for _ in range(4):
        assert sum(len(chunk.ids) for chunk in bench.step()) == 40


def test_urgent_prompts_are_prefilled_first() -> None:
    bench = Clocked(guess=None, k=0, num_blocks=800, max_num_seqs=4, budget=32)
    bench.add("patient", text(120, 1), sampling(max_tokens=1), priority=5)
    bench.step()
    bench.add("urgent", text(60, 2), sampling(max_tokens=1), priority=-5)
    steps = 0
    while not bench.tokens("urgent"):
        bench.step()
        steps += 1
    assert steps == 2
    assert not bench.tokens("patient")
