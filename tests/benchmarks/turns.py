"""Turns as a run of benchmarks.telemetry_cost might have made them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.telemetry_turns import Turn


def turn(
    traced: bool,
    speeds: Sequence[float],
    *,
    clients: int = 1,
    quad: int = 0,
    foreign: Sequence[float] | None = None,
    answers: Sequence[str] | None = None,
    rounds: Sequence[int] | None = None,
    gateway_ms: float = 0.0,
) -> Turn:
    """A window of 100 tokens for each of `speeds`."""
    windows = len(speeds)
    return Turn(
        clients=clients,
        quad=quad,
        traced=traced,
        seconds=tuple(100 / speed for speed in speeds),
        tokens=(100,) * windows,
        rounds=tuple(rounds or (5,) * windows),
        answers=tuple(answers or ("same",) * windows),
        foreign=tuple(foreign or (0.0,) * windows),
        processor_ms={"gateway": gateway_ms},
    )


def quad(
    speed: float, traced_speed: float, *, number: int = 0, clients: int = 1, first: bool = True
) -> list[Turn]:
    """Four turns of one window; `first` is the mode that begins."""
    order = (first, not first, not first, first)
    return [
        turn(mode, [traced_speed if mode else speed], clients=clients, quad=number)
        for mode in order
    ]
