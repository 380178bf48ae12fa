"""What was observed of one request: when its tokens came and what its server said of it.

Knows times on one clock, in seconds, and counts; does not know HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from outrider.bench.drafts import DraftCounts


class CountedBy(StrEnum):
    """What tells how many tokens a chunk holds, from the surest to the least sure."""

    TOKEN_IDS = "the token ids of each chunk"
    RUNNING_USAGE = "the usage of each chunk"
    FINAL_USAGE = "the usage at the end; times between tokens are times between chunks"
    CHUNKS = "the chunks: the server sends no usage"

    @property
    def per_token(self) -> bool:
        """Whether each chunk's own number of tokens is known."""
        return self in (CountedBy.TOKEN_IDS, CountedBy.RUNNING_USAGE)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One chunk with something new in it."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """One request. `index` is its sample's place in the run, the same for every arm.

    `error` is empty where the answer is complete; `text_digest` tells equal answers.
    """

    index: int
    sample: str
    sent: float
    arrivals: tuple[Arrival, ...] = ()
    output_tokens: int = 0
    prompt_tokens: int = 0
    counted_by: CountedBy = CountedBy.CHUNKS
    drafts: DraftCounts | None = None
    text_digest: str = ""
    finish_reason: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token; None where none came."""
        return self.arrivals[0].at - self.sent if self.arrivals else None

    @property
    def e2el(self) -> float | None:
        """Seconds from sending to the last token."""
        return self.arrivals[-1].at - self.sent if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None where there is none."""
        if self.output_tokens < 2 or not self.arrivals:
            return None
        return (self.arrivals[-1].at - self.arrivals[0].at) / (self.output_tokens - 1)

    def itls(self) -> list[float]:
        """Seconds of each token after the first, since the token before it.

        Tokens of one chunk share the time since the chunk before evenly, so that the sum is the
        time from the first token to the last however they were sent; what came together with the
        first token took no time.
        """
        if not self.arrivals:
            return []
        first = self.arrivals[0]
        result = [0.0] * (first.tokens - 1)
        before = first.at
        for arrival in self.arrivals[1:]:
            result += [(arrival.at - before) / arrival.tokens] * arrival.tokens
            before = arrival.at
        return result

    def gaps(self) -> list[float]:
        """Seconds between chunks: how long a reader of the stream sees nothing."""
        times = [arrival.at for arrival in self.arrivals]
        return [after - before for before, after in pairwise(times)]
