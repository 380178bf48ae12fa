from __future__ import annotations

import pytest

from benchmarks.device_profile import Kernel, Profile
from benchmarks.gpu_idle import RUN, Idle, idle
from benchmarks.intervals import UNMARKED, Mark

MS = 1_000_000


def step(number: int, at: int) -> list[Kernel]:
    """A captured step of 5 ms in two kernels with 1 ms between them, and its copy right behind."""
    return [
        Kernel("gemm", at, at + 2 * MS, number),
        Kernel("gemm", at + 3 * MS, at + 5 * MS, number),
        Kernel("copy", at + 5 * MS, at + 6 * MS, 100 + number),
    ]


# Two steps, the second 4 ms after the first one's end.
PROFILE = Profile(
    kernels=[*step(1, 10 * MS), *step(2, 20 * MS)],
    calls=[Mark("cudaGraphLaunch", 19 * MS, 20 * MS), Mark("cudaFree", 17 * MS, 18 * MS)],
)
MARKS = [
    Mark(RUN, 9 * MS, 16 * MS + MS // 2),
    Mark("scheduler: plan", 17 * MS, 18 * MS + MS // 2),
    Mark("controller: plan", 17 * MS + MS // 2, 18 * MS),
    Mark(RUN, 18 * MS + MS // 2, 27 * MS),
]


def test_pauses_inside_a_launch_are_no_idleness_but_no_kernels_either() -> None:
    found = idle(PROFILE, MARKS)
    assert found.seconds == pytest.approx(0.016)
    assert found.idle == pytest.approx(4 / 16)
    assert found.kernels == pytest.approx(10 / 16)
    assert (found.steps, found.gaps) == (2, 1)


def test_a_gap_tells_what_the_engines_thread_did_innermost_first() -> None:
    (gap,) = idle(PROFILE, MARKS).largest
    assert (gap.at_ms, gap.ms) == (6.0, 4.0)
    assert gap.host == {
        RUN: 1.0,
        "scheduler: plan": 1.0,
        "cudaGraphLaunch": 1.0,
        "controller: plan": 0.5,
        UNMARKED: 0.5,
    }


def test_a_call_of_another_thread_outside_the_engine_is_not_the_engines() -> None:
    assert "cudaFree" not in idle(PROFILE, MARKS).host


def test_the_largest_gaps_are_told_largest_first() -> None:
    starts = [0, 10, 21, 33, 44, 54, 64, 74, 84, 94, 104, 114, 124]
    profile = Profile(kernels=[kernel for at in starts for kernel in step(at, at * MS)])
    found = idle(profile, [])
    lengths = [gap.ms for gap in found.largest]
    assert (found.gaps, len(lengths)) == (12, 10)
    assert lengths[:4] == [6.0, 5.0, 5.0, 4.0]
    assert found.host == {UNMARKED: pytest.approx(sum([4.0] * 9, 16.0))}


def test_without_a_device_the_engine_itself_is_what_is_busy() -> None:
    found = idle(Profile(), MARKS)
    assert found.seconds == pytest.approx(0.018)
    assert found.idle == pytest.approx(2 / 18)
    with pytest.raises(ValueError, match="nothing ran"):
        idle(Profile(), [])


def test_a_trace_survives_json() -> None:
    found = idle(PROFILE, MARKS)
    assert Idle.from_json(found.to_json()) == found
