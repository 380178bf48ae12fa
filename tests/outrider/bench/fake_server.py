"""An OpenAI-compatible server whose every pause is scripted.

It answers each prompt with the chunks of a `Script`; what it offers beyond OpenAI (usage in every
chunk, acceptance, counters) is switched on or off, as servers differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from outrider.acceptance import Acceptance, Round, speculative_decoding_metrics


@dataclass(frozen=True)
class Script:
    """(pause before it, tokens in it) of each chunk, and (drafted, accepted) of each step."""

    chunks: Sequence[tuple[float, int]] = ((1.0, 1), (0.5, 3), (0.5, 2))
    steps: Sequence[tuple[int, int]] = ()
    status: int = 200
    error: str = ""
    break_off: bool = False
    text: str = "w "

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)


PLAIN = Script(chunks=((1.0, 1), *[(0.5, 1)] * 5))
DRAFTED = Script(steps=((4, 2), (4, 1)))


@dataclass
class FakeServer:
    """`script_of` chooses by the request's body; what was asked is in `bodies`."""

    script_of: Callable[[dict[str, Any]], Script] = lambda body: (
        PLAIN if body.get("speculative_decoding", {}).get("enabled") is False else DRAFTED
    )
    model: str = "toy"
    owner: str = "outrider"
    running_usage: bool = True
    refuses_running_usage: bool = False
    usage: bool = True
    token_ids: bool = False
    metrics: bool = True
    detailed: bool = False
    counters: bool = False
    k: int = 4
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    counted: Acceptance = field(default_factory=lambda: Acceptance(4))

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": "9.9"})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": self.model, "owned_by": self.owner}]})

    async def _metrics(self, request: Request) -> Response:
        if not self.counters:
            return Response(status_code=404)
        label = f'{{model_name="{self.model}",engine="0"}}'
        c = self.counted
        lines = [
            f"vllm:spec_decode_num_drafts_total{label} {c.num_spec_steps}.0",
            f"vllm:spec_decode_num_draft_tokens_total{label} {c.num_draft_tokens}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{label} {c.num_accepted_draft_tokens}.0",
            *(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                f'{{model_name="{self.model}",engine="0",position="{j}"}} {count}.0'
                for j, count in enumerate(c.accepted_per_position)
            ),
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.url.path)
        self.headers.append(dict(request.headers))
        if body["model"] != self.model:
            return JSONResponse({"error": {"message": "no such model"}}, status_code=404)
        if self.refuses_running_usage and "continuous_usage_stats" in body["stream_options"]:
            message = "unknown field stream_options.continuous_usage_stats"
            return JSONResponse({"error": {"message": message}}, status_code=400)
        script = self.script_of(body)
        if script.status != 200:
            return JSONResponse({"error": {"message": script.error}}, status_code=script.status)
        chat = request.url.path.endswith("chat/completions")
        return StreamingResponse(self._events(script, body, chat), media_type="text/event-stream")

    async def _events(self, script: Script, body: dict[str, Any], chat: bool) -> AsyncIterator[str]:
        acceptance = Acceptance(self.k, keep_steps=True)
        for drafted, accepted in script.steps:
            step = Round(0, drafted, drafted, accepted, accepted + 1)
            acceptance.add(step)
            self.counted.add(step)
        running = self.running_usage and body["stream_options"].get("continuous_usage_stats")
        told = 0
        if chat:
            yield self._event(
                self._chunk({"delta": {"role": "assistant", "content": ""}}, 0, running)
            )
        for pause, tokens in script.chunks:
            await asyncio.sleep(pause)
            told += tokens
            said: dict[str, Any] = {"text": script.text * tokens}
            if chat:
                said = {"delta": {"content": script.text * tokens}}
            if self.token_ids:
                said["token_ids"] = list(range(tokens))
            yield self._event(self._chunk(said, told, running))
        if script.break_off:
            return
        if script.error:
            yield self._event({"error": {"message": script.error}})
            return
        yield self._event(self._chunk({"finish_reason": "length"}, told, running))
        if self.usage:
            yield self._event(self._last(acceptance, told))
        yield "data: [DONE]\n\n"

    def _chunk(self, choice: dict[str, Any], told: int, running: bool) -> dict[str, Any]:
        chunk: dict[str, Any] = {"choices": [{"index": 0, **choice}]}
        if running:
            chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": told}
        return chunk

    def _last(self, acceptance: Acceptance, told: int) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "choices": [],
            "usage": {"prompt_tokens": 7, "completion_tokens": told},
        }
        if self.metrics:
            chunk["metrics"] = {
                "speculative_decoding": speculative_decoding_metrics(
                    acceptance.to_proto(), detailed=self.detailed
                )
            }
        return chunk

    def _event(self, event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event)}\n\n"
