"""A capture is cut where the forward says so, and its parts are replayed in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.verifier_service.engines import paged
from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_torch_engine import llama
from verifier_service.engines import fused
from verifier_service.engines.cuda_capture import cuda_capture
from verifier_service.engines.seams import cutting, seam

__all__ = ["llama"]


class Recorder:
    """CUDA's captures as a list of what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.count = 0
        told = self.told
        recorder = self

        class Graph:
            def __init__(self) -> None:
                recorder.count += 1
                self.number = recorder.count

            def capture_begin(self, pool: object, capture_error_mode: str) -> None:
                told.append(f"begin {self.number}")

            def capture_end(self) -> None:
                told.append(f"end {self.number}")

            def replay(self) -> None:
                told.append(f"replay {self.number}")

        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "graph_pool_handle": lambda: "pool",
            "Stream": lambda: stream,
            "current_stream": lambda: stream,
            "stream": lambda some: nullcontext(),
            "synchronize": lambda: None,
            "CUDAGraph": Graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def take(self) -> list[str]:
        told = list(self.told)
        self.told.clear()
        return told


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def test_a_function_with_seams_is_captured_in_parts(recorder: Recorder) -> None:
    def function() -> None:
        recorder.told.append("first")
        seam()
        recorder.told.append("second")
        seam()
        recorder.told.append("third")

    replay = cuda_capture()(function)
    warm = ["first", "second", "third"] * 2
    parts = ["begin 1", "first", "end 1", "begin 2", "second", "end 2", "begin 3", "third", "end 3"]
    replayed = ["replay 1", "replay 2", "replay 3"]
    assert recorder.take() == [*warm, *parts, *replayed]
    replay()
    assert recorder.take() == replayed


def test_a_function_without_seams_is_one_part(recorder: Recorder) -> None:
    replay = cuda_capture()(lambda: None)
    assert recorder.take() == ["begin 1", "end 1", "replay 1"]
    replay()
    assert recorder.take() == ["replay 1"]


def test_a_capture_that_fails_is_ended(recorder: Recorder) -> None:
    calls = iter(range(10))

    def function() -> None:
        seam()
        if next(calls) == 2:
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        cuda_capture()(function)
    assert recorder.take() == ["begin 1", "end 1", "begin 2", "end 2"]
    # Nobody cuts any more.
    seam()
    assert recorder.take() == []


@contextmanager
def counted() -> Iterator[list[int]]:
    seen: list[int] = []
    with cutting(lambda: seen.append(1)):
        yield seen


def test_seams_do_nothing_where_nobody_cuts() -> None:
    with counted() as seen:
        seam()
    seam()
    assert len(seen) == 1


@pytest.mark.parametrize(("layers", "cuts"), [((1,), {0, 1}), ((7,), {0})])
def test_a_forward_is_cut_behind_its_first_layers(
    layers: tuple[int, ...], cuts: set[int], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "LAYERS", layers)
    found = []

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        with counted() as seen:
            function()
        found.append(len(seen))
        return function

    monkeypatch.setattr(paged, "run_once", capture)
    paged_engine(llama, monkeypatch).close()
    # Forwards have seams, choices have none.
    assert set(found) == cuts
