"""A verifier without a model: a real gRPC server whose answers a test scripts.

Its vocabulary is Unicode: a token id is a code point. Totals are kept as a real verifier keeps
them: a round counts when it is emitted, whoever is still listening.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import types_pb2, verifier_pb2_grpc
from speculation.v1 import verifier_pb2 as pb

from outrider import listener
from outrider.acceptance import Acceptance, Round
from outrider.credentials import PLAIN, Credentials

MODEL = "fake-model"
K = 4
EOS = 0


@dataclass(slots=True)
class Answer:
    """What one Generate call says: `pieces` are rounds of text, each with its drafted count."""

    pieces: list[tuple[str, int]] = field(default_factory=lambda: [("Hel", 4), ("lo", 2), ("!", 0)])
    reason: types_pb2.FinishReason = types_pb2.FINISH_REASON_STOP
    stop_string: str = ""
    stop_token_id: int | None = None
    # Instead of an answer (before anything was sent), or after `fail_after` rounds.
    status: grpc.StatusCode | None = None
    message: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    fail_after: int = 0
    # Rounds after which the answer stops until the client goes away.
    hang_after: int | None = None
    # Wait for `release` before anything but the acceptance is sent.
    start_late: bool = False
    # Send the initial metadata of a request that is not refused.
    tell_accepted: bool = True
    # Rounds after which it waits for `release`.
    wait_after: int | None = None
    # Tokens of a round that has no text.
    silent: int = 0
    # End the stream without `finished`.
    truncate: bool = False


Script = Callable[[pb.GenerateRequest], Answer]


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Serves at `address` between `start` and `stop`; `script` decides each answer."""

    def __init__(self, address: str, model: str = MODEL, credentials: Credentials = PLAIN) -> None:
        self.address = address
        self._credentials = credentials
        self.model = model
        self.script: Script = lambda request: Answer()
        self.requests: list[pb.GenerateRequest] = []
        self.totals = Acceptance(K)
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.cancelled = asyncio.Event()
        self.cancelled_ids: list[str] = []
        self.hanging = 0
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.serving = True
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        server = grpc.aio.server(
            options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1))
        )
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(_Health(self), server)
        listener.bind(server, self.address, self._credentials)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        answer = self.script(request)
        if answer.status is not None and answer.fail_after == 0:
            if answer.start_late:
                self.reached.set()
                await self.release.wait()
            await context.abort(answer.status, answer.message, answer.metadata)
        try:
            if answer.tell_accepted:
                await context.send_initial_metadata((("outrider-accepted", "1"),))
            async for message in self._answer(request, answer, context):
                yield message
        except asyncio.CancelledError:
            self.cancelled.set()
            self.cancelled_ids.append(request.request_id)
            raise

    async def _answer(
        self, request: pb.GenerateRequest, answer: Answer, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        if answer.start_late:
            self.reached.set()
            await self.release.wait()
        prompt = prompt_ids(request)
        self.prompt_tokens += len(prompt)
        started = pb.Started(
            request_id=request.request_id, prompt_tokens=len(prompt), cached_prompt_tokens=1
        )
        if request.sampling.HasField("prompt_logprobs"):
            started.prompt_token_ids.extend(prompt)
            started.first_token_bytes = chr(prompt[0]).encode()
            top = request.sampling.prompt_logprobs
            started.prompt_logprobs.extend(scored(i, top) for i in prompt[1:])
        yield pb.GenerateResponse(started=started)
        own = Acceptance(K, keep_steps=request.detailed_acceptance)
        emitted = 0
        for number, (text, drafted) in enumerate(answer.pieces):
            if answer.fail_after and number == answer.fail_after:
                await context.abort(answer.status, answer.message)
            if number == answer.hang_after:
                self.hanging += 1
                self.reached.set()
                await asyncio.Event().wait()
            if number == answer.wait_after:
                self.reached.set()
                await self.release.wait()
            accepted = min(drafted, max(len(text) - 1, 0))
            round_ = Round(emitted, drafted, drafted, accepted, len(text))
            own.add(round_)
            self.totals.add(round_)
            self.generation_tokens += len(text)
            emitted += len(text)
            ids = [ord(c) for c in text or "?" * answer.silent]
            delta = pb.Delta(text=text, token_ids=ids)
            if request.sampling.HasField("logprobs"):
                top = request.sampling.logprobs
                delta.logprobs.extend(scored(token_id, top) for token_id in ids)
            yield pb.GenerateResponse(delta=delta)
        if answer.truncate:
            return
        finished = pb.Finished(
            reason=answer.reason,
            prompt_tokens=len(prompt),
            completion_tokens=emitted,
            cached_prompt_tokens=1,
            acceptance=own.to_proto(),
        )
        if answer.stop_string:
            finished.stop_string = answer.stop_string
        if answer.stop_token_id is not None:
            finished.stop_token_id = answer.stop_token_id
        yield pb.GenerateResponse(finished=finished)

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenizeResponse:
        text = request.text if request.WhichOneof("prompt") == "text" else chat_text(request.chat)
        ids = ([EOS] if request.add_special_tokens else []) + [ord(c) for c in text]
        strings = [chr(i) for i in ids] if request.return_token_strings else []
        return pb.TokenizeResponse(token_ids=ids, token_strings=strings, max_model_len=2048)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text="".join(chr(i) for i in request.token_ids))

    async def GetInfo(
        self, request: pb.GetInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetInfoResponse:
        return pb.GetInfoResponse(
            model=self.model,
            version="0.1.0",
            instance_id=f"fake {self.address}",
            max_model_len=2048,
            eos_token_ids=[EOS],
            engine="fake",
            device="none",
            dtype="float32",
            num_speculative_tokens=K,
            rejection_rule=types_pb2.REJECTION_RULE_COUPLED,
            proposers=[
                pb.ProposerState(
                    name="ngram",
                    state="connected",
                    draft_blocks=3,
                    dropped={"stale": 2},
                    lookahead_hits=1,
                    lookahead_none=2,
                )
            ],
            acceptance=self.totals.to_proto(),
            prompt_tokens_total=self.prompt_tokens,
            generation_tokens_total=self.generation_tokens,
            speculation_state="off: drafts do not pay",
            off_rounds={"no draft arrived": 7},
            finished_requests={"stop": 5},
            prefix_cache_queries_total=100,
            prefix_cache_hits_total=64,
            preemptions_total=3,
        )


class _Health(health_pb2_grpc.HealthServicer):
    def __init__(self, verifier: FakeVerifier) -> None:
        self._verifier = verifier

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if self._verifier.serving else states.NOT_SERVING
        return states(status=status)


def scored(token_id: int, top: int) -> pb.TokenLogprob:
    """A token's log-probabilities: its own names its id, the top ones are of A, B, C, D."""
    count = 4 if top < 0 else min(top, 4)
    return pb.TokenLogprob(
        token_id=token_id,
        logprob=-token_id / 4,
        rank=token_id,
        token_bytes=chr(token_id).encode(),
        top=[
            pb.TopLogprob(token_id=65 + i, logprob=-i / 8, token_bytes=bytes([65 + i]))
            for i in range(count)
        ],
    )


def prompt_ids(request: pb.GenerateRequest) -> list[int]:
    kind = request.WhichOneof("prompt")
    if kind == "token_ids":
        return list(request.token_ids.ids)
    text = request.text if kind == "text" else chat_text(request.chat)
    return [ord(c) for c in text]


def chat_text(chat: pb.ChatMessages) -> str:
    messages = json.loads(chat.messages_json)
    return "".join(f"{m['role']}:{m['content']};" for m in messages)


async def _serve_for_ever(address: str) -> None:
    """A process of its own, for tests that kill it: every answer hangs after two rounds."""
    verifier = FakeVerifier(address)
    verifier.script = lambda request: Answer(hang_after=2)
    await verifier.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_for_ever(sys.argv[1]))
