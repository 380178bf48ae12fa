"""The verifier inside this process: a thread with the event loop that its answers live on.

Knows how jobs become answers, how they are cancelled and how everything ends; knows no vLLM names.
What answers is what the gRPC service answers with, so that an answer here is the served one.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
from speculation.v1 import verifier_pb2 as pb

from gateway.calls import for_choice
from outrider.llm_outputs import RequestOutput
from outrider.llm_replies import Reply, request_output
from outrider.llm_requests import Job
from verifier_service.backend import Backend
from verifier_service.chat import render_chat
from verifier_service.generations import Generations
from verifier_service.request_error import RequestError, shorten
from verifier_service.settings import VerifierSettings

T = TypeVar("T")

# Answers that are in the engine at once, waiting ones included: far below where its queue is full,
# since it may still hold those of a call that was given up.
_IN_FLIGHT = 1024
# What ended answers need to reach whoever waits for them.
_LAST_WORDS_S = 5.0
_JOIN_S = 30.0

# Called on the event loop with a job's number and its result, or what went wrong with it.
Finished = Callable[[int, RequestOutput | Exception], None]


class LocalEngine:
    """Answers jobs with a loaded backend, which it closes; all methods are thread-safe."""

    def __init__(
        self, settings: VerifierSettings, backend: Backend, spec_decode_metrics: str
    ) -> None:
        self.backend = backend
        self._spec_decode_metrics = spec_decode_metrics
        self._numbers = itertools.count()
        self._instance = uuid.uuid4().hex[:8]
        self._closing = False
        self._closed = threading.Event()
        # Callers that wait for answers.
        self._active = 0
        self._users = threading.Condition()
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._runs: dict[object, asyncio.Task[Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="outrider-llm", daemon=True
        )
        self._thread.start()
        self.generations = self._call(self._open(settings))

    @contextmanager
    def running(
        self,
        jobs: Sequence[Job],
        finished: Finished,
        *,
        tokens: Callable[[int], None],
        ended: Callable[[], None],
    ) -> Iterator[None]:
        """Answer all jobs while the body runs; behind it, nothing of them is in the engine.

        Called on the event loop: `tokens` with how many tokens came, each time that some do;
        `ended` once when nothing more will finish.
        """
        call = object()
        with self._users:
            self._active += 1
        try:
            asyncio.run_coroutine_threadsafe(
                self._run(call, jobs, finished, tokens, ended), self._loop
            )
            try:
                yield
            finally:
                self._call(self._stop(call))
        finally:
            with self._users:
                self._active -= 1
                self._users.notify_all()

    def close(self) -> None:
        """End all answers as aborted, then the engine, its threads and the loop. Idempotent."""
        if threading.current_thread() is self._thread:
            # Garbage may be collected on any thread, and this one cannot wait for itself.
            threading.Thread(target=self.close, name="outrider-llm-close").start()
            return
        with self._users:
            first, self._closing = not self._closing, True
        if not first:
            self._closed.wait(_JOIN_S)
            return
        try:
            self._call(self._end_runs())
            self.backend.close()
            self._call(self._end())
            with self._users:
                self._users.wait_for(lambda: not self._active, _LAST_WORDS_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_S)
            self._loop.close()
        finally:
            self._closed.set()

    async def _open(self, settings: VerifierSettings) -> Generations:
        return Generations(settings, self.backend, gate=self._gate, idle=asyncio.Event())

    async def _gate(self) -> None:
        reason = "the LLM is shut down" if self._closing else ""
        if failure := self.backend.core.failure:
            reason = f"the engine died: {shorten(failure, 500)}"
        if reason:
            raise RequestError(f"no request is taken: {reason}", status=grpc.StatusCode.UNAVAILABLE)

    async def _run(
        self,
        call: object,
        jobs: Sequence[Job],
        finished: Finished,
        tokens: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs on the event loop")
        self._runs[call] = task
        ids = [str(next(self._numbers)) for _ in jobs]
        # Only so many are in the engine at once: the urgent ones first.
        order = sorted(range(len(jobs)), key=lambda number: jobs[number].request.priority)
        try:
            async with asyncio.TaskGroup() as group:
                for number in order:
                    group.create_task(
                        self._finish(number, jobs[number], ids[number], finished, tokens)
                    )
        finally:
            del self._runs[call]
            ended()

    async def _stop(self, call: object) -> None:
        task = self._runs.get(call)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _finish(
        self,
        number: int,
        job: Job,
        request_id: str,
        finished: Finished,
        tokens: Callable[[int], None],
    ) -> None:
        try:
            output = await self._answer(job, request_id, tokens)
        except Exception as error:
            finished(number, error)
        else:
            finished(number, output)

    async def _answer(
        self, job: Job, request_id: str, tokens: Callable[[int], None]
    ) -> RequestOutput:
        prompt, ids = await self._read(job)
        request = pb.GenerateRequest()
        request.CopyFrom(job.request)
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(ids)
        choices = [
            for_choice(
                request,
                request_id=f"{self._instance}-{request_id}-{number}",
                number=number,
                seed=job.seed,
            )
            for number in range(job.params.n)
        ]
        return request_output(
            job,
            prompt,
            ids,
            await self._replies(choices, tokens),
            request_id=request_id,
            eos_token_ids=self.generations.limits.eos_token_ids,
            spec_decode_metrics=self._spec_decode_metrics,
        )

    async def _read(self, job: Job) -> tuple[str | None, list[int]]:
        """The prompt's text, None where it came as ids, and the ids to answer for."""
        generations, prompt = self.generations, job.prompt
        request = pb.GenerateRequest(truncate_prompt_tokens=job.params.truncate_prompt_tokens)
        text = prompt.text
        if prompt.chat is not None:
            tokenizer = generations.backend.text.tokenizer
            text = await generations.on_tokenizer(partial(render_chat, tokenizer, prompt.chat))
            request.add_special_tokens = False
        if text is None:
            request.token_ids.SetInParent()
            request.token_ids.ids.extend(prompt.token_ids)
        else:
            request.text = text
        return text, await generations.prompts.ids(request, job.params.max_tokens or 1)

    async def _replies(
        self, choices: Sequence[pb.GenerateRequest], tokens: Callable[[int], None]
    ) -> list[Reply]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._reply(choice, tokens)) for choice in choices]
        except ExceptionGroup as errors:
            # Of one prompt's answers the first that failed tells why all of them do.
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _reply(self, request: pb.GenerateRequest, tokens: Callable[[int], None]) -> Reply:
        async with self._room:
            reply = Reply()
            async with self.generations.answering(request) as answer:
                while (message := await answer.next_message()) is not None:
                    if count := reply.add(message):
                        tokens(count)
            return reply

    async def _end_runs(self) -> None:
        self.generations.shut_down_answers()
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=_LAST_WORDS_S)
        for call in list(self._runs):
            await self._stop(call)

    async def _end(self) -> None:
        self.generations.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
