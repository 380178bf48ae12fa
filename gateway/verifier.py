"""One verifier as the gateway sees it: a channel, what it last said, what runs on it.

Knows gRPC; does not know other verifiers or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import verifier_pb2 as pb
from speculation.v1 import verifier_pb2_grpc

from gateway.errors import ApiError, from_rpc_error, unavailable
from outrider.credentials import PLAIN, Credentials, open_aio_channel

logger = logging.getLogger(__name__)

# What `read` returns at a stream's end; the stubs do not know the name.
_END: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]

# In the initial metadata of a generation that the verifier has taken, long before its first token.
_ACCEPTED_METADATA_KEY: Final = "outrider-accepted"

_CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Channels of one process would otherwise share a backoff.
    ("grpc.use_local_subchannel_pool", 1),
    # Finds out about hosts that vanished; verifiers allow a ping every 5 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)

Metadata = Sequence[tuple[str, str]]


class Verifier:
    """A verifier at `address`. `info` is its last GetInfo answer, kept while it is away, and
    `info_at` when it came (time.monotonic seconds).

    `problem` says in words why it does not serve now; it is empty while it does. `index` is its
    place in the settings, the `engine` label of its metrics; `server_name` is what its certificate
    is for where `address` was looked up from a name.
    """

    def __init__(
        self,
        index: int,
        address: str,
        credentials: Credentials = PLAIN,
        server_name: str | None = None,
    ) -> None:
        self.index = index
        self.address = address
        self.in_flight = 0
        self.info: pb.GetInfoResponse | None = None
        self.info_at = 0.0
        self.problem = "not connected yet"
        self._channel = open_aio_channel(address, credentials, _CHANNEL_OPTIONS, server_name)
        self._stub: Any = verifier_pb2_grpc.VerifierServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    async def refresh(self, timeout_s: float) -> pb.GetInfoResponse | None:
        """Ask for state and health; sets `problem`. None when there is no answer."""
        try:
            answer, serves = await asyncio.gather(
                self._stub.GetInfo(pb.GetInfoRequest(), timeout=timeout_s, wait_for_ready=True),
                self._check_health(timeout_s),
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._note(f"no answer within {timeout_s:g} s")
            else:
                self._note(error.details() or error.code().name)
            return None
        info: pb.GetInfoResponse = answer
        self.info, self.info_at = info, time.monotonic()
        self._note("" if serves else "it reports that it does not serve")
        return info

    async def connect(self, timeout_s: float) -> None:
        """Wait until the channel is up. Raises ApiError 503."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), timeout_s)
        except TimeoutError:
            self._note(f"no connection within {timeout_s:g} s")
            raise unavailable(f"the verifier at {self.address} is not reachable") from None

    def generate(
        self, request: pb.GenerateRequest, timeout_s: float, metadata: Metadata = ()
    ) -> GenerateStream:
        """Start a generation; it counts as in flight until the stream is closed."""
        call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
        return GenerateStream(self, call)

    async def tokenize(self, request: pb.TokenizeRequest, timeout_s: float) -> pb.TokenizeResponse:
        """Raises ApiError."""
        answer: pb.TokenizeResponse = await self._unary(self._stub.Tokenize, request, timeout_s)
        return answer

    async def detokenize(
        self, request: pb.DetokenizeRequest, timeout_s: float
    ) -> pb.DetokenizeResponse:
        """Raises ApiError."""
        answer: pb.DetokenizeResponse = await self._unary(self._stub.Detokenize, request, timeout_s)
        return answer

    async def close(self) -> None:
        await self._channel.close(None)

    def failed(self, error: grpc.aio.AioRpcError) -> ApiError:
        """The client's view of `error`; an unavailable verifier is remembered as such."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._note(error.details() or "unavailable")
        return from_rpc_error(error, self.address)

    async def _unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self.failed(error) from None

    async def _check_health(self, timeout_s: float) -> bool:
        try:
            answer = await self._health.Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
                return True
            raise
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _note(self, problem: str) -> None:
        if bool(problem) != bool(self.problem):
            if problem:
                logger.warning("verifier %s does not serve: %s", self.address, problem)
            else:
                logger.info("verifier %s serves", self.address)
        self.problem = problem


class GenerateStream:
    """A running Generate call. Must be closed; closing an unfinished one cancels it."""

    def __init__(self, verifier: Verifier, call: Any) -> None:
        self.verifier = verifier
        self._call = call
        self._open = True
        verifier.in_flight += 1

    async def is_accepted(self) -> bool:
        """Wait for the verifier's word; False: it refused, and `next` has the reason.

        Also False where a verifier does not tell; then the first message does.
        """
        metadata = await self._call.initial_metadata()
        return any(key == _ACCEPTED_METADATA_KEY for key, _ in metadata or ())

    async def next(self) -> pb.GenerateResponse | None:
        """The next message, None at the end. Raises ApiError when the call fails."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self.verifier.failed(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc.aio raises CancelledError for a status CANCELLED that the server chose, too.
            raise unavailable(
                f"the verifier at {self.verifier.address} cancelled this request"
            ) from None
        return None if message is _END else message

    def close(self) -> None:
        if self._open:
            self._open = False
            self.verifier.in_flight -= 1
            self._call.cancel()
