"""The OTLP/gRPC port: TraceService and MetricsService.

Knows gRPC, addresses and limits of messages; what is in them is the intake's. A message goes to the
forwarder as it came, also where its content is wrong here: what a collector makes of it is its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
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

from gateway.evidence.counts import BUSY, UNDECODABLE, UNREAD, EvidenceCounts
from gateway.evidence.forwarder import METRICS_METHOD, TRACES_METHOD, Forwarder
from gateway.evidence.intake import Intake
from outrider import listener
from outrider.credentials import PLAIN, Credentials

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# More at once are told RESOURCE_EXHAUSTED before they are read, which exporters try again later.
MAX_CONCURRENT: Final = 32
# Beyond this gRPC refuses them itself, and nobody counts.
_MAX_CALLS: Final = 1024
_STOP_S: Final = 0.5
OPTION: Final = "--otlp-listen"

_Context = grpc.aio.ServicerContext[Any, Any]
_Answer = Callable[[bytes, _Context], Awaitable[bytes]]
_StreamAnswer = Callable[[AsyncIterator[bytes], _Context], Awaitable[bytes]]


class Receiver:
    """Listens at one address from `start` to `stop`."""

    def __init__(
        self, intake: Intake, counts: EvidenceCounts, forwarder: Forwarder | None = None
    ) -> None:
        self._intake = intake
        self._counts = counts
        self._forwarder = forwarder
        self._server: grpc.aio.Server | None = None
        self._reading = 0
        self.address = ""

    async def start(self, listen: str, credentials: Credentials = PLAIN) -> None:
        """Listen at `unix:PATH` or `HOST:PORT` (port 0: any). Raises InputError."""
        server = grpc.aio.server(
            options=[
                *listener.OPTIONS,
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        server.add_generic_rpc_handlers(
            (
                _handlers(TRACES_METHOD, self._one_message(self.traces)),
                _handlers(METRICS_METHOD, self._one_message(self.metrics)),
            )
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

    def _one_message(self, answer: _Answer) -> _StreamAnswer:
        """`answer` for a call that may be refused unread, which is counted."""

        async def call(messages: AsyncIterator[bytes], context: _Context) -> bytes:
            if self._reading >= MAX_CONCURRENT:
                self._counts.dropped(BUSY)
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MAX_CONCURRENT} messages are being read; send it again later",
                )
            self._reading += 1
            try:
                async for message in messages:
                    return await answer(message, context)
                self._counts.dropped(UNREAD)
                # Where gRPC refused it for its size, this status comes too late and is not sent.
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            finally:
                self._reading -= 1

        return call

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


def _handlers(method: str, answer: _StreamAnswer) -> Any:
    """One method over undecoded messages: what cannot be decoded is then counted here.

    As a stream of one message, because one that gRPC refuses is then seen here as none.
    """
    _, service, name = method.split("/")
    handler: Any = grpc.stream_unary_rpc_method_handler(answer)
    return grpc.method_handlers_generic_handler(service, {name: handler})
