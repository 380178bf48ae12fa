"""One request inside the scheduler: its ids, how much of it is computed, what it holds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from verifier_service.messages import (
    DraftBlock,
    FinishReason,
    OutputSink,
    Request,
    Sampling,
    SequenceView,
    TokenLogprob,
)
from verifier_service.sampling import is_greedy


@dataclass(slots=True)
class Sequence:
    """`ids` are prompt and output; the keys of the first `computed` of them are in the cache.

    `draft_limit` is the most drafts a round of it may verify, `ask_limit` the most that proposers
    are asked for.

    A sequence is decoding when all but its last id are computed, else it is in prefill (also
    after a preemption, which sets `computed` back to 0 and keeps the ids).
    """

    sequence_id: int
    request: Request
    sink: OutputSink
    draft_limit: int
    ask_limit: int
    arrival: int
    ids: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    # Names of its full blocks (prefix_cache.py), and how many of these were offered to others.
    block_names: list[bytes] = field(default_factory=list)
    published: int = 0
    # Prompt tokens that were found in the cache, and how often its blocks were taken away.
    cached: int = 0
    preemptions: int = 0
    # The round behind the last committed ids, as proposers are told.
    proposer: str = ""
    drafted: int = 0
    accepted: int = 0
    # Log-probabilities of the prompt that the request was told; its first id has none.
    prompt_told: int = 0
    # Whether proposers know of it, so that its end must be told.
    announced: bool = False
    # When it was queued, and how long it then waited before it first ran.
    queued_at: int = field(default_factory=time.perf_counter_ns)
    queue_ns: int = -1
    # What its request says once and for all, at hand because every step reads it.
    sampling: Sampling = field(init=False)
    prompt_length: int = field(init=False)
    greedy: bool = field(init=False)
    # How many ids it has once `max_tokens` are emitted.
    full_length: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.sampling = request.sampling
        self.prompt_length = len(request.prompt_ids)
        self.greedy = is_greedy(request.sampling)
        self.full_length = self.prompt_length + request.sampling.max_tokens

    @property
    def num_output(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def decoding(self) -> bool:
        return self.computed == len(self.ids) - 1

    @property
    def prompt_untold(self) -> bool:
        """Whether log-probabilities of the prompt are wanted still: all of it must be computed."""
        wanted = self.request.sampling.prompt_logprobs >= 0
        return wanted and self.prompt_told < self.prompt_length - 1

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: lower priority values first, then first come."""
        return (self.request.priority, self.arrival)

    def most_drafts(self) -> int:
        """Drafts that may be verified now: a round emits one token more than it accepts."""
        room = self.full_length - len(self.ids) - 1
        if room > self.draft_limit:
            return self.draft_limit
        return room if room > 0 else 0

    def own_block(self) -> DraftBlock | None:
        """Drafts of the request's own prediction behind the ids as they are."""
        own = self.request.prediction
        if own is None:
            return None
        return own.block(self.ids, self.prompt_length, self.most_drafts())

    def view(self, wanted: int) -> SequenceView:
        """What proposers see of it when they are asked for `wanted` drafts."""
        self.announced = True
        request = self.request
        # By place: named arguments take as long again as the object.
        return SequenceView(
            self.sequence_id,
            self.ids,
            self.prompt_length,
            wanted,
            self.sampling,
            self.proposer,
            self.drafted,
            self.accepted,
            request.cache_salt,
            request.proposer,
            request.traceparent,
        )

    def tell_prompt(
        self, start: int, logprobs: tuple[TokenLogprob, ...]
    ) -> tuple[TokenLogprob, ...]:
        """What is new of a chunk's answers, the first of which is about prompt id `start` + 1.

        After a preemption the prompt is computed again from its beginning, and told once only.
        """
        fresh = logprobs[max(self.prompt_told - start, 0) :]
        self.prompt_told += len(fresh)
        return fresh

    def cut(self, tokens: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """What of a round's tokens is emitted, why the request ends there, and the stop id."""
        stops = self.sampling.stop_token_ids
        left = self.full_length - len(self.ids)
        if not stops.isdisjoint(tokens):
            for i, token in enumerate(tokens[:left]):
                if token in stops:
                    return tokens[: i + 1], FinishReason.STOP, token
        if len(tokens) >= left:
            return tokens[:left], FinishReason.LENGTH, None
        return tokens, None, None
