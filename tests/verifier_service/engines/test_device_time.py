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
        self.recorded = self.made = self.asked = 0
        self.time = DeviceTime(self.make)

    def make(self) -> Point:
        self.made += 1
        return Point(self)

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
        self.device.asked += 1
        return self.at <= self.device.now

    def elapsed_time(self, end: Mark) -> float:
        assert isinstance(end, Point)
        assert max(self.at, end.at) <= self.device.now, "read before it was passed"
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


def test_ended_launches_are_forgotten_where_nobody_asks() -> None:
    device = Device()
    for _ in range(1000):
        device.work(1)
        device.now += 2
    assert len(device.time._pending) <= 17
    assert device.time.seconds() == pytest.approx(1.0)


def test_a_launch_asks_only_whether_the_device_works() -> None:
    device = Device()
    for _ in range(4):
        device.work(5)
    assert device.asked == 3, "one question for each but the first"


@pytest.mark.parametrize("asked_while_it_works", [False, True])
def test_marks_are_used_again_once_they_were_read(asked_while_it_works: bool) -> None:
    device = Device()
    for step in range(100):
        for _ in range(3):
            device.work(1)
        if asked_while_it_works:
            assert device.time.seconds() == pytest.approx(0.003 * step)
        # The device stands still in front of every other step.
        device.now = device.free_at + step % 2
        if not asked_while_it_works:
            assert device.time.seconds() == pytest.approx(0.003 * (step + 1))
    assert device.recorded > 300
    assert device.made <= 8


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
