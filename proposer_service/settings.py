"""The proposer's options, already validated by the command line; plain values only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from outrider.credentials import PLAIN, Credentials
from outrider.trace_settings import UNTRACED, TraceSettings
from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.proposers.suffix_options import SuffixOptions

Method = Literal["ngram", "suffix", "draft_model"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class ProposerSettings:
    """Options of one proposer process.

    `listen` is a gRPC address (`unix:PATH` or `HOST:PORT`); `name` is what metrics and traces call
    this proposer, empty takes the method. `max_draft_tokens` is the most drafts of one block,
    `max_sequences` how many sequences one verifier may have open, `context_limit` the longest
    sequence in tokens (0: no limit of its own). `prompt_lookup_*` belong to ngram,
    `suffix_decoding_*` to suffix; names and defaults are vLLM's. `draft_model` is given exactly
    where that is the method. `lookahead` pushes blocks for likely outcomes of the round in flight.
    `credentials` protect the port. `trace` is what is told of sequences, and where.

    Raises ValueError naming field, value and what is allowed.
    """

    listen: str
    method: Method
    name: str = ""
    max_draft_tokens: int = 32
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    draft_model: DraftModelSettings | None = None
    max_sequences: int = 256
    context_limit: int = 0
    lookahead: bool = True
    drain_seconds: float = 2.0
    log_level: str = "info"
    credentials: Credentials = PLAIN
    trace: TraceSettings = UNTRACED

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}: must be one of {', '.join(METHODS)}")
        for field, least in (
            ("max_draft_tokens", 1),
            ("prompt_lookup_min", 1),
            ("max_sequences", 1),
            ("context_limit", 0),
            ("drain_seconds", 0),
        ):
            value = getattr(self, field)
            if value < least:
                raise ValueError(f"{field}={value}: must be at least {least}")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_max={self.prompt_lookup_max}: must be at least prompt_lookup_min="
                f"{self.prompt_lookup_min}"
            )
        if (self.draft_model is not None) != (self.method == "draft_model"):
            wanted = "required by" if self.draft_model is None else "not an option of"
            raise ValueError(f"draft_model: {wanted} method {self.method!r}")
        self.suffix_options()

    def method_options(self) -> dict[str, object]:
        """The method's own options, by their names in a speculative config."""
        if self.draft_model is not None:
            return self.draft_model.told()
        prefix = {"ngram": "prompt_lookup_", "suffix": "suffix_decoding_"}[self.method]
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name.startswith(prefix)
        }

    def suffix_options(self) -> SuffixOptions:
        """The suffix method's own options. Raises ValueError where one is out of range."""
        return SuffixOptions(
            max_tree_depth=self.suffix_decoding_max_tree_depth,
            max_cached_requests=self.suffix_decoding_max_cached_requests,
            max_spec_factor=self.suffix_decoding_max_spec_factor,
            min_token_prob=self.suffix_decoding_min_token_prob,
        )
