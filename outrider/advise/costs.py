"""What a verification step costs by its rows: given, asked from a verifier, or assumed.

Knows milliseconds and rows (query tokens of a step: one for each sequence and one for each draft).
Reads between measured counts as the verifier's controller does.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from outrider.config import shorten
from outrider.errors import InputError
from verifier_service.costs import CostTable

# One more row, in parts of a step of one row, where nobody said what it costs.
ASSUMED_ROW_COST = 0.05
_OPTION = "--step-cost"
_SHAPE = (
    'a JSON object {rows: milliseconds} such as {"1": 20.0, "9": 24.5}, a file that holds one, '
    "or a number >= 0"
)
# Above these, sums of costs mean nothing: an hour a step, a thousand steps a row, a million rows.
_MOST_MS = 3.6e6
_MOST_ROW_COST = 1000.0
_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class StepCost:
    """`milliseconds` by rows as given (empty for a linear cost); `row_cost` is what one more row
    adds to a step of one row, in parts of it, None for a table. `source` says where it is from.
    """

    source: str
    milliseconds: dict[int, float] = field(default_factory=dict)
    row_cost: float | None = None

    @property
    def assumed(self) -> bool:
        """Whether nobody measured it."""
        return self.source == "assumed"

    @property
    def last_row(self) -> int | None:
        """The highest measured count of rows; None for a linear cost."""
        return max(self.milliseconds) if self.milliseconds else None

    def curve(self, last: int) -> list[float]:
        """Cost of 0, 1, ... `last` rows: milliseconds, or parts of a step of one row."""
        if self.row_cost is not None:
            return [0.0] + [1.0 + self.row_cost * rows for rows in range(last)]
        table = CostTable.from_profile({n: ms / 1e3 for n, ms in self.milliseconds.items()})
        return [0.0, *(1e3 * table.curve(1, last)).tolist()]


def assumed_cost() -> StepCost:
    """A flat-ish cost for an answer where none is known; every output says that it is assumed."""
    return StepCost("assumed", row_cost=ASSUMED_ROW_COST)


def parse_step_cost(value: str) -> StepCost:
    """The value of --step-cost: JSON, the path of a file that holds it, or a number.

    Raises InputError naming the value and what is allowed.
    """
    text = value if value.lstrip().startswith("{") else _read(value)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_OPTION}: {shorten(value)!r}: must be {_SHAPE}") from error
    if isinstance(given, int | float) and not isinstance(given, bool):
        if not 0 <= given <= _MOST_ROW_COST:
            raise InputError(f"{_OPTION}: {given}: must be {_SHAPE}, at most {_MOST_ROW_COST:g}")
        return StepCost("given", row_cost=float(given))
    if not isinstance(given, dict) or not given:
        raise InputError(f"{_OPTION}: {shorten(value)!r}: must be {_SHAPE}")
    return StepCost("given", {_rows(key): _milliseconds(key, ms) for key, ms in given.items()})


def _read(value: str) -> str:
    """What the file of that name holds; the value itself where there is no such file."""
    try:
        return Path(value).read_text(encoding="utf-8") if os.path.isfile(value) else value
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{_OPTION}: {shorten(value)} cannot be read: {reason.lower()}; it must be {_SHAPE}"
        ) from error


def _rows(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 9 or not 1 <= int(key) <= _MOST_ROWS:
        raise InputError(
            f"{_OPTION}: rows {shorten(key)!r}: must be a whole number from 1 to {_MOST_ROWS}"
        )
    return int(key)


def _milliseconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_MS:
        raise InputError(
            f"{_OPTION}: {shorten(repr(value))} milliseconds at {key} rows: must be a positive "
            f"number, at most {_MOST_MS:g}"
        )
    return float(value)
