"""Sends a generation to its client, whole or as a stream, and ends it when the client leaves.

Knows when to send what; does not know the objects' fields (shapes.py) or the verifier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from speculation.v1 import verifier_pb2 as pb
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway import rounds, sse
from gateway.access import CLIENT_GONE_STATUS, record_of
from gateway.body import ClientGoneError
from gateway.dashboard.running import RunningRequest, RunningRequests
from gateway.errors import ApiError, unavailable
from gateway.generation import Choice, Event, EventKind, Generation
from gateway.settings import SpecDecodeMetrics
from gateway.shapes import Envelope, Shape
from gateway.usage import metrics, running_usage, usage, without_nulls

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How the client wants its answer."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    metrics: SpecDecodeMetrics = SpecDecodeMetrics.SUMMARY
    # Whether each round is told of.
    rounds: bool = False
    # This endpoint's names of fields that the verifier calls otherwise.
    field_names: Mapping[str, str] = field(default_factory=dict)


class GenerationResponse(Response):
    """Runs `generation` and answers with it. `stopping` is set when the gateway must end."""

    def __init__(
        self,
        generation: Generation,
        shape: Shape,
        options: AnswerOptions,
        *,
        request_id: str,
        created: int,
        model: str,
        stopping: asyncio.Event,
        running: RunningRequests,
    ) -> None:
        self._generation = generation
        self._shape = shape
        self._options = options
        self._request_id = request_id
        self._created = created
        self._model = model
        self._stopping = stopping
        self._running = running
        self._streaming = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = RunningRequest(
            self._request_id,
            self._model,
            scope["path"],
            self._options.stream,
            record_of(scope).arrived,
            self._generation.choices,
        )
        with self._running.listed(request):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        failure: ApiError | None = None
        try:
            if self._options.stream:
                await self._guard(receive, self._send_stream(send))
            else:
                await self._guard(receive, self._generation.collect_all())
        except ClientGoneError:
            record.status = CLIENT_GONE_STATUS
            record.note = "client closed the connection"
            return
        except ApiError as error:
            failure = error.renamed(self._options.field_names)
        except Exception:
            logger.exception("request %s failed", self._request_id)
            failure = ApiError(500, "the gateway failed this request; its log has the reason")
        finally:
            await self._generation.close(failed=failure is not None)
            choices = self._generation.choices
            record.prompt_tokens = sum(c.prompt_tokens for c in choices)
            record.completion_tokens = sum(c.completion_tokens for c in choices)
        if failure is not None:
            record.error = failure.type
            record.note = f"error={failure.type}"
        if self._streaming:
            end = sse.DONE if failure is None else sse.event(failure.body())
            await send({"type": "http.response.body", "body": end, "more_body": False})
        elif failure is not None:
            failure.headers.setdefault("X-Request-Id", self._request_id)
            raise failure
        else:
            await self._whole()(scope, receive, send)

    def _whole(self) -> JSONResponse:
        choices = self._generation.choices
        answer = self._shape.whole(self._envelope(), choices)
        answer["service_tier"] = None
        answer["usage"] = usage(choices)
        answer["metrics"] = metrics(choices, self._options.metrics)
        if self._options.rounds:
            answer[rounds.MEMBER] = rounds.rounds_of_choices(choices)
        return JSONResponse(answer, headers={"X-Request-Id": self._request_id})

    async def _send_stream(self, send: Send) -> None:
        await self._generation.begin()
        headers = {**sse.HEADERS, "X-Request-Id": self._request_id}
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            }
        )
        self._streaming = True
        envelope = self._envelope()
        async for event in self._generation.events():
            for chunk in self._chunks(envelope, event):
                await self._send_chunk(send, self._with_running_usage(chunk, event.choice))
        if self._options.include_usage:
            await self._send_chunk(send, self._usage_chunk(envelope))

    def _chunks(self, envelope: Envelope, event: Event) -> list[dict[str, Any]]:
        if event.kind is EventKind.FINISHED:
            return self._shape.last(envelope, event.choice)
        if event.delta is None:
            chunk = self._shape.first(envelope, event.choice)
        else:
            chunk = self._shape.delta(envelope, event.choice, event.delta)
            if self._options.rounds and event.delta.rounds:
                # Also where no text is shown yet: a round is told when it has ended.
                chunk = self._shape.empty(envelope) if chunk is None else chunk
                chunk[rounds.MEMBER] = rounds.rounds_of_delta(event.choice, event.delta)
        return [] if chunk is None else [chunk]

    def _with_running_usage(self, chunk: dict[str, Any], choice: Choice) -> dict[str, Any]:
        if self._options.continuous_usage:
            chunk["usage"] = running_usage(choice)
        return chunk

    def _usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        choices = self._generation.choices
        chunk = self._shape.empty(envelope)
        chunk["usage"] = usage(choices)
        figures = metrics(choices, self._options.metrics)
        if figures is not None:
            chunk["metrics"] = without_nulls(figures)
        return chunk

    async def _send_chunk(self, send: Send, chunk: dict[str, Any]) -> None:
        await send({"type": "http.response.body", "body": sse.event(chunk), "more_body": True})

    def _envelope(self) -> Envelope:
        return Envelope(
            request_id=self._request_id,
            created=self._created,
            model=self._model,
            fingerprint=fingerprint(self._generation.verifier_info),
        )

    async def _guard(self, receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` until it ends, the client leaves (ClientGoneError) or the gateway stops."""
        main = asyncio.create_task(work)
        gone = asyncio.create_task(_disconnect(receive))
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({main, gone, stop}, return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                return main.result()
            if gone.done():
                raise ClientGoneError
            raise unavailable("the gateway is shutting down")
        finally:
            for task in (main, gone, stop):
                task.cancel()
            await asyncio.gather(main, gone, stop, return_exceptions=True)


def fingerprint(info: pb.GetInfoResponse | None) -> str:
    """`outrider-<version>-<hash>`; the hash changes with whatever may change the answer."""
    if info is None:
        return "outrider"
    parts = (info.model, info.engine, info.device, info.dtype, str(info.rejection_rule))
    digest = sha256("\n".join(parts).encode()).hexdigest()[:8]
    return f"outrider-{info.version}-{digest}"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
