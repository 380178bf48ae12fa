"""What of an answer its client has not read yet, merged into few messages.

Knows text, ids, rounds and log-probabilities in the order in which they came; does not know why an
answer ends, or who reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from speculation.v1 import verifier_pb2

from outrider.acceptance import Round
from outrider.records import record
from verifier_service.messages import TokenLogprob
from verifier_service.round_messages import round_message

# Keeps one message far below the 4 MiB that gRPC clients take by default.
MAX_TOKENS_PER_DELTA = 4096
# What a log-probability counts for there, in tokens: about 25 bytes.
_PER_LOGPROB = 1 / 16

LogprobWords = Callable[[Sequence[TokenLogprob]], Sequence[verifier_pb2.TokenLogprob]]


@record(frozen=True, slots=True)
class _Chunk:
    """One output's part; `size` is its part of a message, in tokens."""

    text: str
    token_ids: Sequence[int]
    round: Round | None
    logprobs: Sequence[TokenLogprob]
    size: float


class Undelivered:
    """Chunks of one answer; `waiting` is their size in tokens.

    `rounds` says whether the client wants them, `logprobs` how log-probabilities are told.
    """

    __slots__ = ("_chunks", "_logprobs", "_rounds", "waiting")

    def __init__(self, *, rounds: bool, logprobs: LogprobWords | None) -> None:
        self.waiting = 0.0
        self._rounds = rounds
        self._logprobs = logprobs
        self._chunks: deque[_Chunk] = deque()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(
        self,
        text: str,
        token_ids: Sequence[int] = (),
        round_: Round | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """One more output, behind all others."""
        size = float(len(token_ids))
        if logprobs:
            size += sum(len(entry.top) + 1 for entry in logprobs) * _PER_LOGPROB
        self._chunks.append(_Chunk(text, token_ids, round_, logprobs, size))
        self.waiting += size

    def clear(self) -> None:
        self._chunks.clear()
        self.waiting = 0.0

    def take(self, delta: verifier_pb2.Delta) -> None:
        """Move the oldest chunks into an empty message, as many as one may hold."""
        chunks = self._chunks
        texts: list[str] = []
        size = 0.0
        while chunks and size < MAX_TOKENS_PER_DELTA:
            chunk = chunks.popleft()
            size += chunk.size
            texts.append(chunk.text)
            delta.token_ids.extend(chunk.token_ids)
            if self._rounds and chunk.round is not None:
                delta.rounds.append(round_message(chunk.round))
            if self._logprobs is not None:
                delta.logprobs.extend(self._logprobs(chunk.logprobs))
        # To a sum of nothing, whatever parts of a token were rounded.
        self.waiting = self.waiting - size if chunks else 0.0
        delta.text = "".join(texts)
