"""`LLM.get_metrics`: the sums since start as vLLM's metric objects, under its names.

Knows names and labels; the sums are the verifier's own, counted as emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity; `labels` are `model_name` and `engine`."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A sum that only rises."""

    value: int


@dataclass(frozen=True, slots=True)
class Vector(Metric):
    """Sums that only rise, one for each position of a draft."""

    values: list[int]


def speculation_metrics(acceptance: Acceptance, model_name: str) -> list[Metric]:
    """vLLM's four counters of speculation and our own beside them; none where nothing may draft."""
    if not acceptance.num_spec_tokens:
        return []
    labels = {"model_name": model_name, "engine": "0"}
    return [
        Counter("vllm:spec_decode_num_drafts", labels, acceptance.num_spec_steps),
        Counter("vllm:spec_decode_num_draft_tokens", labels, acceptance.num_draft_tokens),
        Counter(
            "vllm:spec_decode_num_accepted_tokens", labels, acceptance.num_accepted_draft_tokens
        ),
        Vector(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            labels,
            list(acceptance.accepted_per_position),
        ),
        Vector(
            "outrider:spec_decode_num_draft_tokens_per_pos",
            labels,
            list(acceptance.proposed_per_position),
        ),
    ]


def token_metrics(prompt_tokens: int, generation_tokens: int, model_name: str) -> list[Metric]:
    """Tokens of prompts that were answered, and of their answers."""
    labels = {"model_name": model_name, "engine": "0"}
    return [
        Counter("vllm:prompt_tokens", labels, prompt_tokens),
        Counter("vllm:generation_tokens", labels, generation_tokens),
    ]
