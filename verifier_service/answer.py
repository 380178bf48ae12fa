"""One request's answer: the core's outputs become text, sums and messages.

Knows detokenizing, stop strings and the stream's messages; knows no transport. Lives on the event
loop. Outputs are processed as they come, however slow the client is, because a stop string must
end the decoding at once; what the client has not read yet waits (undelivered.py) and cannot grow
beyond what `max_tokens` allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from speculation.v1 import types_pb2, verifier_pb2

from verifier_service.accounting import OUTCOME_ERROR, Account
from verifier_service.detokenizer import Detokenizer
from verifier_service.logprob_messages import LogprobMessages
from verifier_service.messages import FinishReason, Output
from verifier_service.request_error import RequestError, shorten
from verifier_service.stops import StopMatcher
from verifier_service.undelivered import Undelivered

_REASONS = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
}


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What of the answer the client wants; `show_text` False leaves deltas without text.

    Stop strings are looked for in the text behind the first `min_tokens` tokens. Behind the first
    delta, tokens wait until there are `stream_interval` of them: each message costs both sides.
    """

    request_id: str
    seed: int
    show_text: bool = True
    include_stop: bool = False
    include_rounds: bool = False
    min_tokens: int = 0
    stream_interval: int = 1


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an answer began: nanoseconds since it was asked for, and prompt tokens not computed."""

    queue_ns: int = 0
    first_token_ns: int = 0
    cached_prompt_tokens: int = 0


class Answer:
    """Outputs in, messages out.

    `detokenizer` None where neither text nor stop strings are wanted, `logprobs` None where no
    log-probabilities are; `abort` stops the core's work on this request and is called at most once.
    """

    def __init__(
        self,
        options: AnswerOptions,
        account: Account,
        *,
        detokenizer: Detokenizer | None,
        matcher: StopMatcher | None,
        abort: Callable[[], None],
        logprobs: LogprobMessages | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if matcher is not None and detokenizer is None:
            raise ValueError("stop strings need a detokenizer")
        self._options = options
        self._account = account
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._abort = abort
        self._logprobs = logprobs
        self._now_ns = now_ns
        self._submitted_ns = now_ns()
        self._first_token_ns = 0
        self._queue_ns = 0
        self._cached_prompt_tokens = 0
        self._started = False
        self._undelivered = Undelivered(
            rounds=options.include_rounds,
            logprobs=None if logprobs is None else logprobs.messages,
        )
        self._told = False
        self._ended = False
        self._finished: verifier_pb2.Finished | None = None
        self._error: Exception | None = None
        self._announced = False
        self._delivered = False
        self._changed = asyncio.Event()

    @property
    def beginning(self) -> Beginning:
        """What is known of them so far."""
        return Beginning(self._queue_ns, self._first_token_ns, self._cached_prompt_tokens)

    @property
    def ended(self) -> bool:
        """Whether the outcome is known; there may be messages left to read."""
        return self._ended

    @property
    def _is_due(self) -> bool:
        """Whether what is undelivered need not wait for more."""
        if self._ended or not self._told:
            return True
        return self._undelivered.waiting >= self._options.stream_interval

    def take_output(self, output: Output) -> None:
        """Process one output of the core. Raises ValueError where it contradicts itself."""
        if self._ended:
            return
        if output.error:
            reason = shorten(output.error.splitlines()[0], 500)
            self.fail(
                RequestError(
                    f"the engine failed this request: {reason}", status=grpc.StatusCode.INTERNAL
                )
            )
            return
        if output.refusal:
            self.fail(RequestError(output.refusal))
            return
        if self._logprobs is not None:
            self._logprobs.take(output)
            if not output.token_ids and output.finish_reason is None:
                return
        if not self._started:
            self._started = True
            self._cached_prompt_tokens = output.cached_prompt_tokens
            self._queue_ns = output.queue_ns
        if output.token_ids and not self._first_token_ns:
            self._first_token_ns = self._now_ns() - self._submitted_ns
        text, kept, stop = self._read(output)
        token_ids = output.token_ids[:kept]
        round_ = output.round
        if round_ is not None and kept < len(output.token_ids):
            round_ = round_.cut(kept)
        self._account.add(kept, round_, token_ids)
        if stop is None and output.finish_reason is not None:
            rest, stop = self._flush()
            text += rest
        if text or token_ids:
            shown = text if self._options.show_text else ""
            self._undelivered.add(shown, token_ids, round_, output.logprobs[:kept])
        if stop is not None:
            self._finish(FinishReason.STOP, stop_string=stop)
            if output.finish_reason is None:
                self._abort()
        elif output.finish_reason is not None:
            self._finish(output.finish_reason, stop_token_id=output.stop_token_id)
        if self._is_due:
            self._changed.set()

    def crash(self, error: Exception) -> None:
        """An output could not be processed; the stream ends with an internal error."""
        if not self.ended:
            self.fail(error)
            self._abort()

    def fail(self, error: Exception) -> None:
        """End with an error; what is undelivered is told before it."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._account.close(OUTCOME_ERROR)
            self._changed.set()

    def shut_down(self) -> None:
        """The verifier ends before the answer does: finish it as aborted, with what there is."""
        if self.ended:
            return
        text, _ = self._flush()
        if text and self._options.show_text:
            self._undelivered.add(text)
        self._finish(FinishReason.ABORT)
        self._changed.set()
        self._abort()

    def cancel(self) -> None:
        """The client is gone: nothing is delivered any more and the core's work stops."""
        if self._ended:
            return
        self._ended = True
        self._account.close(FinishReason.ABORT.value)
        self._undelivered.clear()
        self._abort()

    async def next_message(self) -> verifier_pb2.GenerateResponse | None:
        """What became known since the last call, in order; None after `finished`.

        Raises the error that the answer ended with, once everything before it was delivered.
        """
        while True:
            if not self._announced and (self._started or self._finished is not None):
                self._announced = True
                return verifier_pb2.GenerateResponse(started=self._started_message())
            if self._undelivered and self._is_due:
                self._told = True
                message = verifier_pb2.GenerateResponse()
                self._undelivered.take(message.delta)
                return message
            if self._error is not None:
                raise self._error
            if self._finished is not None:
                if self._delivered:
                    return None
                self._delivered = True
                return verifier_pb2.GenerateResponse(finished=self._finished)
            self._changed.clear()
            await self._changed.wait()

    def _read(self, output: Output) -> tuple[str, int, str | None]:
        """Text of the output's tokens, how many of them are kept, the stop string that cut."""
        token_ids = output.token_ids
        if self._detokenizer is None:
            return "", len(token_ids), None
        shown = token_ids
        hidden = output.stop_token_id is not None and not self._options.include_stop
        if hidden and token_ids and token_ids[-1] == output.stop_token_id:
            shown = token_ids[:-1]
        if self._matcher is None:
            return self._detokenizer.push(shown), len(token_ids), None
        texts: list[str] = []
        early = self._options.min_tokens - self._account.completion_tokens
        for count, token_id in enumerate(shown, start=1):
            piece = self._detokenizer.push((token_id,))
            if count <= early:
                texts.append(piece)
                continue
            match = self._matcher.push(piece)
            texts.append(match.text)
            if match.stop is not None:
                return "".join(texts), count, match.stop
        return "".join(texts), len(token_ids), None

    def _flush(self) -> tuple[str, str | None]:
        """The text that was held back, and the stop string that it completes, if it does."""
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.finish()
        if self._matcher is None:
            return text, None
        match = self._matcher.push(text)
        if match.stop is not None:
            return match.text, match.stop
        return match.text + self._matcher.finish(), None

    def _finish(
        self,
        reason: FinishReason,
        *,
        stop_string: str | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        account = self._account
        account.close(reason.value)
        self._finished = verifier_pb2.Finished(
            reason=_REASONS[reason],
            stop_string=stop_string,
            stop_token_id=stop_token_id,
            prompt_tokens=account.prompt_tokens,
            completion_tokens=account.completion_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            acceptance=account.acceptance.to_proto(),
            queue_ns=self._queue_ns,
            first_token_ns=self._first_token_ns,
            total_ns=self._now_ns() - self._submitted_ns,
        )
        self._ended = True

    def _started_message(self) -> verifier_pb2.Started:
        started = verifier_pb2.Started(
            request_id=self._options.request_id,
            prompt_tokens=self._account.prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            seed=self._options.seed,
        )
        if self._logprobs is not None:
            self._logprobs.begin(started)
        return started
