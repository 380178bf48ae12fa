"""The OTLP/gRPC port: TraceService and MetricsService.

Knows gRPC, addresses and limits of messages; what is in them is the intake's. A message goes to the
forwarder as it came, also where its content is wrong here: what a collector makes of it is its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gateway.evidence.counts import UNDECODABLE, EvidenceCounts
from gateway.evidence.forwarder import METRICS_METHOD, TRACES_METHOD, Forwarder
from gateway.evidence.intake import Intake
from outrider import listener
from outrider.credentials import PLAIN, Credentials

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# More at once are told RESOURCE_EXHAUSTED by gRPC, which exporters try again later.
MAX_CONCURRENT: Final = 32
_STOP_S: Final = 0.5
OPTION: Final = "--otlp-listen"

_Context = grpc.aio.ServicerContext[Any, Any]


class Receiver:
    """Listens at one address from `start` to `stop`."""

    def __init__(
        self, intake: Intake, counts: EvidenceCounts, forwarder: Forwarder | None = None
    ) -> None:
        self._intake = intake
        self._counts = counts
        self._forwarder = forwarder
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self, listen: str, credentials: Credentials = PLAIN) -> None:
        """Listen at `unix:PATH` or `HOST:PORT` (port 0: any). Raises InputError."""
        server = grpc.aio.server(
            options=[
                *listener.OPTIONS,
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ],
            maximum_concurrent_rpcs=MAX_CONCURRENT,
        )
        server.add_generic_rpc_handlers(
            (_handlers(TRACES_METHOD, self.traces), _handlers(METRICS_METHOD, self.metrics))
        )
        self.address = listener.bind(server, listen, credentials, OPTION)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_STOP_S)
            listener.remove_socket(self.address)
            self._server = None

    async def traces(self, message: bytes, context: _Context) -> bytes:
        """One Export of spans, encoded on both sides."""
        request = await self._decoded(ExportTraceServiceRequest, message, context)
        self._pass_on(TRACES_METHOD, message)
        verdict = await self._intake.traces(request)
        answer = ExportTraceServiceResponse()
        if verdict.rejected:
            answer.partial_success.CopyFrom(
                ExportTracePartialSuccess(
                    rejected_spans=verdict.rejected, error_message=verdict.message
                )
            )
        return answer.SerializeToString()

    async def metrics(self, message: bytes, context: _Context) -> bytes:
        """One Export of metrics, encoded on both sides."""
        request = await self._decoded(ExportMetricsServiceRequest, message, context)
        self._pass_on(METRICS_METHOD, message)
        verdict = await self._intake.metrics(request)
        answer = ExportMetricsServiceResponse()
        if verdict.rejected:
            answer.partial_success.CopyFrom(
                ExportMetricsPartialSuccess(
                    rejected_data_points=verdict.rejected, error_message=verdict.message
                )
            )
        return answer.SerializeToString()

    async def _decoded(self, kind: Any, message: bytes, context: _Context) -> Any:
        try:
            return kind.FromString(message)
        except DecodeError:
            self._counts.dropped(UNDECODABLE)
            # Not worth another try, says this status to exporters.
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the message is no {kind.DESCRIPTOR.name}"
            )
            raise

    def _pass_on(self, method: str, message: bytes) -> None:
        if self._forwarder is not None:
            self._forwarder.put(method, message)


def _handlers(method: str, answer: Callable[[bytes, _Context], Awaitable[bytes]]) -> Any:
    """One method over undecoded messages: what cannot be decoded is then counted here."""
    _, service, name = method.split("/")
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    return grpc.method_handlers_generic_handler(service, {name: handler})
