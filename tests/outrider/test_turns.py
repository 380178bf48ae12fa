"""Threads of a server's process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import turns
from verifier_service import server
from verifier_service.engine_process import child


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


@pytest.mark.parametrize("module", [server, child])
def test_both_processes_of_a_verifier_take_them(module: object) -> None:
    assert "turns.be_short()" in Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
