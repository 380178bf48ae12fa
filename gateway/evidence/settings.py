"""Where a gateway gets its evidence from, and how much of it is kept where.

Knows values and their limits; opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.errors import InputError

# Values of `--evidence-db` that are no path.
MEMORY: Final = "memory"
NONE: Final = "none"
MIN_MB: Final = 4
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """`listen` is a gRPC address and `forward` an endpoint as in TraceSettings; empty for none.

    `database` is a file's path, `memory` for nothing beyond this process, or `none` to keep
    nothing. A file has about `max_mb` megabytes at most and forgets requests after `max_age_s`.
    Raises InputError naming the option, its value and what is allowed.
    """

    listen: str = ""
    forward: str = ""
    database: str = MEMORY
    max_mb: int = 512
    max_age_s: float = 30 * DAY_S

    def __post_init__(self) -> None:
        if not self.database:
            raise InputError(f"--evidence-db: write a file's path, {MEMORY} or {NONE}")
        if self.max_mb < MIN_MB:
            raise InputError(f"--evidence-max-mb: {self.max_mb} must be {MIN_MB} or above")
        if not self.max_age_s >= 1:
            raise InputError(f"--evidence-max-age: {self.max_age_s:g} s must be 1 s or above")
        if self.listen and self.forward.split("://")[-1] == self.listen:
            raise InputError(
                f"--otlp-forward: {self.forward} is --otlp-listen itself; every message would go "
                "round for ever"
            )

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self.database != NONE

    @property
    def path(self) -> str:
        """The file's path; empty where there is none."""
        return "" if self.database in (MEMORY, NONE) else self.database


# What a gateway is told is kept for as long as it runs.
NO_FILE: Final = EvidenceSettings()
