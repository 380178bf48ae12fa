"""The verifier's options, already validated by the command line; plain values only."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.credentials import PLAIN, Credentials
from outrider.draft_schedule import DraftSchedule
from outrider.trace_settings import UNTRACED, TraceSettings
from verifier_service.messages import RejectionRule
from verifier_service.proposer_expectation import ExpectedProposer


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """Options of one verifier process.

    `model` is a local folder; `listen` and `proposers` are gRPC addresses (`unix:PATH` or
    `HOST:PORT`; of proposers also `dns:HOST:PORT`), `expected_proposers` what each of these must
    be, or empty to take any.
    `num_speculative_tokens` is the ceiling K, 0 turns speculation off.
    `num_prediction_tokens` is the ceiling of requests that bring a prediction where K is 0: their
    drafts need no proposer.
    `max_model_len` None takes the model's own limit. `kv_cache_bytes` None sizes the cache from
    the memory that is free. `draft_deadline_ms` is the longest a step waits for drafts.
    `drain_seconds` is how long running requests may go on once the process is told to stop.
    `log_stats_interval_s` is how often the log tells what was drafted and accepted, 0 for never.
    `trust_request_chat_template` lets clients send chat templates, which run here, sandboxed.
    `enable_prefix_caching` lets a prompt take over the cached keys of an equal beginning.
    `prefill_stall_ms` is how much longer prefill may make a step while others decode: more only
    where decoding alone takes longer.
    `max_logprobs` is how many top log-probabilities a request may ask for, -1 for any number.
    `quantization` rounds the target's linear layers when it is loaded: none, int8 or fp8.
    `batch_invariant` makes a sequence's logits independent of what shares its steps.
    `adaptive` lets the controller verify fewer drafts than were offered
    (`enable_adaptive_verification`); without it every offered draft is verified.
    `enforce_eager` runs the model without torch.compile and without CUDA graphs.
    `max_captured_prefill_tokens` is the largest prefill that is captured as a CUDA graph, 0 for
    none.
    `num_speculative_tokens_per_batch_size` lowers the ceiling by the number of running sequences.
    `plain_share` of the steps decode plainly, to measure what drafts gain; None: as many as cost
    next to nothing.
    `engine_process` runs the engine in a process of its own; None: where the device is CUDA.
    `trace` is what is told of requests, and where.
    `credentials` protect the port, and are shown to proposers that are dialled.
    `record_rounds` is a file that every step's numbers are written to, for
    verifier_service.simulation.
    """

    model: str
    listen: str
    served_model_name: str
    proposers: tuple[str, ...] = ()
    expected_proposers: tuple[ExpectedProposer, ...] = ()
    num_speculative_tokens: int = 0
    num_prediction_tokens: int = 8
    rejection_rule: RejectionRule = RejectionRule.COUPLED
    device: str = "auto"
    dtype: str = "auto"
    engine: str = "torch"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_waiting_requests: int = 4096
    max_logprobs: int = 20
    enable_prefix_caching: bool = True
    prefill_stall_ms: float = 100.0
    kv_cache_bytes: int | None = None
    draft_deadline_ms: float = 10.0
    adaptive: bool = True
    num_speculative_tokens_per_batch_size: DraftSchedule | None = None
    compile: bool = True
    enforce_eager: bool = False
    max_captured_prefill_tokens: int = 2048
    threads: int | None = None
    log_level: str = "info"
    drain_seconds: float = 5.0
    log_stats_interval_s: float = 10.0
    trust_request_chat_template: bool = False
    quantization: str = "none"
    batch_invariant: bool = False
    record_rounds: str | None = None
    credentials: Credentials = PLAIN
    trace: TraceSettings = UNTRACED
    plain_share: float | None = None
    engine_process: bool | None = None

    @property
    def draft_ceiling(self) -> int:
        """Most drafts that any round verifies."""
        return self.num_speculative_tokens or self.num_prediction_tokens
