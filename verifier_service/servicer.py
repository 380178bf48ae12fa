"""The RPCs of VerifierService: requests in, answers out, nobody else's fault shown to a client.

Knows gRPC and the parts behind it; the answer's content is answer.py's, its limits are
validation.py's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from typing import Any, TypeVar

import grpc
from speculation.v1 import types_pb2, verifier_pb2, verifier_pb2_grpc

from verifier_service.accounting import Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.backend import Backend
from verifier_service.bad_words import bad_word_ids
from verifier_service.core import QueueFullError
from verifier_service.field_checks import check_token_ids
from verifier_service.grammar.grammars import Grammars
from verifier_service.grammar.requested import hopeless, requested_structure
from verifier_service.grammar.structure import HopelessStructureError
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.handover import Handover
from verifier_service.lifecycle import Lifecycle
from verifier_service.logprob_messages import LogprobMessages
from verifier_service.messages import Constraint, RejectionRule, Request
from verifier_service.prompts import Prompts
from verifier_service.proposer_state import speculation_state
from verifier_service.request_error import RequestError, shorten
from verifier_service.settings import VerifierSettings
from verifier_service.stops import StopMatcher
from verifier_service.validation import Limits, Parameters, complete, parameters

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
        self._backend: Backend | None = None
        self._limits: Limits | None = None
        self._prompts: Prompts | None = None
        self._grammars: Grammars | None = None
        self._ledger = Ledger(settings.num_speculative_tokens)
        self._handover = Handover(asyncio.get_running_loop())
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._answers: dict[str, Answer] = {}
        # Set while no answer is on its way.
        self.idle = asyncio.Event()
        self.idle.set()

    def attach(self, backend: Backend) -> None:
        """Serve with these parts from now on."""
        model = backend.core.model
        self._limits = Limits(
            served_model_name=self._settings.served_model_name,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=model.eos_token_ids,
            num_speculative_tokens=self._settings.num_speculative_tokens,
            defaults=backend.defaults,
            max_logprobs=self._settings.max_logprobs,
        )
        self._prompts = Prompts(
            backend.text,
            model.max_model_len,
            self._on_tokenizer,
            trust_request_chat_template=self._settings.trust_request_chat_template,
        )
        vocabulary = partial(
            Vocabulary.of, backend.text.tokenizer, model.vocab_size, model.eos_token_ids
        )
        self._grammars = Grammars(lambda: self._tokenizing.submit(vocabulary).result())
        self._backend = backend

    def shut_down_answers(self) -> None:
        """Finish all running answers as aborted."""
        self._handover.deliver()
        for answer in list(self._answers.values()):
            answer.shut_down()

    def fail_answers(self, reason: str) -> None:
        """The engine died: no output will come any more."""
        self._handover.deliver()
        for answer in list(self._answers.values()):
            answer.fail(
                RequestError(
                    f"the engine failed this request: {shorten(reason, 500)}",
                    status=grpc.StatusCode.INTERNAL,
                )
            )

    def close(self) -> None:
        """Once no RPC runs and the engine is quiet."""
        self._handover.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()

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
        backend, limits, prompts = await self._serving()
        names = {state.name for state in backend.proposers.states()}
        checked = parameters(request, limits, names)
        chat = request.WhichOneof("prompt") == "chat"
        prompt_ids = await prompts.ids(request, checked.max_tokens or 1)
        prompt_field = "messages" if chat else "prompt"
        bad_words = await self._bad_words(checked.rules.bad_words, backend)
        core_request = complete(
            checked, prompt_ids, limits, prompt_field=prompt_field, bad_words=bad_words
        )
        core_request.constraint = await self._constraint(request, core_request)
        # The wait for the tokenizer or a grammar may have been long.
        await self._serving()
        answer = self._submit(core_request, checked, backend)
        try:
            await context.send_initial_metadata(ACCEPTED_METADATA)
            while (message := await answer.next_message()) is not None:
                await context.write(message)
        finally:
            answer.cancel()
            del self._answers[checked.request_id]
            if not self._answers:
                self.idle.set()
            if backend.core.failure:
                await self._lifecycle.die(backend.core.failure)

    def _submit(self, request: Request, checked: Parameters, backend: Backend) -> Answer:
        if request.request_id in self._answers:
            raise RequestError(
                f"request_id {request.request_id!r} is running already: it must be unique",
                field="request_id",
            )
        needs_text = checked.detokenize or bool(checked.stop)
        answer = Answer(
            AnswerOptions(
                request_id=request.request_id,
                seed=checked.seed,
                show_text=checked.detokenize,
                include_stop=checked.include_stop,
                include_rounds=checked.include_rounds,
                min_tokens=request.sampling.min_tokens,
            ),
            self._ledger.open(len(request.prompt_ids), detailed=checked.detailed),
            detokenizer=backend.text.detokenizer(skip_special_tokens=checked.skip_special_tokens)
            if needs_text
            else None,
            matcher=StopMatcher(checked.stop, include=checked.include_stop)
            if checked.stop
            else None,
            abort=partial(backend.core.abort, request.request_id),
            logprobs=LogprobMessages(request.sampling, request.prompt_ids, backend.text.token_bytes)
            if request.sampling.logprobs >= 0 or request.sampling.prompt_logprobs >= 0
            else None,
        )
        try:
            backend.core.submit(request, self._handover.sink(answer))
        except QueueFullError as error:
            raise RequestError(
                f"too many requests are waiting (at most {self._settings.max_waiting_requests}); "
                "try again later",
                status=grpc.StatusCode.RESOURCE_EXHAUSTED,
            ) from error
        except RuntimeError as error:
            # It may have died since it was last asked.
            if not backend.core.failure:
                raise
            raise RequestError(
                f"no request is taken: the engine died: {shorten(backend.core.failure, 500)}",
                status=grpc.StatusCode.UNAVAILABLE,
            ) from error
        self._answers[request.request_id] = answer
        self.idle.clear()
        return answer

    async def _bad_words(
        self, words: tuple[str, ...], backend: Backend
    ) -> tuple[tuple[int, ...], ...]:
        if not words:
            return ()
        return await self._on_tokenizer(partial(bad_word_ids, backend.text, words))

    async def _constraint(
        self, request: verifier_pb2.GenerateRequest, core_request: Request
    ) -> Constraint | None:
        structure = requested_structure(request)
        if structure is None:
            return None
        if self._grammars is None:
            raise RuntimeError("no backend is attached")
        try:
            return await self._grammars.constraint(structure, core_request.sampling.stop_token_ids)
        except HopelessStructureError as error:
            raise hopeless(request.structured, str(error)) from error

    async def _tokenize(
        self, request: verifier_pb2.TokenizeRequest
    ) -> verifier_pb2.TokenizeResponse:
        backend, limits, prompts = self._loaded()
        ids = await prompts.ids(request, request.reserved_tokens)
        wanted = request.return_token_strings
        return verifier_pb2.TokenizeResponse(
            token_ids=ids,
            token_strings=backend.text.token_strings(ids) if wanted else (),
            max_model_len=limits.max_model_len,
        )

    async def _detokenize(
        self, request: verifier_pb2.DetokenizeRequest
    ) -> verifier_pb2.DetokenizeResponse:
        backend, limits, _ = self._loaded()
        ids = list(request.token_ids)
        check_token_ids(ids, limits.vocab_size, "token_ids")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await self._on_tokenizer(partial(backend.text.decode, ids, skip_special_tokens=skip))
        return verifier_pb2.DetokenizeResponse(text=text)

    async def _get_info(self) -> verifier_pb2.GetInfoResponse:
        backend, _, _ = self._loaded()
        model, stats, ledger = backend.core.model, backend.core.stats(), self._ledger
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
            step_cost_ms=stats.step_cost_ms,
            off_rounds=ledger.off_rounds,
            finished_requests=ledger.finished,
            prefix_cache_queries_total=stats.prefix_cache_queries,
            prefix_cache_hits_total=stats.prefix_cache_hits,
            preemptions_total=stats.preemptions,
        )

    async def _serving(self) -> tuple[Backend, Limits, Prompts]:
        """The backend, where new requests are taken. Raises RequestError (UNAVAILABLE)."""
        if self._backend is not None and self._backend.core.failure:
            await self._lifecycle.die(self._backend.core.failure)
        self._lifecycle.require_serving()
        return self._loaded()

    def _loaded(self) -> tuple[Backend, Limits, Prompts]:
        if self._backend is None or self._limits is None or self._prompts is None:
            raise RequestError(
                f"no request is taken: {self._lifecycle.reason}",
                status=grpc.StatusCode.UNAVAILABLE,
            )
        return self._backend, self._limits, self._prompts

    async def _on_tokenizer(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, call)

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
