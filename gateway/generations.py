"""The two generation endpoints: from a body to the running generation that answers it.

Knows the order of steps; fields, calls and response shapes are their own modules'.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from speculation.v1 import verifier_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response

from gateway.access import record_of
from gateway.answers import AnswerOptions, GenerationResponse
from gateway.bodies import ChatBody, CompletionBody, GenerationBody
from gateway.body import read_json_object
from gateway.calls import (
    ChoiceCall,
    chat_echo,
    chat_request,
    check_choices,
    completion_request,
    for_choice,
    prompt_tokenize_request,
)
from gateway.dashboard.running import RunningRequests
from gateway.generation import Generation
from gateway.logprobs import logprob_options
from gateway.metrics import GatewayMetrics
from gateway.requests import parse_chat, parse_completion
from gateway.routing import VerifierPool
from gateway.settings import GatewaySettings
from gateway.shapes import ChatShape, CompletionShape, Shape
from gateway.tenants import Tenants
from gateway.tools.shape import chat_shape
from gateway.workload import read_workload
from outrider.trace_context import read_context

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracer

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


class Generations:
    """Handlers of `/v1/completions` and `/v1/chat/completions`.

    `stopping` is set when running generations must end because the gateway does; `running` lists
    them, `tracer` tells of them.
    """

    def __init__(
        self,
        pool: VerifierPool,
        metrics: GatewayMetrics,
        settings: GatewaySettings,
        stopping: asyncio.Event,
        running: RunningRequests,
        tracer: GatewayTracer | None = None,
    ) -> None:
        self._pool = pool
        self._tracer = tracer
        self._metrics = metrics
        self._settings = settings
        self._stopping = stopping
        self._tenants = Tenants(settings.cache_salt_secret, shared=settings.share_cache_across_keys)
        self._running = running

    async def completions(self, request: Request) -> Response:
        self._begin_trace(request, "text_completion")
        body = parse_completion(await self._body(request))
        check_choices(body.prompt, body, self._settings.max_choices)
        model = await self._pool.resolve(body.model)
        requests = [completion_request(body, p, model, self._settings) for p in body.prompt]
        if body.echo and body.truncate_prompt_tokens is not None:
            for request_ in requests:
                await self._fix_ids(request_)
        echoes = [await self._text_of(r) if body.echo else "" for r in requests]
        shape = CompletionShape(bool(body.return_token_ids), logprob_options(body))
        return await self._answer(request, body, shape, model, requests, echoes)

    async def chat_completions(self, request: Request) -> Response:
        self._begin_trace(request, "chat")
        body = parse_chat(await self._body(request))
        check_choices([body.messages], body, self._settings.max_choices)
        model = await self._pool.resolve(body.model)
        chat = ChatShape(bool(body.return_token_ids), logprob_options(body))
        shape = chat_shape(body, self._settings.tool_call_parser, chat)
        requests = [chat_request(body, model, self._settings)]
        return await self._answer(request, body, shape, model, requests, [chat_echo(body)])

    async def _answer(
        self,
        request: Request,
        body: GenerationBody,
        shape: Shape,
        model: str,
        requests: Sequence[pb.GenerateRequest],
        echoes: Sequence[str],
    ) -> Response:
        record = record_of(request.scope)
        record.model = model
        record.request_id = request_id = _request_id(body, request)
        workload = read_workload(request.headers)
        if record.trace is not None:
            record.trace.asked(body, model, request_id, workload)
        for base in requests:
            base.workload = workload
            base.cache_salt = self._tenants.salt(record.key, base.cache_salt)
        prompt_ids: list[tuple[int, ...] | None] = [None] * len(requests)
        if shape.with_ids:
            prompt_ids = [await self._fix_ids(r) for r in requests]
        prompt_only = isinstance(body, CompletionBody) and body.max_tokens == 0
        several = len(requests) * body.choices_per_prompt > 1
        calls: list[ChoiceCall] = []
        for prompt_index, base in enumerate(requests):
            for number in range(body.choices_per_prompt):
                index = len(calls)
                name = f"{request_id}-{index}" if several else request_id
                calls.append(
                    ChoiceCall(
                        index=index,
                        prompt_index=prompt_index,
                        request=for_choice(base, request_id=name, number=number, seed=body.seed),
                        echo=echoes[prompt_index],
                        prompt_token_ids=prompt_ids[prompt_index],
                        prompt_only=prompt_only,
                    )
                )
        generation = Generation(
            self._pool,
            self._metrics,
            calls,
            timeout_s=self._settings.request_timeout_s,
            arrived=record.arrived,
            # A gateway that traces nothing hands its client's context on as it came.
            metadata=(
                record.trace.context if record.trace else read_context(request.headers.items())
            ).metadata(),
        )
        if record.trace is not None:
            record.trace.answering(generation)
        return GenerationResponse(
            generation,
            shape,
            self._options(body),
            request_id=request_id,
            created=int(time.time()),
            model=model,
            stopping=self._stopping,
            running=self._running,
        )

    def _begin_trace(self, request: Request, operation: str) -> None:
        if self._tracer is not None:
            caller = read_context(request.headers.items())
            trace = self._tracer.begin(caller, operation, request.url.path)
            record_of(request.scope).trace = trace

    def _options(self, body: GenerationBody) -> AnswerOptions:
        asked = body.stream_options
        forced = self._settings.force_include_usage
        include = forced or bool(asked and asked.include_usage)
        return AnswerOptions(
            stream=bool(body.stream),
            include_usage=include,
            continuous_usage=forced or bool(include and asked and asked.continuous_usage_stats),
            metrics=self._settings.per_request_spec_decode_metrics,
            rounds=bool(body.speculative_decoding and body.speculative_decoding.rounds),
            field_names={"logprobs": "top_logprobs"} if isinstance(body, ChatBody) else {},
        )

    async def _fix_ids(self, request: pb.GenerateRequest) -> tuple[int, ...]:
        """The prompt's ids; `request` then carries them, so that they are what is answered."""
        if request.WhichOneof("prompt") != "token_ids" or request.HasField(
            "truncate_prompt_tokens"
        ):
            answer = await self._pool.tokenize(
                request.model, prompt_tokenize_request(request), self._settings.request_timeout_s
            )
            request.token_ids.CopyFrom(pb.TokenIds(ids=answer.token_ids))
            request.ClearField("truncate_prompt_tokens")
        return tuple(request.token_ids.ids)

    async def _text_of(self, request: pb.GenerateRequest) -> str:
        """The prompt as text (`echo`)."""
        if request.WhichOneof("prompt") == "text":
            return request.text
        answer = await self._pool.detokenize(
            request.model,
            pb.DetokenizeRequest(token_ids=request.token_ids.ids, skip_special_tokens=False),
            self._settings.request_timeout_s,
        )
        return answer.text

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_json_object(
            request, self._settings.max_body_bytes, self._settings.body_timeout_s
        )


def _request_id(body: GenerationBody, request: Request) -> str:
    """The client's own id (field, then `X-Request-Id`), or a random one."""
    asked = body.request_id or request.headers.get("x-request-id", "")
    return asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
