"""Prometheus metrics: what this gateway saw, beside what the verifiers counted.

Knows names and labels of its own; the verifiers' are verifier_metrics.py's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier import Verifier
from gateway.verifier_metrics import VerifierSnapshot

_TTFT_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)


class GatewayMetrics:
    """Counts of one gateway; each has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "outrider:requests",
            "Generations by how they ended: stop, length, abort (client gone), error.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._first_token = Histogram(
            "outrider:time_to_first_token_seconds",
            "Time from a request's arrival at the gateway to its first token.",
            ["model_name"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self._responses = Counter(
            "outrider:http_responses",
            "HTTP responses by route and status; 499 means that the client left first.",
            ["route", "status"],
            registry=self.registry,
        )
        self._key_responses = Counter(
            "outrider:key_responses",
            "HTTP responses by API key's name and status; 429 means over the key's limits.",
            ["key_name", "status"],
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "outrider:http_requests_in_flight",
            "Generation requests this gateway is answering.",
            registry=self.registry,
        )
        self.server_load = 0

    def begin_request(self) -> None:
        self.server_load += 1
        self._in_flight.set(self.server_load)

    def end_request(self) -> None:
        self.server_load -= 1
        self._in_flight.set(self.server_load)

    def first_token(self, model: str, arrived: float) -> None:
        """`arrived` in time.monotonic seconds."""
        self._first_token.labels(model).observe(time.monotonic() - arrived)

    def finished(self, model: str, reason: str) -> None:
        self._requests.labels(model, reason).inc()

    def response(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def key_response(self, key_name: str, status: int) -> None:
        self._key_responses.labels(key_name, str(status)).inc()

    def exposition(
        self,
        verifiers: Sequence[Verifier],
        answered: Sequence[tuple[Verifier, pb.GetInfoResponse]],
    ) -> bytes:
        """Prometheus text: this gateway's metrics, then those of the verifiers that answered."""
        snapshot = CollectorRegistry(auto_describe=False)
        snapshot.register(VerifierSnapshot(verifiers, answered))
        return generate_latest(self.registry) + generate_latest(snapshot)
