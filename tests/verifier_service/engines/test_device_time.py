"""Busy seconds from marks of a made-up device that does one launch after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from verifier_service.engines.device_time import DeviceTime, Mark, device_time


class Device:
    """Time passes when told; a launch begins when it is given and the one before has ended."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self.recorded = 0
        self.time = DeviceTime(lambda: Point(self))

    def work(self, milliseconds: float) -> None:
        with self.time.launch():
            self.give(milliseconds)

    def give(self, milliseconds: float) -> None:
        self.free_at = max(self.free_at, self.now) + milliseconds


@dataclass
class Point:
    """A mark: passed once the device has done what stood before it."""

    device: Device
    at: float = -1.0

    def record(self) -> None:
        self.device.recorded += 1
        self.at = max(self.device.now, self.device.free_at)

    def query(self) -> bool:
        assert self.at >= 0, "asked before it was recorded"
        return self.at <= self.device.now

    def elapsed_time(self, end: Mark) -> float:
        assert isinstance(end, Point)
        assert self.query() and end.query(), "read before it was passed"
        return end.at - self.at


def test_time_between_launches_is_idle() -> None:
    device = Device()
    device.work(5)
    device.now = 20
    device.work(3)
    device.now = 40
    assert device.time.seconds() == pytest.approx(0.008)


def test_launches_that_wait_for_each_other_are_counted_once() -> None:
    device = Device()
    for _ in range(3):
        device.work(5)
    device.now = 7
    assert device.time.seconds() == pytest.approx(0.005), "only what has ended"
    device.now = 15
    assert device.time.seconds() == pytest.approx(0.015)


def test_a_busy_device_gets_one_mark_a_launch() -> None:
    device = Device()
    for _ in range(4):
        device.work(5)
    assert device.recorded == 5
    device.now = 100
    device.work(5)
    assert device.recorded == 7, "idle before: one in front, one behind"


def test_nothing_is_waited_for() -> None:
    device = Device()
    device.work(5)
    assert device.time.seconds() == 0.0


def test_gaps_within_a_launch_count_as_busy() -> None:
    device = Device()
    with device.time.launch():
        device.give(1)
        device.now = 4
        device.give(2)
    device.now = 10
    assert device.time.seconds() == pytest.approx(0.006)


def test_replays_of_a_timed_capture_are_launches() -> None:
    device = Device()
    captured: list[str] = []

    def capture(function):  # type: ignore[no-untyped-def]
        captured.append("captured")
        return function

    replay = device.time.timed(capture)(lambda: device.give(5))
    assert captured == ["captured"]
    assert device.recorded == 0, "a capture is no launch"
    replay()
    replay()
    device.now = 10
    assert device.time.seconds() == pytest.approx(0.010)


def test_ended_launches_are_forgotten() -> None:
    device = Device()
    for _ in range(1000):
        device.work(1)
        device.now += 2
    assert len(device.time._pending) <= 1
    assert device.time.seconds() == pytest.approx(1.0)


def test_a_launch_that_fails_counts_nothing() -> None:
    device = Device()
    with pytest.raises(RuntimeError), device.time.launch():
        device.give(3)
        raise RuntimeError("out of memory")
    device.now = 10
    device.work(2)
    device.now = 20
    assert device.time.seconds() == pytest.approx(0.002)


def test_a_processor_has_no_account() -> None:
    assert device_time(torch.device("cpu")) is None
