from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.device_profile import Kernel, Profile, profiled, steps, warm_profiler
from benchmarks.intervals import Interval, Mark


@dataclass(frozen=True)
class Event:
    """A raw event of torch's profiler as far as it is read."""

    kind: str
    called: str
    began: int
    took: int
    correlation: int = 0

    def activity_type(self) -> str:
        return self.kind

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return self.began

    def duration_ns(self) -> int:
        return self.took

    def correlation_id(self) -> int:
        return self.correlation


EVENTS = (
    Event("cuda_runtime", "cudaGraphLaunch", 90, 8, 7),
    Event("kernel", "gemm", 100, 10, 7),
    Event("kernel", "norm", 112, 5, 7),
    Event("kernel", "attention", 108, 6, 7),
    Event("gpu_user_annotation", "run", 100, 500, 7),
    Event("gpu_memcpy", "Memcpy DtoH", 130, 2, 8),
    Event("cpu_op", "aten::mm", 80, 3, 9),
)


def test_kernels_and_calls_are_told_apart_and_annotations_left_out() -> None:
    profile = Profile()
    profile.read(EVENTS)
    assert [kernel.name for kernel in profile.kernels] == [
        "gemm",
        "norm",
        "attention",
        "Memcpy DtoH",
    ]
    assert profile.calls == [Mark("cudaGraphLaunch", 90, 98)]


def test_a_launch_spans_its_kernels_and_is_busy_while_any_of_them_runs() -> None:
    profile = Profile()
    profile.read(EVENTS)
    graph, copy = profile.launches()
    assert (graph.start, graph.end, graph.busy) == (100, 117, 17)
    assert [kernel.name for kernel in graph.kernels] == ["gemm", "attention", "norm"]
    assert (copy.start, copy.end, copy.busy) == (130, 132, 2)


def test_a_launch_belongs_to_the_call_that_it_began_in() -> None:
    profile = Profile(kernels=[Kernel("k", at, at + 1, at) for at in (5, 12, 18, 25, 31)])
    found = steps(profile.launches(), [Interval(10, 20), Interval(30, 40)])
    assert [[launch.start for launch in some] for some in found] == [[12, 18], [31]]


def test_without_a_card_nothing_is_seen_and_nothing_written(tmp_path: Path) -> None:
    warm_profiler("cpu")
    with profiled("cpu", tmp_path / "trace.json") as profile:
        pass
    assert (profile.kernels, profile.calls, list(tmp_path.iterdir())) == ([], [], [])
