"""The name of everything that Outrider's telemetry says, declared once.

Knows names and what they mean; imports no SDK. docs/telemetry.md is the page for people. Names
without `speculation.` are OpenTelemetry's own (GenAI and error conventions). Times are nanoseconds,
and arrays by position begin with the first draft token. What a request's span says is what was
emitted, as in the request's own `metrics.speculative_decoding`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SCOPE: Final = "outrider"
GATEWAY_SERVICE: Final = "outrider-gateway"
VERIFIER_SERVICE: Final = "outrider-verifier"
PROPOSER_SERVICE: Final = "outrider-proposer"


class TraceLevel(Enum):
    """How much is told of each request: nothing, sums, or every round beside them."""

    NONE = "none"
    SUMMARY = "summary"
    DETAILED = "detailed"


# Spans. The gateway's own is named by convention `{operation} {model}`; below it the verifier has
# one a request, and below that each proposer has one a sequence that it drafted for.
REQUEST_SPAN: Final = "speculation.request"
PROPOSE_SPAN: Final = "speculation.propose"

# What was asked for.
OPERATION: Final = "gen_ai.operation.name"
# Its value is SCOPE: who answers.
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
TOP_K: Final = "gen_ai.request.top_k"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
SEED: Final = "gen_ai.request.seed"
FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
STREAM: Final = "gen_ai.request.stream"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
# A label that a client gives its requests with the header `x-outrider-workload`.
WORKLOAD: Final = "speculation.workload"
WORKLOAD_HEADER: Final = "x-outrider-workload"
# The answer's header that names the request's trace: 32 hexadecimal digits.
TRACE_ID_HEADER: Final = "x-trace-id"

# What became of it. An error has `error.type`, and the span's status.
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
QUEUE_NS: Final = "speculation.queue_ns"
FIRST_TOKEN_NS: Final = "speculation.first_token_ns"

# The request's sums.
RULE: Final = "speculation.rule"
CEILING: Final = "speculation.num_speculative_tokens"
VERIFIER: Final = "speculation.verifier"
# All rounds, also those without drafts.
ROUNDS: Final = "speculation.num_rounds"
STEPS: Final = "speculation.num_spec_steps"
DRAFT_TOKENS: Final = "speculation.num_draft_tokens"
ACCEPTED_TOKENS: Final = "speculation.num_accepted_draft_tokens"
HISTOGRAM: Final = "speculation.acceptance_histogram"
ACCEPTED_PER_POSITION: Final = "speculation.accepted_per_position"
PROPOSED_PER_POSITION: Final = "speculation.proposed_per_position"
LOOKAHEAD_HITS: Final = "speculation.lookahead_hits"
DRAFT_WAIT_NS: Final = "speculation.draft_wait_ns"
VERIFY_NS: Final = "speculation.verify_ns"
# Rounds without drafts by reason: two arrays of the same length.
OFF_REASONS: Final = "speculation.off_reasons"
OFF_ROUNDS: Final = "speculation.off_rounds"
# The share of requests that are traced; sums over spans are sums over so many of them.
SAMPLING_RATIO: Final = "speculation.sampling_ratio"

# One event for each proposer whose drafts were verified: PROPOSER, METHOD, STEPS, DRAFT_TOKENS,
# ACCEPTED_TOKENS, HISTOGRAM, ACCEPTED_PER_POSITION, PROPOSED_PER_POSITION, LOOKAHEAD_HITS.
PROPOSER_EVENT: Final = "speculation.proposer"
PROPOSER: Final = "speculation.proposer.name"
METHOD: Final = "speculation.proposer.method"

# One event for each round, at TraceLevel.DETAILED: these, and PROPOSER, RULE, DRAFT_WAIT_NS and
# VERIFY_NS.
ROUND_EVENT: Final = "speculation.round"
ROUND_BASE: Final = "speculation.round.base"
ROUND_OFFERED: Final = "speculation.round.offered"
ROUND_VERIFIED: Final = "speculation.round.verified"
ROUND_ACCEPTED: Final = "speculation.round.accepted"
ROUND_EMITTED: Final = "speculation.round.emitted"
ROUND_LOOKAHEAD_HIT: Final = "speculation.round.lookahead_hit"
ROUND_OFF_REASON: Final = "speculation.round.off_reason"
# Only with --trace-content: the text of each draft token verified, and of each token emitted.
ROUND_DRAFT_TEXTS: Final = "speculation.round.draft_texts"
ROUND_EMITTED_TEXTS: Final = "speculation.round.emitted_texts"

# A proposer's span: STEPS counts the steps that wanted drafts, DRAFT_TOKENS the tokens offered.
PROPOSE_BLOCKS: Final = "speculation.propose.blocks"
PROPOSE_DRAFT_NS: Final = "speculation.propose.draft_ns"

# Metrics: cumulative sums and histograms of a verifier, by PROPOSER where it makes sense.
METRIC_STEPS: Final = "speculation.spec_steps"
METRIC_DRAFT_TOKENS: Final = "speculation.draft_tokens"
METRIC_ACCEPTED_TOKENS: Final = "speculation.accepted_tokens"
METRIC_PROMPT_TOKENS: Final = "speculation.prompt_tokens"
METRIC_GENERATION_TOKENS: Final = "speculation.generation_tokens"
METRIC_OFF_ROUNDS: Final = "speculation.off_rounds"
METRIC_LOOKAHEAD_HITS: Final = "speculation.lookahead_hits"
METRIC_LOOKAHEAD_MISSES: Final = "speculation.lookahead_misses"
METRIC_LOOKAHEAD_NONE: Final = "speculation.lookahead_none"
METRIC_RUNNING: Final = "speculation.requests.running"
METRIC_WAITING: Final = "speculation.requests.waiting"
