"""The recorder in a running scheduler: what it writes, its bounds, and that it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import InputError
from tests.toy import Toy
from tests.toy_engine import ToyEngine, ToySource, oracle, random_guess
from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.scheduler import Scheduler
from verifier_service.simulation.recorder import RoundRecorder
from verifier_service.simulation.recording import Header, Recording, read_recording

HEADER = Header(4, {1: 0.01, 33: 0.011})


def recorded(bench: Bench, path: Path, **more: int) -> RoundRecorder:
    """Give a bench a scheduler with a recorder."""
    recorder = RoundRecorder(path, HEADER, **more)
    bench.scheduler = Scheduler(
        bench.engine.cache,
        bench.controller,
        num_speculative_tokens=bench.k,
        max_num_seqs=bench.max_num_seqs,
        max_num_batched_tokens=bench.budget,
        max_waiting=bench.max_waiting,
        recorder=recorder,
    )
    return recorder


def run(bench: Bench, path: Path, temperature: float = 0.0) -> Recording:
    recorded(bench, path)
    for seed, name in enumerate("abc"):
        bench.add(name, [1, 2, 3], sampling(temperature=temperature, seed=seed, max_tokens=12))
    bench.finish()
    bench.scheduler.end_all()
    return read_recording(path)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recording_changes_no_output(tmp_path: Path, temperature: float) -> None:
    bench = Bench(guess=random_guess)
    run(bench, tmp_path / "r.jsonl", temperature)
    for seed, name in enumerate("abc"):
        wanted = sampling(temperature=temperature, seed=seed, max_tokens=12)
        assert bench.tokens(name) == plain([1, 2, 3], wanted)


def test_a_perfect_drafters_blocks_are_all_right(tmp_path: Path) -> None:
    recording = run(Bench(guess=oracle(Toy.target())), tmp_path / "r.jsonl.gz")
    rounds = [part for step in recording.steps for part in step.rounds]
    offers = [offer for part in rounds for offer in part.offers]
    assert offers and all(offer.right == offer.offered for offer in offers)
    assert all(part.accepted == part.verified for part in rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_was_accepted_agrees_with_what_was_right(tmp_path: Path, temperature: float) -> None:
    bench = Bench(guess=random_guess)
    recording = run(bench, tmp_path / "r.jsonl", temperature)
    rounds = [part for step in recording.steps for part in step.rounds]
    used = [part for part in rounds if part.used >= 0]
    assert used
    for part in used:
        assert part.accepted == min(part.offers[part.used].right, part.verified)
    assert any(offer.right < offer.offered for part in rounds for offer in part.offers)
    assert sum(part.emitted for part in rounds) + 3 == sum(len(bench.tokens(n)) for n in "abc")
    for step in recording.steps:
        assert step.rows == step.prefill + len(step.rounds) + sum(p.verified for p in step.rounds)


def test_positions_follow_from_what_was_emitted(tmp_path: Path) -> None:
    recording = run(Bench(guess=random_guess), tmp_path / "r.jsonl")
    at: dict[int, int] = {}
    for step in recording.steps:
        for part in step.rounds:
            assert part.position == at.get(part.sequence, part.position)
            at[part.sequence] = part.position + part.emitted
            assert part.ask == 0 or part.ask <= part.limit


def test_the_file_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    bench = Bench(guess=random_guess)
    path = tmp_path / "r.jsonl"
    recorder = recorded(bench, path, most_bytes=2000)
    bench.add("a", [1, 2, 3], sampling(max_tokens=100))
    bench.finish()
    bench.scheduler.end_all()
    recorder.close()
    assert path.stat().st_size <= 2000
    assert 1 <= len(read_recording(path).steps) < 100


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        RoundRecorder(tmp_path / "none" / "r.jsonl", HEADER)
    assert "--record-rounds: cannot write" in str(caught.value)


def test_an_engine_that_failed_leaves_a_readable_file(tmp_path: Path) -> None:
    engine = ToyEngine()
    controller = Controller(4, CostTable.from_profile({1: 0.01}))
    bench = Bench()
    bench.engine, bench.controller, bench.source = engine, controller, ToySource(random_guess)
    recorded(bench, tmp_path / "r.jsonl")
    bench.add("a", [1, 2, 3], sampling(max_tokens=50))
    engine.fail_at = 6
    with pytest.raises(RuntimeError):
        bench.finish()
    bench.scheduler.end_all()
    assert len(read_recording(tmp_path / "r.jsonl").steps) == 6
