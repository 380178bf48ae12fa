"""Whether this verifier takes requests, and what it says when it does not.

Knows the states and the health service; does not know what a request is. The states only go
forward: loading, serving, and then draining or dead.
"""

from __future__ import annotations

import logging
from enum import IntEnum

import grpc
from grpc_health.v1 import health, health_pb2
from speculation.v1 import verifier_pb2

from verifier_service.request_error import RequestError

logger = logging.getLogger(__name__)

SERVICE_NAME: str = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name


class State(IntEnum):
    LOADING = 0
    SERVING = 1
    DRAINING = 2
    DEAD = 3


class Lifecycle:
    """The state of one verifier process, shown by the gRPC health service."""

    def __init__(self) -> None:
        self.state = State.LOADING
        self.reason = "the model is loading"
        self.health = health.aio.HealthServicer()  # type: ignore[attr-defined]

    async def start(self) -> None:
        """Health says NOT_SERVING from the first moment."""
        await self._show(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def serve(self) -> None:
        if self._advance(State.SERVING, ""):
            await self._show(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        if self._advance(State.DRAINING, "the verifier is shutting down"):
            await self._show(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def die(self, reason: str) -> None:
        """The engine failed; `reason` in words."""
        if self._advance(State.DEAD, f"the engine died: {reason}"):
            logger.error("verifier engine died reason=%r", reason)
            await self._show(health_pb2.HealthCheckResponse.NOT_SERVING)

    def require_serving(self) -> None:
        """Raises RequestError (UNAVAILABLE) saying why no request is taken now."""
        if self.state is not State.SERVING:
            raise RequestError(
                f"no request is taken: {self.reason}", status=grpc.StatusCode.UNAVAILABLE
            )

    def _advance(self, state: State, reason: str) -> bool:
        if state <= self.state:
            return False
        self.state, self.reason = state, reason
        return True

    async def _show(self, status: int) -> None:
        for service in ("", SERVICE_NAME):
            await self.health.set(service, status)
