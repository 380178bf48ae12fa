"""The last word of every verifier's OTLP metrics.

Knows points and series; sums of requests are not made from them, but can be compared with them.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from gateway.evidence.attributes import MAX_STRING, Attributes, ContentError
from outrider import telemetry as names

MAX_SERIES: Final = 4_096
# A verifier that has said nothing for so long runs nothing.
SILENT_S: Final = 60.0
_NOW: Final = (names.METRIC_RUNNING, names.METRIC_WAITING)
_NAMES: Final = frozenset(
    {
        names.METRIC_STEPS,
        names.METRIC_DRAFT_TOKENS,
        names.METRIC_ACCEPTED_TOKENS,
        names.METRIC_PROMPT_TOKENS,
        names.METRIC_GENERATION_TOKENS,
        names.METRIC_OFF_ROUNDS,
        names.METRIC_LOOKAHEAD_HITS,
        names.METRIC_LOOKAHEAD_MISSES,
        names.METRIC_LOOKAHEAD_NONE,
        *_NOW,
    }
)
_Labels = tuple[tuple[str, str], ...]
_Series = tuple[str, str, _Labels]


class ReportedMetrics:
    """The newest value of each series (service instance, name, attributes), at most MAX_SERIES.

    Of those that are too many, the ones that were silent longest are forgotten.
    """

    def __init__(
        self, max_series: int = MAX_SERIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_series = max_series
        self._clock = clock
        self._series: OrderedDict[_Series, tuple[float, float]] = OrderedDict()

    def add(
        self, request: ExportMetricsServiceRequest, dropped: Callable[[str], None]
    ) -> Iterator[bool]:
        """Keep the points of Outrider's metrics, one a step: whether it was kept.

        `dropped(reason)` is called for each wrong one.
        """
        for resource in request.resource_metrics:
            instance = _instance(resource.resource)
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name in _NAMES:
                        yield from self._add(instance, metric, dropped)

    def totals(self) -> dict[str, float]:
        """The sum of each metric over all instances and attributes, by its name's last part."""
        now = self._clock()
        result: dict[str, float] = {}
        for (_, name, _), (value, at) in self._series.items():
            if name not in _NOW or now - at <= SILENT_S:
                short = name.removeprefix("speculation.")
                result[short] = result.get(short, 0.0) + value
        return result

    def _add(self, instance: str, metric: Metric, dropped: Callable[[str], None]) -> Iterator[bool]:
        for point in data_points(metric):
            try:
                value, labels = _value(point), _labels(point.attributes)
            except ContentError as error:
                dropped(error.reason)
                yield False
                continue
            series = instance, metric.name, labels
            self._series[series] = value, self._clock()
            self._series.move_to_end(series)
            if len(self._series) > self._max_series:
                self._series.popitem(last=False)
            yield True


def data_points(metric: Metric) -> Sequence[NumberDataPoint]:
    """The numbers of a sum or a gauge; other kinds have none that are read."""
    return metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points


def _value(point: NumberDataPoint) -> float:
    kind = point.WhichOneof("value")
    if kind is None:
        raise ContentError("missing", "a point has no value")
    value = float(point.as_int if kind == "as_int" else point.as_double)
    if not math.isfinite(value) or value < 0:
        raise ContentError("range", f"a point is {value}")
    return value


def _labels(attributes: Sequence[KeyValue]) -> _Labels:
    if len(attributes) > 16:
        raise ContentError("size", f"a point has {len(attributes)} attributes; 16 are allowed")
    at = Attributes(attributes)
    return tuple(sorted((pair.key[:MAX_STRING], at.string(pair.key)) for pair in attributes))


def _instance(resource: Resource) -> str:
    for pair in resource.attributes:
        if pair.key == "service.instance.id":
            return pair.value.string_value[:MAX_STRING]
    return ""
