"""The paced engine keeps its pace, and the report says what was read."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks import engine_message
from benchmarks.engine_process import Reading, page, rows
from benchmarks.paced_engine import MAX_MODEL_LEN, Pace, PacedEngine, build_decode
from tests.verifier_service.engine_process.joined import Answer, joined
from verifier_service.engine_process import wire
from verifier_service.engines.base import Chunk
from verifier_service.messages import NoDrafts, Request, Sampling
from verifier_service.settings import VerifierSettings


def chunk(token: int, *, samples: bool = True) -> Chunk:
    return Chunk([token], 0, [0], 0, samples, Sampling())


def test_a_step_takes_the_devices_time_and_gives_each_chunk_a_token() -> None:
    engine = PacedEngine(Pace(0.0, 0.002), vocab_size=30_000, sequences=2)
    done: list[str] = []
    begun = time.perf_counter()
    first, none = engine.run(
        [chunk(5), chunk(6, samples=False)], meanwhile=lambda: done.append("told")
    )
    assert time.perf_counter() - begun >= 0.002
    assert done == ["told"] and none is None and first is not None
    assert len(first.tokens) == 1 and 1000 <= first.tokens[0] < 21_000
    assert first.tokens != engine.run([chunk(7)])[0].tokens  # type: ignore[union-attr]


def test_the_hosts_time_is_its_processors() -> None:
    engine = PacedEngine(Pace(0.02, 0.0), vocab_size=30_000, sequences=1)
    begun = time.thread_time()
    engine.run([chunk(5)])
    # Turns are counted before, so a machine that is busy now takes no fewer of them.
    assert time.thread_time() - begun > 0.005


def test_a_paced_core_answers_across_the_channel() -> None:
    settings = VerifierSettings(
        model="", listen="", served_model_name="", num_prediction_tokens=0, max_num_seqs=4
    )
    with joined(build_decode(settings, NoDrafts())) as core:
        assert core.model.max_model_len == MAX_MODEL_LEN
        answer = Answer()
        core.submit(Request("a", [1000] * 4, Sampling(max_tokens=3)), answer)
        assert len(answer.wait().tokens) == 3


def test_a_row_has_each_engines_reading_that_was_disturbed_least() -> None:
    readings = [
        Reading("decode", engine, 8, rate, 7.0, rate * 8)
        for engine, rates in (("thread", (50.0, 90.0, 60.0)), ("process", (100.0, 120.0, 30.0)))
        for rate in rates
    ]
    (row,) = rows(readings)
    assert (row["case"], row["clients"]) == ("decode", 8)
    assert row["thread"]["steps_per_s"] == 90.0
    assert row["process"]["steps_per_s"] == 120.0


def test_the_page_says_what_was_measured_and_where() -> None:
    readings = [
        Reading("launch", "thread", 128, 20.0, 40.0, 2560.0),
        Reading("launch", "process", 128, 30.0, 20.0, 3840.0),
    ]
    report: dict[str, Any] = {
        "command": "python -m benchmarks.engine_process",
        "machine": {"cpu": "some", "cores": "2"},
        "versions": {"outrider": "0"},
        "seconds": 5.0,
        "repetitions": 3,
        "rows": rows(readings),
        "message": {
            "sequences": 128,
            "bytes": 7000,
            "encode_us": 100.0,
            "decode_us": 400.0,
            "dataclasses_bytes": 17000,
            "dataclasses_encode_us": 1600.0,
            "dataclasses_decode_us": 800.0,
        },
    }
    text = page(report)
    assert "| launch | 128 | 20.0 | 30.0 | 1.50 | 40.0 | 20.0 | 2560 | 3840 |" in text
    assert "cpu some; cores 2" in text
    assert "| fields as tuples, pickled | 100 | 400 | 7000 |" in text


def test_the_message_that_is_timed_is_the_one_that_travels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_message, "_REPEATS", 1)
    monkeypatch.setattr(engine_message, "_TIMES", 1)
    measured = engine_message.measure(4)
    sent = wire.encode_report(wire.Report(engine_message.outputs(4)))
    assert measured["bytes"] == len(sent)
    assert list(wire.decode_report(sent).outputs) == engine_message.outputs(4)
    assert min(value for key, value in measured.items() if key.endswith("_us")) > 0
