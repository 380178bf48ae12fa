"""What else was seen while a cell was measured: the clients, the card, the server's own times.

Knows the readings' names and how they are put together over repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bars import clients
from benchmarks.cpu_report import table_line
from benchmarks.gpu_load import CLIENT_CPU
from benchmarks.gpu_readings import PREFIX, Timing, timings
from benchmarks.measurements import CellKey, Measurement, Measurements

EXPLANATION = (
    "Clients: how much of one core the load generator took. Card busy: nvidia-smi's utilization, "
    "the share of time in which any kernel ran, coarsely sampled. The server's own times: mean "
    "milliseconds × how many, and their sum as a share of the wall clock (several may run at "
    "once). Device busy: the engine's own account, by events between the launches of its steps. "
    "All are of the whole time, its end included, in which not every client is busy."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Readings of one cell: means weighted by seconds, and the server's timings.

    `seconds` are the whole load's, as the readings are.
    """

    seconds: float
    means: Mapping[str, float]
    timings: tuple[Timing, ...]


def seen(items: Sequence[Measurement]) -> Seen:
    """Of one cell's measurements, over all repetitions."""
    names = {name for item in items for name in item.readings if not name.startswith(PREFIX)}
    means: dict[str, float] = {}
    for name in sorted(names):
        having = [item for item in items if name in item.readings]
        weight = sum(item.seconds for item in having)
        means[name] = sum(item.readings[name] * item.seconds for item in having) / weight
    return Seen(
        sum(item.seconds for item in items),
        means,
        tuple(timings(item.readings for item in items)),
    )


def seen_table(found: Measurements) -> str:
    """One line a cell; empty where nothing was read."""
    if not any(item.readings for item in found.items):
        return ""
    cells: dict[CellKey, Seen] = {}
    for key in found.cell_keys():
        cells[key] = seen(found.of(key))
    columns = sorted({timing.name for cell in cells.values() for timing in cell.timings})
    heads = ["", "clients' CPU", "card busy", "SM clock, power"]
    heads += [
        name.removeprefix(PREFIX).replace("_seconds", "").replace("_", " ") for name in columns
    ]
    lines = [table_line(heads), table_line(["---", *["---:"] * (len(heads) - 1)])]
    for key, cell in cells.items():
        name = f"{key.row}, {clients(key.clients)}, T={key.temperature:g}"
        by_name = {timing.name: timing for timing in cell.timings}
        lines.append(
            table_line(
                [
                    name,
                    _percent(cell.means.get(CLIENT_CPU), 100),
                    _percent(cell.means.get("gpu_busy_percent"), 1),
                    _card(cell.means),
                    *(_timing(by_name.get(column), cell.seconds) for column in columns),
                ]
            )
        )
    return EXPLANATION + "\n\n" + "\n".join(lines)


def _percent(value: float | None, factor: float) -> str:
    return "–" if value is None else f"{value * factor:.0f} %"


def _card(means: Mapping[str, float]) -> str:
    clock, power = means.get("gpu_sm_mhz"), means.get("gpu_power_w")
    parts = [] if clock is None else [f"{clock:.0f} MHz"]
    parts += [] if power is None else [f"{power:.0f} W"]
    return ", ".join(parts) or "–"


def _timing(timing: Timing | None, seconds: float) -> str:
    if timing is None:
        return "–"
    share = f"{100 * timing.seconds / seconds:.0f} %"
    if timing.mean_ms is None:
        return share
    return f"{timing.mean_ms:.2f} ms × {timing.count:.0f}, {share}"
