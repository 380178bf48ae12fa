"""Engines and measurements without a card, for the GPU benchmark's tests."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.bars import BOTH, NGRAM, PLAIN, SUFFIX
from benchmarks.gpu_bars import VLLM_PLAIN
from benchmarks.gpu_engines import Opened
from benchmarks.gpu_report import GpuReport
from benchmarks.measurements import Measurement, Measurements
from benchmarks.systems import Answer, Row, Work


class Engine:
    """Answers at `speed` tokens a second, and remembers the works."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.works: list[Work] = []

    def generate(self, work: Work) -> Answer:
        self.works.append(work)
        outputs = tuple((7,) * length for length in work.lengths)
        seconds = sum(work.lengths) / self.speed
        readings = {"client_cpu_share": 0.25, "outrider:verify_seconds{plain}_sum": seconds / 2}
        return Answer(seconds, outputs, 1, 4, 2, readings=readings)


@dataclass
class FakePhase:
    """An engine that notes when it starts and stops in `log`."""

    name: str
    rows: dict[str, float]
    log: list[str]
    options: str = "--fast"
    engines: dict[str, Engine] = field(default_factory=dict)

    def open(self, stack: ExitStack) -> Opened:
        self.log.append(f"start {self.name}")
        stack.callback(self.log.append, f"stop {self.name}")
        self.engines = {row: Engine(speed) for row, speed in self.rows.items()}
        rows = tuple(
            Row(row, engine, (1, 2, 8, 32, 128), (0.0, 1.0)) for row, engine in self.engines.items()
        )
        return Opened(rows, {self.name: "1"}, 12.0)


def item(
    row: str, speed: float, clients: int = 1, temperature: float = 0.0, repetition: int = 0
) -> Measurement:
    """128 tokens at `speed` tokens a second."""
    return Measurement(
        row=row,
        prompt_set="spec-bench",
        clients=clients,
        temperature=temperature,
        repetition=repetition,
        unit="u",
        seconds=128 / speed,
        new_tokens=128,
        prompt_tokens=60,
        steps=0 if row.endswith("plain") else 40,
        drafted=0 if row.endswith("plain") else 160,
        accepted=0 if row.endswith("plain") else 80,
        outputs=("x",),
    )


def report(*items: Measurement, gpu: str = "H200", commit: str = "abc") -> GpuReport:
    return GpuReport(
        command="python -m benchmarks.gpu",
        machine={"gpu": gpu, "driver": "580", "date": "2026-11-29", "commit": commit},
        versions={"torch": "2"},
        settings={"seed": "1"},
        measurements=Measurements(list(items)),
        options={"outrider serve": "--fast"},
        starts={"outrider serve": 12.0},
        notes=("A note.",),
        rows=tuple(dict.fromkeys(one.row for one in items)),
    )


ALL_ROWS = (PLAIN, NGRAM, SUFFIX, BOTH, VLLM_PLAIN)
