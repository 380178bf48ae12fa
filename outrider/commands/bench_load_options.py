"""Options of the bench commands that say how much is sent, and when.

Knows the command line; the names are those of `vllm bench serve`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.bench.arrivals import Ramp

Burstiness = Annotated[
    float,
    typer.Option(help="Scatter of arrivals: 1 Poisson, below burstier, above steadier, inf even."),
]
RampUpStrategy = Annotated[
    str | None,
    typer.Option(help="Raise the rate over the run, linear or exponential, both ends given."),
]
RampUpStart = Annotated[
    float | None, typer.Option("--ramp-up-start-rps", help="Requests a second at the start.")
]
RampUpEnd = Annotated[
    float | None, typer.Option("--ramp-up-end-rps", help="Requests a second at the end.")
]
InputLen = Annotated[
    int | None,
    typer.Option(
        min=1, help="Keep only so many tokens at a prompt's end.  [default: the whole prompt]"
    ),
]
NoOversample = Annotated[
    bool, typer.Option("--no-oversample", help="Send no prompt again where there are too few.")
]


def check_burstiness(value: float) -> float:
    """Raises InputError unless it is above 0; infinite is evenly."""
    if not value > 0:
        raise InputError(f"--burstiness: {value:g} is not a number above 0")
    return value


def read_ramp(
    strategy: str | None, start: float | None, end: float | None, request_rate: float
) -> Ramp | None:
    """The rise of the rate, None where none is asked for. Raises InputError."""
    from outrider.bench.arrivals import Ramp, Strategy

    ends = {"--ramp-up-start-rps": start, "--ramp-up-end-rps": end}
    if strategy is None:
        for option, value in ends.items():
            if value is not None:
                raise InputError(f"{option}: it needs --ramp-up-strategy linear or exponential")
        return None
    if strategy not in list(Strategy):
        raise InputError(f"--ramp-up-strategy: {strategy!r} is not one of {', '.join(Strategy)}")
    for option, value in ends.items():
        if value is None or not 0 < value < math.inf:
            shown = "it is missing" if value is None else f"{value:g}"
            raise InputError(f"{option}: {shown}; --ramp-up-strategy needs a number above 0")
    assert start is not None and end is not None
    if start > end:
        raise InputError(f"--ramp-up-end-rps: {end:g} is below --ramp-up-start-rps {start:g}")
    if not math.isinf(request_rate):
        raise InputError(
            "--request-rate: with --ramp-up-strategy the rate is what --ramp-up-start-rps and "
            "--ramp-up-end-rps say"
        )
    return Ramp(Strategy(strategy), start, end)
