"""Draft tokens and what became of them, as servers report it.

Knows vLLM's `metrics.speculative_decoding` object and its Prometheus counters; asks no server.
What the figures mean is outrider.acceptance's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length

_STEPS: Final = "vllm:spec_decode_num_drafts"
_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION: Final = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Sums over steps, i.e. verifications that carried at least one draft token.

    `accepted_per_position[j]` counts the steps that accepted the draft token at j;
    `proposed_per_position[j]` those that carried one there, empty where the server does not tell.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    proposed_per_position: tuple[int, ...] = ()

    def plus(self, other: DraftCounts) -> DraftCounts:
        """The sum; proposals per position stay known only where both know them."""
        known = all(not c.steps or c.proposed_per_position for c in (self, other))
        proposed = _add(self.proposed_per_position, other.proposed_per_position)
        return DraftCounts(
            steps=self.steps + other.steps,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            accepted_per_position=_add(self.accepted_per_position, other.accepted_per_position),
            proposed_per_position=proposed if known else (),
        )

    def since(self, before: DraftCounts) -> DraftCounts:
        """What was counted after `before`, an earlier reading of the same counters."""
        negative = tuple(-count for count in before.accepted_per_position)
        return DraftCounts(
            steps=self.steps - before.steps,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            accepted_per_position=_add(self.accepted_per_position, negative),
        )

    @property
    def mean_acceptance_length(self) -> float:
        return mean_acceptance_length(self.accepted, self.steps)

    @property
    def draft_acceptance_rate(self) -> float:
        return draft_acceptance_rate(self.accepted, self.drafted)

    def rates_of_all_steps(self) -> list[float]:
        """Share of all steps that accepted the draft token at each position, as vLLM counts."""
        return [count / self.steps if self.steps else 0.0 for count in self.accepted_per_position]

    def rates_of_reached(self) -> list[float] | None:
        """The same over the steps that carried a draft token there; None where not known."""
        if not self.steps or not self.proposed_per_position:
            return None
        pairs = zip_longest(self.accepted_per_position, self.proposed_per_position, fillvalue=0)
        return [a / p if p else 0.0 for a, p in pairs]


def total(parts: Iterable[DraftCounts]) -> DraftCounts:
    """The sum of several."""
    result = DraftCounts()
    for part in parts:
        result = result.plus(part)
    return result


def from_response(metrics: object) -> DraftCounts | None:
    """The counts in a response's `metrics` object; None where it holds none."""
    if not isinstance(metrics, Mapping):
        return None
    told = metrics.get("speculative_decoding")
    if not isinstance(told, Mapping):
        return None
    histogram = _counts(told.get("acceptance_histogram"))
    steps = told.get("num_spec_steps")
    drafted = told.get("num_draft_tokens")
    accepted = told.get("num_accepted_draft_tokens")
    if not (isinstance(steps, int) and isinstance(drafted, int) and isinstance(accepted, int)):
        return None
    per_step = _counts(told.get("per_step_drafted"))
    positions = range(max(len(histogram) - 1, max(per_step, default=0)))
    return DraftCounts(
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        accepted_per_position=tuple(sum(histogram[j + 1 :]) for j in positions),
        proposed_per_position=(
            tuple(sum(count > j for count in per_step) for j in positions) if per_step else ()
        ),
    )


def from_exposition(text: str, model: str) -> DraftCounts | None:
    """The counters of `model` in a Prometheus page, summed over engines; None: there are none.

    Raises ValueError where `text` is no such page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    per_position: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model_name", model) != model:
                continue
            name = sample.name.removesuffix("_total")
            if name == _PER_POSITION and sample.labels.get("position", "").isdigit():
                position = int(sample.labels["position"])
                per_position[position] = per_position.get(position, 0.0) + sample.value
            elif name in (_STEPS, _DRAFTED, _ACCEPTED):
                sums[name] = sums.get(name, 0.0) + sample.value
    if _STEPS not in sums:
        return None
    return DraftCounts(
        steps=int(sums[_STEPS]),
        drafted=int(sums.get(_DRAFTED, 0)),
        accepted=int(sums.get(_ACCEPTED, 0)),
        accepted_per_position=tuple(
            int(per_position.get(j, 0)) for j in range(max(per_position, default=-1) + 1)
        ),
    )


def _counts(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, int) and not isinstance(entry, bool)]


def _add(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))
