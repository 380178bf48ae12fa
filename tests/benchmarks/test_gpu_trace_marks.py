"""The names of the engine's pieces hold for the engine as it is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.gpu_idle import RUN
from benchmarks.gpu_trace_marks import engine_pieces, watched
from benchmarks.host_marks import marking
from benchmarks.tiny_model import make_tiny_model
from tests.toy_engine import ToySource
from tests.verifier_service.engines.paged import paged_engine
from verifier_service.engines.base import Chunk
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling
from verifier_service.proposer_pool import ProposerPool


def test_nothing_that_is_watched_is_gone() -> None:
    for source in (ToySource, ProposerPool):
        with marking([*watched(TorchEngine, source), *engine_pieces()], "engine") as host:
            assert host.missing == []


def test_a_run_is_told_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paged_engine(make_tiny_model(tmp_path), monkeypatch)
    chunk = Chunk([1, 2, 3], 0, [0], 2, True, Sampling(temperature=0.0, max_tokens=9))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            engine.run([chunk], goes_on=lambda _: True)
        except BaseException as error:
            failed.append(error)

    with marking([*watched(TorchEngine, ToySource), *engine_pieces()], "engine") as host:
        thread = threading.Thread(target=run, name="engine")
        thread.start()
        thread.join()
    assert not failed
    engine.close()
    names = {mark.name for mark in host.marks}
    assert {
        RUN,
        "engine: find",
        "engine: launch",
        "engine: fill",
        "engine: needs",
        "engine: copy of the result",
        "engine: verdicts read",
        "engine: expect",
        "engine: begin next",
    } <= names
