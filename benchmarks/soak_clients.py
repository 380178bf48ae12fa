"""Sends a soak's requests as its clients do: over HTTP or the verifier's stub, leaving at will.

Knows transports, streams and bounds; what an answer should be is soak_checks.py's business.
Whatever happens becomes an `Answer`: a client of a soak never raises.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterable
from typing import cast

import grpc.aio
import httpx
from speculation.v1 import verifier_pb2_grpc

from benchmarks.soak_answers import Answer, parse_event, read_chunk, read_message, read_whole
from benchmarks.soak_draw import SoakRequest
from benchmarks.soak_grpc import generate_request

# How the gateway shows these codes; what is not here is a server's fault.
_STATUS = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
FIELD_KEY = "outrider-field"
_CHUNK_SECONDS = 0.03


class Clients:
    """Both transports to one server; a context. `hang_seconds` bounds every request."""

    def __init__(self, url: str, verifier: str, hang_seconds: float, connections: int) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=None,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
        )
        self._channel = grpc.aio.insecure_channel(verifier)
        self.stub = verifier_pb2_grpc.VerifierServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._hang_seconds = hang_seconds

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        await self._channel.close(None)

    async def send(self, request: SoakRequest) -> Answer:
        """The answer, or what there is of it when the client leaves or it breaks."""
        answer = Answer()
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._hang_seconds):
                if request.place.is_grpc:
                    await self._grpc(request, answer)
                elif request.stream:
                    await self._streamed(request, answer)
                else:
                    await self._whole(request, answer)
        except TimeoutError:
            answer.broken = f"no end within {self._hang_seconds:g} s"
        except httpx.HTTPError as error:
            answer.broken = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer.broken = f"malformed answer: {type(error).__name__}: {error}"
        answer.seconds = time.monotonic() - started
        return answer

    async def _whole(self, request: SoakRequest, answer: Answer) -> None:
        posting = asyncio.ensure_future(self._http.post(request.place.value, json=request.body))
        try:
            async with asyncio.timeout(_patience(request)):
                response = await posting
        except TimeoutError:
            if request.cancel_after is None:
                raise
            answer.left = True
            return
        finally:
            posting.cancel()
        _take_whole(answer, response)

    async def _streamed(self, request: SoakRequest, answer: Answer) -> None:
        async with self._http.stream("POST", request.place.value, json=request.body) as response:
            if response.status_code != 200:
                await response.aread()
                _take_whole(answer, response)
                return
            answer.status = 200
            count = 0
            async for data in _events(response):
                if data == "[DONE]":
                    return
                event = parse_event(data)
                if "error" in event:
                    answer.broken = f"the stream ended with {event['error']}"
                    return
                read_chunk(answer, event)
                count += 1
                if request.cancel_after is not None and count > request.cancel_after:
                    answer.left = True
                    return
            answer.broken = "the stream ended without [DONE]"

    async def _grpc(self, request: SoakRequest, answer: Answer) -> None:
        call = self.stub.Generate(generate_request(request))
        try:
            count = 0
            async for message in call:
                answer.status = 200
                read_message(answer, message)
                count += 1
                if request.cancel_after is not None and count > request.cancel_after:
                    answer.left = True
                    return
        except grpc.aio.AioRpcError as error:
            metadata = cast("Iterable[tuple[str, str]]", error.trailing_metadata() or ())
            named = [value for key, value in metadata if key == FIELD_KEY]
            answer.refuse(
                _STATUS.get(error.code(), 500),
                {"param": "".join(named), "message": error.details()},
            )
        finally:
            call.cancel()


def _take_whole(answer: Answer, response: httpx.Response) -> None:
    answer.status = response.status_code
    value = json.loads(response.content)
    if response.status_code == 200:
        read_whole(answer, value)
    else:
        answer.refuse(response.status_code, value["error"])


def _patience(request: SoakRequest) -> float | None:
    """Seconds until the client of a whole answer leaves; the same each time it is run."""
    if request.cancel_after is None:
        return None
    return request.cancel_after * _CHUNK_SECONDS * random.Random(request.number).random()


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each event. Raises ValueError for a line that belongs to none."""
    async for line in response.aiter_lines():
        if not line:
            continue
        if not line.startswith("data: "):
            raise ValueError(f"not an event: {line[:100]!r}")
        yield line.removeprefix("data: ")
