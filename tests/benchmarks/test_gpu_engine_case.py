from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.device_profile import Kernel, Launch
from benchmarks.gpu_engine_case import Bench, first_line, measure
from benchmarks.gpu_engine_sequences import made_up
from benchmarks.gpu_engine_times import medians
from benchmarks.tiny_model import make_tiny_model

MS = 1_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One eager engine of the tiny model on the CPU, everything measured once."""
    bench = Bench(
        model=str(make_tiny_model(tmp_path_factory.mktemp("model"))),
        device="cpu",
        dtype="float32",
        settings={"enforce_eager": True, "compile": False},
        shapes=((1, 1), (2, 3), (2, 9), (64, 1)),
        prefills=(8, 64, 999),
        context=16,
        max_model_len=200,
        max_num_seqs=9,
        num_speculative_tokens=3,
        calls=1,
        new_tokens=5,
    )
    found: dict[str, Any] = json.loads(json.dumps(measure(bench)))
    return found


def test_each_shape_there_is_room_for_is_timed_with_every_choice(report: dict[str, Any]) -> None:
    assert report["errors"] == {}
    shapes = [(line["sequences"], line["tokens"]) for line in report["decoding"]]
    assert shapes == [(1, 1), (2, 3)]
    for line in report["decoding"]:
        assert min(line[choice]["run_ms"] for choice in ("greedy", "random", "filtered")) > 0
    assert [line.get("steady_ms", 0) > 0 for line in report["decoding"]] == [True, False]


def test_prefill_is_timed_alone_and_beside_decoding(report: dict[str, Any]) -> None:
    found = [(line["tokens"], line["beside"]) for line in report["prefill"]]
    assert found == [(8, 0), (64, 0), (64, 8)]


def test_an_engine_that_is_right_passes_in_float32(report: dict[str, Any]) -> None:
    checks = report["checks"]
    for choice in ("greedy", "random"):
        assert checks[f"{choice}: right drafts accepted"] == [9, 9]
        assert checks[f"{choice}: tokens equal those of one step over them all"] == [15, 15]
        assert checks[f"{choice}: tokens equal with steps begun ahead"] == [15, 15]
    assert {name for name in checks if name.startswith("rows of equal bits")} == {
        "rows of equal bits beside 7 others",
        "rows of equal bits after a prompt in pieces of 100",
    }
    assert [len(answer) for answer in report["answers"]["random"]] == [5, 5, 5]


def test_sequences_differ_and_their_ids_are_the_vocabularys() -> None:
    assert made_up(0, 4, 300) != made_up(1, 4, 300)
    assert all(100 <= one < 300 for row in range(40) for one in made_up(row, 99, 300))


def test_the_largest_launch_is_the_forward_and_the_others_are_told_together() -> None:
    def call(at: int) -> list[Launch]:
        forward = (Kernel("gemm", at, at + 2 * MS, 1), Kernel("norm", at + 3 * MS, at + 4 * MS, 1))
        small = [Launch(at + n * MS, at + (n + 1) * MS, ()) for n in (5, 6)]
        filled = [replace(one, kernels=(Kernel("k", one.start, one.end, 2),)) for one in small]
        return [filled[0], Launch(at, at + 4 * MS, forward), filled[1]]

    assert medians([call(0), call(100 * MS)]) == {
        "forward_ms": 3.0,
        "forward_span_ms": 4.0,
        "others_ms": 2.0,
    }


def test_an_error_is_one_line() -> None:
    assert first_line(ValueError("bad\nand long")) == "ValueError: bad"
    assert first_line(KeyError()) == "KeyError: "


def test_a_bench_comes_from_json() -> None:
    bench = Bench.from_json('{"model": "m", "shapes": [[8, 5]], "prefills": [64]}')
    assert (bench.shapes, bench.prefills, bench.calls) == (((8, 5),), (64,), 15)
