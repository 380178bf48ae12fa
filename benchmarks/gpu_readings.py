"""What a server's Prometheus metrics say of one stretch of time.

Knows the text format and which metrics are times; takes names as they come, so that a histogram
that the server adds is reported without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

# Only metrics of this name space are the server's own times.
PREFIX = "outrider:"
SUM, COUNT, TOTAL = "_sum", "_count", "_total"
# Labels that say where something happened, not what.
PLACES = ("model_name", "engine", "address")


@dataclass(frozen=True, slots=True)
class Timing:
    """A histogram's share in a stretch of time: seconds in all, how many times (0: unknown)."""

    name: str
    seconds: float
    count: float

    @property
    def mean_ms(self) -> float | None:
        return 1000 * self.seconds / self.count if self.count else None


def times(text: str) -> dict[str, float]:
    """Sums and counts of the server's histograms of seconds, and counters of seconds.

    By name and the labels that tell kinds apart, over all verifiers and models:
    `outrider:verify_seconds{plain}_sum`, `…_count`, `outrider:idle_seconds_total`.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(PREFIX) or not family.name.endswith("_seconds"):
            continue
        wanted = (SUM, COUNT) if family.type == "histogram" else (TOTAL,)
        for sample in family.samples:
            ending = sample.name.removeprefix(family.name)
            if ending in wanted:
                name = family.name + _kinds(sample.labels) + ending
                found[name] = found.get(name, 0.0) + sample.value
    return found


def _kinds(labels: Mapping[str, str]) -> str:
    kinds = [value for name, value in sorted(labels.items()) if name not in PLACES]
    return f"{{{','.join(kinds)}}}" if kinds else ""


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was added since `before`; only what was added at all."""
    added = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in added.items() if value > 0}


def timings(readings: Iterable[Mapping[str, float]]) -> list[Timing]:
    """The timings of several stretches taken together, in order of their names."""
    sums: dict[str, float] = {}
    for reading in readings:
        for name, value in reading.items():
            if name.startswith(PREFIX):
                sums[name] = sums.get(name, 0.0) + value
    found: list[Timing] = []
    for name, value in sorted(sums.items()):
        if name.endswith(SUM):
            base = name.removesuffix(SUM)
            found.append(Timing(base, value, sums.get(base + COUNT, 0.0)))
        elif name.endswith(TOTAL):
            found.append(Timing(name.removesuffix(TOTAL), value, 0.0))
    return found
