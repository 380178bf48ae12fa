"""What `LLM.generate` returns: vLLM's result objects under their names.

Knows shapes only; how they come out of the verifier's messages is llm_replies.py's. Light: imports
no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability; `rank` is 1 for the most likely token of the vocabulary."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Token id -> its log-probability: the token itself first, then the most likely ones in order.
LogprobsOfPosition = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class SpecDecodeMetrics:
    """How speculation went in one answer; outrider/acceptance.py defines each figure.

    `histogram` has K+1 entries: steps that accepted exactly j drafts. `per_step_*` have one entry
    for each step, None unless asked for.
    """

    num_spec_tokens: int
    histogram: tuple[int, ...]
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    per_step_accepted: tuple[int, ...] | None = None
    per_step_drafted: tuple[int, ...] | None = None

    @property
    def num_spec_steps(self) -> int:
        return sum(self.histogram)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps, from 1.0 to K+1; 1.0 when there were no steps."""
        return mean_acceptance_length(self.num_accepted_draft_tokens, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted, from 0 to 1; 0.0 when nothing was drafted."""
        return draft_acceptance_rate(self.num_accepted_draft_tokens, self.num_draft_tokens)

    def to_dict(self) -> dict[str, object]:
        """The `metrics.speculative_decoding` object of a served response."""
        told: dict[str, object] = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": self.num_spec_tokens,
        }
        if self.per_step_accepted is not None and self.per_step_drafted is not None:
            told["per_step_accepted"] = list(self.per_step_accepted) or None
            told["per_step_drafted"] = list(self.per_step_drafted) or None
        return told


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer of a prompt.

    `finish_reason` is `stop`, `length` or `abort`; `stop_reason` the stop string or the asked-for
    stop token id that ended it, None for the end of the sequence. A stop token is among
    `token_ids`; its text is in `text` only where `include_stop_str_in_output` is set. `logprobs`
    has one dict for each of `token_ids`, `cumulative_logprob` is the sum of the tokens' own; both
    are None unless asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[LogprobsOfPosition] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    spec_decode_metrics: SpecDecodeMetrics | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When a request's parts happened, in seconds.

    `arrival_time` is of the wall clock, `first_token_latency` a duration; the rest are of the
    monotonic clock. Of several answers the first one's beginning counts, and the last one's end.
    """

    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    first_token_latency: float
    num_generation_tokens: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its `n` answers.

    `prompt` is the text that was read (of a chat: what its template made of it), None for token
    ids. `prompt_logprobs` has one entry for each prompt token, None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsOfPosition | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int
