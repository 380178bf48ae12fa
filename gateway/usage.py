"""`usage` and `metrics` objects of a response.

Knows OpenAI's and vLLM's field names; what the figures mean is outrider.acceptance's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from google.protobuf.internal.containers import RepeatedScalarFieldContainer
from speculation.v1 import types_pb2

from gateway.generation import Choice
from gateway.settings import SpecDecodeMetrics
from outrider.acceptance import speculative_decoding_metrics

# Members of vLLM's `metrics` that belong to a switch of its own; null while that is off.
_TIMINGS = (
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
)


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Token counts over all choices; a prompt is counted once however many choices it has."""
    per_prompt = {c.call.prompt_index: c for c in reversed(choices)}.values()
    stats = merged_stats(c.acceptance for c in choices)
    prompt_tokens = sum(c.prompt_tokens for c in per_prompt)
    completion_tokens = sum(c.completion_tokens for c in choices)
    accepted = stats.num_accepted_draft_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in per_prompt)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": stats.num_draft_tokens - accepted,
        },
    }


def running_usage(choice: Choice) -> dict[str, Any]:
    """What one choice has cost so far (`continuous_usage_stats`)."""
    return {
        "prompt_tokens": choice.prompt_tokens,
        "completion_tokens": choice.completion_tokens,
        "total_tokens": choice.prompt_tokens + choice.completion_tokens,
    }


def metrics(choices: Sequence[Choice], level: SpecDecodeMetrics) -> dict[str, Any] | None:
    """vLLM's `metrics` object; None at level NONE.

    Several choices, of which vLLM tells nothing, are summed, and told one by one in `choices`.
    """
    if level is SpecDecodeMetrics.NONE:
        return None
    detailed = level is SpecDecodeMetrics.DETAILED
    figures: dict[str, Any] = {
        **dict.fromkeys(_TIMINGS),
        "speculative_decoding": speculative_decoding_metrics(
            merged_stats(c.acceptance for c in choices), detailed=detailed
        ),
    }
    if len(choices) > 1:
        figures["choices"] = [
            {
                "index": c.call.index,
                "speculative_decoding": speculative_decoding_metrics(
                    c.acceptance, detailed=detailed
                ),
            }
            for c in choices
        ]
    return figures


def without_nulls(value: Any) -> Any:
    """`value` with null members of its objects left out, as vLLM streams them."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def merged_stats(parts: Iterable[types_pb2.AcceptanceStats]) -> types_pb2.AcceptanceStats:
    """The sum of several; per-step lists follow each other in the order of the parts."""
    total = types_pb2.AcceptanceStats()
    for part in parts:
        total.num_spec_tokens = max(total.num_spec_tokens, part.num_spec_tokens)
        total.num_spec_steps += part.num_spec_steps
        total.num_draft_tokens += part.num_draft_tokens
        total.num_accepted_draft_tokens += part.num_accepted_draft_tokens
        _add(total.acceptance_histogram, part.acceptance_histogram)
        _add(total.accepted_per_position, part.accepted_per_position)
        _add(total.proposed_per_position, part.proposed_per_position)
        total.per_step_accepted.extend(part.per_step_accepted)
        total.per_step_drafted.extend(part.per_step_drafted)
    return total


def _add(total: RepeatedScalarFieldContainer[int], part: RepeatedScalarFieldContainer[int]) -> None:
    total[:] = [a + b for a, b in zip_longest(total, part, fillvalue=0)]
