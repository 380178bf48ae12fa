"""Threads of a server's process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from outrider import turns


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_a_small_part_of_a_step() -> None:
    sys.setswitchinterval(0.005)
    turns.be_short()
    assert sys.getswitchinterval() == pytest.approx(turns.TURN_S, rel=0.01)
    assert turns.TURN_S < 0.001
