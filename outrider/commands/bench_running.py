"""What every bench command does around its measuring: progress, tables, files.

Knows where results go; does not know options or servers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.parent import exit_on_sigterm

if TYPE_CHECKING:
    from outrider.bench.session import Outcome, Point, Target, Wanted


@dataclass(frozen=True, slots=True)
class Reading:
    """Which figures are made of what was measured; times in `goodput` are seconds."""

    percentiles: tuple[float, ...] = (99.0,)
    times: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    goodput: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    repeated: bool = False
    detailed: bool = False

    def objects(self, point: Point) -> list[dict[str, Any]]:
        from outrider.bench.document import point_objects

        return point_objects(
            point,
            percentiles=self.percentiles,
            goodput=self.goodput,
            repeated=self.repeated,
            seed=self.seed,
            detailed=self.detailed,
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What a result keeps beside its figures."""

    kind: str
    label: str | None
    metadata: Mapping[str, str]
    settings: Mapping[str, Any]

    def header(self, outcome: Outcome) -> dict[str, Any]:
        """The document without its points."""
        from outrider.bench.document import environment_object, servers_object
        from outrider.bench.saving import without_secrets

        servers = servers_object(outcome)
        return {
            **environment_object(self.kind, ["outrider", *without_secrets(sys.argv[1:])]),
            "label": self.label,
            "metadata": dict(self.metadata),
            "settings": dict(self.settings),
            "servers": servers,
            "model_id": servers[-1]["model"],
            "notes": list(outcome.notes),
        }


def run(
    target: Target,
    wanted: Wanted,
    *,
    progress: bool,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Outcome:
    """Measure, with a progress bar on standard error. Raises InputError or OperationError."""
    from outrider.bench.progress import progress_bar
    from outrider.bench.session import run_session

    with exit_on_sigterm(), progress_bar(progress) as bar:
        return asyncio.run(
            run_session(target, wanted, on_start=bar.start, on_done=bar.done, on_point=on_point)
        )


def print_report(
    points: Sequence[Mapping[str, Any]], notes: Sequence[str], times: Sequence[str]
) -> None:
    """Tables, verdicts and notes on standard output."""
    from rich.console import Console

    from outrider.bench.table import all_notes, report

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    console.print(report(points, all_notes(notes, points), times))


def write_page(path: Path, document: Mapping[str, Any]) -> None:
    """The HTML page of a result. Raises OperationError."""
    from outrider.bench.page import page
    from outrider.bench.saving import write_text

    write_text(path, page(document))


def tell(line: str) -> None:
    """One line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
