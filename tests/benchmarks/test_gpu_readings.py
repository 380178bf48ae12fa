from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu_card import (
    DESCRIBED,
    CardWatch,
    Samples,
    Watched,
    describe_card,
    parse_description,
)
from benchmarks.gpu_readings import Timing, difference, times, timings
from benchmarks.gpu_seen import seen, seen_table
from benchmarks.measurements import Measurements
from benchmarks.systems import Work
from outrider.errors import OperationError
from tests.benchmarks.gpu_fakes import Engine, item

TEXT = """\
# HELP outrider:verify_seconds Forward and sampling.
# TYPE outrider:verify_seconds histogram
outrider:verify_seconds_bucket{model_name="m",engine="0",step="plain",le="0.1"} 4.0
outrider:verify_seconds_bucket{model_name="m",engine="0",step="plain",le="+Inf"} 4.0
outrider:verify_seconds_count{model_name="m",engine="0",step="plain"} 4.0
outrider:verify_seconds_sum{model_name="m",engine="0",step="plain"} 0.2
outrider:verify_seconds_bucket{model_name="m",engine="1",step="plain",le="+Inf"} 1.0
outrider:verify_seconds_count{model_name="m",engine="1",step="plain"} 1.0
outrider:verify_seconds_sum{model_name="m",engine="1",step="plain"} 0.3
# HELP outrider:idle_seconds_total Nothing ran.
# TYPE outrider:idle_seconds_total counter
outrider:idle_seconds_total{engine="0"} 1.5
# HELP outrider:kv_blocks Blocks.
# TYPE outrider:kv_blocks gauge
outrider:kv_blocks 9.0
# HELP vllm:e2e_seconds Not ours.
# TYPE vllm:e2e_seconds histogram
vllm:e2e_seconds_bucket{le="+Inf"} 1.0
vllm:e2e_seconds_count 1.0
vllm:e2e_seconds_sum 1.0
"""


def test_times_are_our_own_seconds_over_all_verifiers() -> None:
    assert times(TEXT) == {
        "outrider:verify_seconds{plain}_sum": pytest.approx(0.5),
        "outrider:verify_seconds{plain}_count": 5.0,
        "outrider:idle_seconds_total": 1.5,
    }


def test_only_what_was_added_is_a_reading() -> None:
    assert difference({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 2.0, "c": 3.0}) == {"a": 0.5, "c": 3.0}


def test_the_engines_account_of_the_device_is_shown_as_a_share() -> None:
    text = (
        "# TYPE outrider:device_busy_seconds_total counter\n"
        'outrider:device_busy_seconds_total{engine="0",model_name="m"} 3.5\n'
    )
    added = difference({"outrider:device_busy_seconds_total": 3.0}, times(text))
    assert added == {"outrider:device_busy_seconds_total": pytest.approx(0.5)}
    # 128 tokens at 64 tokens a second took two seconds.
    page = seen_table(Measurements([replace(item("a", 64), readings=added)]))
    assert "| device busy |" in page and page.splitlines()[-1].endswith("| 25 % |")


def test_timings_are_summed_over_stretches() -> None:
    one = {"outrider:x_seconds_sum": 0.2, "outrider:x_seconds_count": 4.0, "client_cpu_share": 1.0}
    found = timings([one, one, {"outrider:idle_seconds_total": 0.1}])
    assert found == [
        Timing("outrider:idle_seconds", 0.1, 0.0),
        Timing("outrider:x_seconds", 0.4, 8.0),
    ]
    assert found[1].mean_ms == pytest.approx(50)
    assert found[0].mean_ms is None


def test_means_are_weighted_by_time() -> None:
    short = replace(item("a", 128), readings={"gpu_busy_percent": 10.0})
    long = replace(item("a", 128 / 3), readings={"gpu_busy_percent": 50.0})
    assert seen([short, long, item("a", 1)]).means == {"gpu_busy_percent": pytest.approx(40)}


def test_samples_are_averaged_over_the_time_asked_for() -> None:
    samples = Samples()
    for now, line in ((1.0, "10, 1000, 100.0"), (2.0, "30, 2000, [N/A]"), (9.0, "99, 1, 1")):
        samples.add(now, line)
    assert samples.between(0.5, 3.0) == {
        "gpu_busy_percent": 20.0,
        "gpu_sm_mhz": 1500.0,
        "gpu_power_w": 100.0,
    }
    assert samples.between(3.0, 4.0) == {}


def test_a_watched_system_keeps_its_own_readings() -> None:
    watched = Watched(Engine(8.0), Samples())
    assert watched.generate(Work(((1,),), (8,), 0.0, 1)).readings["client_cpu_share"] == 0.25


def test_the_first_card_is_described() -> None:
    text = "NVIDIA H200, 143771, 580.159.04\nNVIDIA H200, 143771, 580.159.04\n"
    assert parse_description(text) == dict(
        zip(DESCRIBED, ("NVIDIA H200", "143771", "580.159.04"), strict=True)
    )


def fake_command(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """`nvidia-smi` does what `script` says."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setattr("benchmarks.gpu_card.COMMAND", str(command))


def test_a_card_that_is_not_there_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_command(tmp_path, monkeypatch, "echo No devices were found; exit 6")
    with pytest.raises(OperationError, match="ended with code 6: No devices were found"):
        describe_card()


def test_the_card_is_watched_until_the_context_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_command(tmp_path, monkeypatch, "echo 55, 1980, 300; exec sleep 60")
    came = threading.Event()
    add = Samples.add

    def heard(samples: Samples, now: float, line: str) -> None:
        add(samples, now, line)
        came.set()

    monkeypatch.setattr(Samples, "add", heard)
    with CardWatch() as watch:
        assert came.wait(30)
    assert watch.samples.items[0][1]["gpu_busy_percent"] == 55.0
