"""The controller on rounds of SmolLM2-135M-Instruct, recorded on a CPU through the whole stack.

`edits-1`: code to be rewritten, one client; `mixed-4`: rewriting and chat in turns, four clients;
`chat-4`: chat at temperature 1, four clients; `mixed-2-all`: two clients, temperature 0.7, every
offered draft verified. n-gram and suffix proposers, K = 8.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.verifier_service.simulation.loads import PROFILED, TABLES
from verifier_service.simulation.policies import Load, compare, load_of
from verifier_service.simulation.recording import Header, Recording, read_recording

FOLDER = Path(__file__).parent.parent / "recordings"
NAMES = ("chat-4", "edits-1", "mixed-2-all", "mixed-4")


@cache
def recorded(name: str) -> Recording:
    return read_recording(FOLDER / f"{name}.jsonl.gz")


def on(table: str, made: Load) -> Load:
    """The same drafts on another device, where asking costs nothing.

    It runs while as many sequences are left as run at a time: at the end the one that accepts least
    would decide how long all take.
    """
    cost = TABLES[table]
    profile = {rows: cost.seconds(rows, 1, 0) for rows in PROFILED}
    header = Header(made.header.num_speculative_tokens, profile)
    return replace(made, header=header, cost=cost, asking=lambda _step: 0.0, drain=False)


def test_the_recordings_are_small() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == [f"{n}.jsonl.gz" for n in NAMES]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_agrees_with_itself(name: str) -> None:
    """Positions follow from what was emitted, rows from what was verified."""
    at: dict[int, int] = {}
    for step in recorded(name).steps:
        drafted = sum(part.verified for part in step.rounds)
        assert step.rows == step.prefill + len(step.rounds) + drafted
        for part in step.rounds:
            assert part.position == at.get(part.sequence, part.position)
            at[part.sequence] = part.position + part.emitted
            if part.used >= 0:
                right = part.offers[part.used].right
                # What an end of the answer cut was accepted, and is not known to be right.
                assert min(right, part.verified) <= part.accepted <= part.verified


@pytest.mark.parametrize("name", NAMES)
def test_never_slower_than_plain_by_its_own_times(name: str) -> None:
    made = load_of(recorded(name))
    assert compare(made, fixed=()).against_plain >= 0.98
    assert compare(replace(made, noise=()), fixed=()).against_plain >= 0.98


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", NAMES)
def test_never_slower_than_plain_on_other_devices(name: str, table: str) -> None:
    found = compare(on(table, load_of(recorded(name))), fixed=(1, 2, 4, 8))
    assert found.against_plain >= 0.98
    assert found.against_best >= 0.95


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wait_ms", [0.5, 1.0, 2.0, 5.0])
def test_never_slower_than_plain_where_asking_costs(name: str, wait_ms: float) -> None:
    made = replace(on("gpu", load_of(recorded(name))), asking=lambda _step: wait_ms / 1e3)
    assert compare(made, fixed=()).against_plain >= 0.98


def test_code_edits_are_worth_three_times_plain() -> None:
    assert compare(load_of(recorded("edits-1")), fixed=()).against_plain >= 3.0
