"""The running answers of one loaded verifier: from a request to its answer, and its end.

Knows what stands between a request and the core (tokenizer, grammars, limits, sums); knows no
transport: an RPC and an offline caller open answers in the same way. Lives on the event loop that
it was made on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
from speculation.v1 import verifier_pb2

from verifier_service.accounting import Account, Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.backend import Backend
from verifier_service.bad_words import bad_word_ids
from verifier_service.core import QueueFullError
from verifier_service.grammar.requested import hopeless, requested_structure
from verifier_service.grammar.structure import HopelessStructureError
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.handover import Handover
from verifier_service.logprob_messages import LogprobMessages
from verifier_service.messages import Request
from verifier_service.prediction import PredictedIds
from verifier_service.predictions import read_prediction
from verifier_service.prompts import Prompts
from verifier_service.request_error import RequestError, shorten
from verifier_service.settings import VerifierSettings
from verifier_service.stops import StopMatcher
from verifier_service.validation import Limits, Parameters, complete, parameters

if TYPE_CHECKING:
    # It brings the SDK's interface in, which an untraced verifier does without.
    from verifier_service.tracing import RequestTrace

T = TypeVar("T")


class Generations:
    """Answers requests with one backend, which the caller closes.

    `gate` raises RequestError where no new request is taken; `idle` is set while no answer is on
    its way.
    """

    def __init__(
        self,
        settings: VerifierSettings,
        backend: Backend,
        *,
        gate: Callable[[], Awaitable[None]],
        idle: asyncio.Event,
    ) -> None:
        model = backend.core.model
        self.backend = backend
        self.limits = Limits(
            served_model_name=settings.served_model_name,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=model.eos_token_ids,
            num_speculative_tokens=settings.num_speculative_tokens,
            defaults=backend.defaults,
            max_logprobs=settings.max_logprobs,
            num_prediction_tokens=settings.draft_ceiling,
        )
        self.prompts = Prompts(
            backend.text,
            model.max_model_len,
            self.on_tokenizer,
            trust_request_chat_template=settings.trust_request_chat_template,
        )
        self.ledger = Ledger(settings.draft_ceiling)
        self._gate = gate
        self._idle = idle
        self._max_waiting = settings.max_waiting_requests
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        vocabulary = partial(
            Vocabulary.of, backend.text.tokenizer, model.vocab_size, model.eos_token_ids
        )
        self._structures = backend.structures(lambda: self._tokenizing.submit(vocabulary).result())
        self._handover = Handover(asyncio.get_running_loop())
        self._answers: dict[str, Answer] = {}

    @asynccontextmanager
    async def answering(
        self, request: verifier_pb2.GenerateRequest, trace: RequestTrace | None = None
    ) -> AsyncIterator[Answer]:
        """The answer to `request` within the body, which reads its messages; then it is cancelled.

        `trace` is told what is made of the request, and ends after it.
        Raises RequestError naming the field at fault, or why no request is taken.
        """
        await self._gate()
        names = {state.name for state in self.backend.proposers.states()}
        checked = parameters(request, self.limits, names)
        core_request = await self._core_request(request, checked)
        # The wait for the tokenizer or a grammar may have been long.
        await self._gate()
        core_request.traceparent = trace.traceparent if trace is not None else ""
        answer = self._submit(core_request, checked, trace)
        try:
            yield answer
        finally:
            answer.cancel()
            del self._answers[checked.request_id]
            if not self._answers:
                self._idle.set()

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

    async def on_tokenizer(self, call: Callable[[], T]) -> T:
        """Run `call` on the one thread that may use the tokenizer."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, call)

    def close(self) -> None:
        """Once no answer runs and the engine is quiet."""
        self._handover.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._structures.close()

    async def _core_request(
        self, request: verifier_pb2.GenerateRequest, checked: Parameters
    ) -> Request:
        chat = request.WhichOneof("prompt") == "chat"
        prompt_ids = await self.prompts.ids(request, checked.max_tokens or 1)
        core_request = complete(
            checked,
            prompt_ids,
            self.limits,
            prompt_field="messages" if chat else "prompt",
            bad_words=await self._bad_words(checked.rules.bad_words),
        )
        await self._structure(request, core_request)
        if checked.speculation.predicts:
            core_request.prediction = await self._prediction(request.prediction)
        return core_request

    async def _prediction(self, prediction: verifier_pb2.Prediction) -> PredictedIds | None:
        limits, text = self.limits, self.backend.text
        return await self.on_tokenizer(
            partial(read_prediction, prediction, text, limits.vocab_size, limits.max_model_len)
        )

    async def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        if not words:
            return ()
        return await self.on_tokenizer(partial(bad_word_ids, self.backend.text, words))

    async def _structure(
        self, request: verifier_pb2.GenerateRequest, core_request: Request
    ) -> None:
        structure = requested_structure(request)
        if structure is None:
            return
        try:
            await self._structures.hold(core_request, structure)
        except HopelessStructureError as error:
            raise hopeless(request.structured, str(error)) from error

    def _submit(self, request: Request, checked: Parameters, trace: RequestTrace | None) -> Answer:
        if request.request_id in self._answers:
            raise RequestError(
                f"request_id {request.request_id!r} is running already: it must be unique",
                field="request_id",
            )
        core = self.backend.core
        account = self._new_account(request, checked, trace)
        answer = self._new_answer(request, checked, account)
        try:
            core.submit(request, self._handover.sink(answer))
        except QueueFullError as error:
            raise RequestError(
                f"too many requests are waiting (at most {self._max_waiting}); try again later",
                status=grpc.StatusCode.RESOURCE_EXHAUSTED,
            ) from error
        except RuntimeError as error:
            # It may have died since it was last asked.
            if not core.failure:
                raise
            raise RequestError(
                f"no request is taken: the engine died: {shorten(core.failure, 500)}",
                status=grpc.StatusCode.UNAVAILABLE,
            ) from error
        if trace is not None:
            trace.admitted(request, account, answer, self.backend)
        self._answers[request.request_id] = answer
        self._idle.clear()
        return answer

    def _new_account(
        self, request: Request, checked: Parameters, trace: RequestTrace | None
    ) -> Account:
        return self.ledger.open(
            len(request.prompt_ids),
            num_spec_tokens=self.limits.ceiling(request.prediction is not None),
            detailed=checked.detailed,
            traced_rounds=trace.kept_rounds if trace is not None else None,
        )

    def _new_answer(self, request: Request, checked: Parameters, account: Account) -> Answer:
        text, sampling = self.backend.text, request.sampling
        needs_text = checked.detokenize or bool(checked.stop)
        needs_logprobs = sampling.logprobs >= 0 or sampling.prompt_logprobs >= 0
        return Answer(
            AnswerOptions(
                request_id=request.request_id,
                seed=checked.seed,
                show_text=checked.detokenize,
                include_stop=checked.include_stop,
                include_rounds=checked.include_rounds,
                stream_interval=checked.stream_interval,
                min_tokens=sampling.min_tokens,
            ),
            account,
            detokenizer=text.detokenizer(skip_special_tokens=checked.skip_special_tokens)
            if needs_text
            else None,
            matcher=StopMatcher(checked.stop, include=checked.include_stop)
            if checked.stop
            else None,
            abort=partial(self.backend.core.abort, request.request_id),
            logprobs=LogprobMessages(sampling, request.prompt_ids, text.token_bytes)
            if needs_logprobs
            else None,
        )
