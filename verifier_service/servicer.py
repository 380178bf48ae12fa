"""The RPCs of VerifierService: requests in, answers out, nobody else's fault shown to a client.

Knows gRPC; what stands between a request and its answer is generations.py's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from speculation.v1 import types_pb2, verifier_pb2, verifier_pb2_grpc

from outrider.trace_context import TRACEPARENT, read_context
from verifier_service.accounting import Ledger
from verifier_service.backend import Backend
from verifier_service.field_checks import check_token_ids
from verifier_service.generations import Generations
from verifier_service.lifecycle import Lifecycle
from verifier_service.messages import RejectionRule
from verifier_service.proposer_state import speculation_state
from verifier_service.request_error import RequestError
from verifier_service.settings import VerifierSettings

if TYPE_CHECKING:
    from verifier_service.tracing import RequestTrace, RequestTracer

logger = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

# Initial metadata of a Generate call that was not refused. A refusal has initial metadata too,
# empty ones, so that only a key of its own tells the two apart.
ACCEPTED_METADATA = (("outrider-accepted", "1"),)

_RULES = {
    RejectionRule.COUPLED: types_pb2.REJECTION_RULE_COUPLED,
    RejectionRule.STANDARD: types_pb2.REJECTION_RULE_STANDARD,
    RejectionRule.BLOCK: types_pb2.REJECTION_RULE_BLOCK,
}


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Serves one backend; until it is attached, every RPC but health is UNAVAILABLE."""

    def __init__(self, settings: VerifierSettings, lifecycle: Lifecycle, instance_id: str) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._instance_id = instance_id
        self._generations: Generations | None = None
        self._tracer: RequestTracer | None = None
        # Set while no answer is on its way.
        self.idle = asyncio.Event()
        self.idle.set()

    def trace_with(self, tracer: RequestTracer) -> None:
        """Tell of all requests from now on."""
        self._tracer = tracer

    def attach(self, backend: Backend) -> None:
        """Serve with these parts from now on."""
        self._generations = Generations(
            self._settings, backend, gate=self._require_serving, idle=self.idle
        )

    @property
    def ledger(self) -> Ledger:
        """The running sums over all requests. RuntimeError before `attach`."""
        if self._generations is None:
            raise RuntimeError("no backend is attached")
        return self._generations.ledger

    def shut_down_answers(self) -> None:
        """Finish all running answers as aborted."""
        if self._generations is not None:
            self._generations.shut_down_answers()

    def fail_answers(self, reason: str) -> None:
        """The engine died: no output will come any more."""
        if self._generations is not None:
            self._generations.fail_answers(reason)

    def close(self) -> None:
        """Once no RPC runs and the engine is quiet."""
        if self._generations is not None:
            self._generations.close()

    async def Generate(self, request: verifier_pb2.GenerateRequest, context: Context) -> None:
        await self._guard(context, "Generate", partial(self._generate, request, context))

    async def Tokenize(
        self, request: verifier_pb2.TokenizeRequest, context: Context
    ) -> verifier_pb2.TokenizeResponse:
        return await self._guard(context, "Tokenize", partial(self._tokenize, request))

    async def Detokenize(
        self, request: verifier_pb2.DetokenizeRequest, context: Context
    ) -> verifier_pb2.DetokenizeResponse:
        return await self._guard(context, "Detokenize", partial(self._detokenize, request))

    async def GetInfo(
        self, request: verifier_pb2.GetInfoRequest, context: Context
    ) -> verifier_pb2.GetInfoResponse:
        return await self._guard(context, "GetInfo", self._get_info)

    async def _generate(self, request: verifier_pb2.GenerateRequest, context: Context) -> None:
        if self._tracer is None:
            await self._answer(request, context, None)
            return
        caller = read_context(context.invocation_metadata() or ())
        trace = self._tracer.begin(request, caller)
        with trace or nullcontext():
            await self._answer(request, context, trace)

    async def _answer(
        self,
        request: verifier_pb2.GenerateRequest,
        context: Context,
        trace: RequestTrace | None,
    ) -> None:
        generations = self._loaded()
        try:
            async with generations.answering(request, trace) as answer:
                told = ((TRACEPARENT, trace.traceparent),) if trace is not None else ()
                await context.send_initial_metadata((*ACCEPTED_METADATA, *told))
                while (message := await answer.next_message()) is not None:
                    await context.write(message)
        finally:
            if failure := generations.backend.core.failure:
                await self._lifecycle.die(failure)

    async def _tokenize(
        self, request: verifier_pb2.TokenizeRequest
    ) -> verifier_pb2.TokenizeResponse:
        generations = self._loaded()
        ids = await generations.prompts.ids(request, request.reserved_tokens)
        text, wanted = generations.backend.text, request.return_token_strings
        return verifier_pb2.TokenizeResponse(
            token_ids=ids,
            token_strings=text.token_strings(ids) if wanted else (),
            max_model_len=generations.limits.max_model_len,
        )

    async def _detokenize(
        self, request: verifier_pb2.DetokenizeRequest
    ) -> verifier_pb2.DetokenizeResponse:
        generations = self._loaded()
        ids = list(request.token_ids)
        check_token_ids(ids, generations.limits.vocab_size, "token_ids")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await generations.on_tokenizer(
            partial(generations.backend.text.decode, ids, skip_special_tokens=skip)
        )
        pieces = map(
            generations.backend.text.token_bytes, ids if request.return_token_texts else ()
        )
        texts = [piece.decode("utf-8", "replace") for piece in pieces]
        return verifier_pb2.DetokenizeResponse(text=text, token_texts=texts)

    async def _get_info(self) -> verifier_pb2.GetInfoResponse:
        generations = self._loaded()
        backend, ledger = generations.backend, generations.ledger
        model, stats = backend.core.model, backend.core.stats()
        proposers = [state.to_proto() for state in backend.proposers.states()]
        return verifier_pb2.GetInfoResponse(
            model=self._settings.served_model_name,
            version=metadata.version("outrider"),
            instance_id=self._instance_id,
            max_model_len=model.max_model_len,
            vocabulary_size=model.vocab_size,
            vocabulary_fingerprint=backend.text.fingerprint,
            tools_in_prompt=backend.text.tools_in_prompt,
            eos_token_ids=model.eos_token_ids,
            engine=model.engine,
            device=model.device,
            dtype=model.dtype,
            num_speculative_tokens=self._settings.num_speculative_tokens,
            rejection_rule=_RULES[self._settings.rejection_rule],
            proposers=proposers,
            acceptance=ledger.acceptance.to_proto(),
            running_requests=stats.running,
            waiting_requests=stats.waiting,
            kv_blocks_total=stats.kv_blocks_total,
            kv_blocks_free=stats.kv_blocks_free,
            prompt_tokens_total=ledger.prompt_tokens,
            generation_tokens_total=ledger.generation_tokens,
            speculation_state=speculation_state(stats.speculation_state, proposers),
            speculation=stats.speculation.to_proto(),
            step_cost_ms=stats.step_cost_ms,
            off_rounds=ledger.off_rounds,
            finished_requests=ledger.finished,
            prefix_cache_queries_total=stats.prefix_cache_queries,
            prefix_cache_hits_total=stats.prefix_cache_hits,
            preemptions_total=stats.preemptions,
            acceptance_by_proposer=[
                verifier_pb2.ProposerAcceptance(
                    name=name,
                    num_spec_steps=sums.num_spec_steps,
                    num_draft_tokens=sums.num_draft_tokens,
                    num_accepted_draft_tokens=sums.num_accepted_draft_tokens,
                )
                for name, sums in sorted(ledger.by_proposer.items())
            ],
            step_times=stats.step_times.to_proto(),
            device_busy_seconds_total=stats.device_busy_s,
        )

    async def _require_serving(self) -> None:
        """Raises RequestError (UNAVAILABLE) where no new request is taken."""
        if self._generations is not None and (failure := self._generations.backend.core.failure):
            await self._lifecycle.die(failure)
        self._lifecycle.require_serving()

    def _loaded(self) -> Generations:
        if self._generations is None:
            raise RequestError(
                f"no request is taken: {self._lifecycle.reason}",
                status=grpc.StatusCode.UNAVAILABLE,
            )
        return self._generations

    async def _guard(self, context: Context, rpc: str, call: Callable[[], Awaitable[T]]) -> T:
        """Run an RPC; what goes wrong becomes a status, never a traceback."""
        try:
            return await call()
        except RequestError as error:
            refusal = error
        except Exception:
            incident = uuid.uuid4().hex[:12]
            logger.exception("unexpected error rpc=%s id=%s", rpc, incident)
            refusal = RequestError(
                f"internal error, id {incident}", status=grpc.StatusCode.INTERNAL
            )
        return await context.abort(refusal.status, refusal.message, refusal.metadata())
