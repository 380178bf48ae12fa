"""gRPC streams to proposers: bytes in and out on threads of their own; knows no message.

Responses stay bytes, so that a message which cannot be parsed is the client's to count and does not
end the stream. Each stream has a fresh channel: nothing of a dead server's connection is kept.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from outrider.credentials import PLAIN, Credentials, open_channel
from outrider.names import NameLookupError
from outrider.transport import Listener
from verifier_service.proposer_choice import GrpcLoadProbe, ProposerChoice

METHOD = "/speculation.v1.ProposerService/Propose"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_OPTIONS: list[tuple[str, int | str]] = [
    # Subchannels of dead servers would keep their own reconnect delay.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

_logger = logging.getLogger(__name__)


class GrpcStream:
    """One Propose call and the thread that reads it, and before that chooses where it goes."""

    def __init__(
        self,
        address: str,
        listener: Listener,
        credentials: Credentials,
        choice: ProposerChoice,
    ) -> None:
        self._address = address
        self._choice = choice
        self._credentials = credentials
        self._listener = listener
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._cancelled = False
        self.thread = threading.Thread(target=self._read, name=f"propose {address}", daemon=True)
        self.thread.start()

    def send(self, data: bytes) -> None:
        self._requests.put(data)

    def close(self) -> None:
        self._requests.put(None)
        with self._lock:
            self._cancelled = True
            cancel = self._cancel
        if cancel is not None:
            cancel()

    def _read(self) -> None:
        code, detail = "OK", "the proposer ended the stream"
        try:
            chosen = self._choice.choose(self._address)
            with open_channel(
                chosen.address, self._credentials, _OPTIONS, chosen.server_name
            ) as channel:
                # Without serializers both directions are bytes.
                propose = channel.stream_stream(
                    METHOD, request_serializer=None, response_deserializer=None
                )
                call = propose(self._take_requests())
                with self._lock:
                    cancel: Callable[[], object] = call.cancel
                    self._cancel = cancel
                    cancelled = self._cancelled
                if cancelled:
                    cancel()
                for data in call:
                    self._listener.received(data)
        except grpc.RpcError as error:
            code, detail = _status(error)
        except NameLookupError as error:
            code, detail = "UNAVAILABLE", str(error)
        except Exception as error:
            # A fault of ours must not end the thread in silence: it is logged and the
            # stream starts anew.
            _logger.exception("the stream to proposer %s failed", self._address)
            code, detail = "INTERNAL", repr(error)
        finally:
            # gRPC's own thread waits in the request iterator until it ends.
            self._requests.put(None)
        self._listener.closed(code, detail)

    def _take_requests(self) -> Iterator[bytes]:
        while (data := self._requests.get()) is not None:
            yield data


class GrpcTransport:
    """Streams to `unix:PATH` and `HOST:PORT` addresses, and to one of those behind a name.

    `choice` says which one; a stream that is opened again may go to another.
    """

    def __init__(
        self, credentials: Credentials = PLAIN, choice: ProposerChoice | None = None
    ) -> None:
        self._credentials = credentials
        self._choice = choice or ProposerChoice(probe=GrpcLoadProbe(credentials))
        self._lock = threading.Lock()
        self._streams: list[GrpcStream] = []

    def connect(self, address: str, listener: Listener) -> GrpcStream:
        stream = GrpcStream(address, listener, self._credentials, self._choice)
        with self._lock:
            self._streams = [s for s in self._streams if s.thread.is_alive()]
            self._streams.append(stream)
        return stream

    def close(self, timeout: float) -> None:
        with self._lock:
            streams = list(self._streams)
        until = time.monotonic() + timeout
        for stream in streams:
            stream.close()
        for stream in streams:
            stream.thread.join(max(0.0, until - time.monotonic()))


def _status(error: grpc.RpcError) -> tuple[str, str]:
    code, detail = "UNKNOWN", str(error)
    with contextlib.suppress(AttributeError):
        code, detail = error.code().name, error.details() or ""
    return code, detail
