"""What a verifier did between two of its answers to GetInfo: one point of the live charts.

Knows the totals that verifiers keep; does not know clocks, transports or the page. Sums of samples
are the verifier's own sums: what two samples say adds up to what one over both times would say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

_TIMES: Final = ("draft_wait", "plain", "verify", "prefill")


def sample(before: pb.GetInfoResponse, now: pb.GetInfoResponse, seconds: float) -> dict[str, Any]:
    """What was added to the totals in `seconds` between `before` and `now`.

    A verifier that was started again counts from zero. Arrays are by accepted count (`histogram`)
    and by draft position; they end with their last count above 0, and are absent where no drafts
    were verified. `times` has, for each kind of step, how many there were and their seconds.
    """
    if before.instance_id != now.instance_id:
        before = pb.GetInfoResponse()
    was, stats = before.acceptance, now.acceptance
    steps = _grown(was.num_spec_steps, stats.num_spec_steps)
    result: dict[str, Any] = {
        "dt": round(seconds, 3),
        "generation_tokens": _grown(before.generation_tokens_total, now.generation_tokens_total),
        "prompt_tokens": _grown(before.prompt_tokens_total, now.prompt_tokens_total),
        "steps": steps,
        "drafted": _grown(was.num_draft_tokens, stats.num_draft_tokens),
        "accepted": _grown(was.num_accepted_draft_tokens, stats.num_accepted_draft_tokens),
        "proposers": _proposers(before, now),
        "times": {kind: _observed(before, now, kind) for kind in _TIMES},
        "lookahead": [
            _grown(_sum(before, "lookahead_hits"), _sum(now, "lookahead_hits")),
            _grown(_sum(before, "lookahead_misses"), _sum(now, "lookahead_misses")),
        ],
        "off": _added(before.off_rounds, now.off_rounds),
        "running": now.running_requests,
        "waiting": now.waiting_requests,
    }
    if steps:
        result["histogram"] = _each(was.acceptance_histogram, stats.acceptance_histogram)
        result["accepted_per_position"] = _each(
            was.accepted_per_position, stats.accepted_per_position
        )
        result["proposed_per_position"] = _each(
            was.proposed_per_position, stats.proposed_per_position
        )
    return result


def _grown(before: int, now: int) -> int:
    """What a counter grew by; one that fell began again."""
    return now - before if now >= before else now


def _each(before: Sequence[int], now: Sequence[int]) -> list[int]:
    grown = [_grown(a, b) for a, b in zip_longest(before, now, fillvalue=0)]
    while grown and not grown[-1]:
        grown.pop()
    return grown


def _added(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    grown = {key: _grown(before.get(key, 0), count) for key, count in now.items()}
    return {key: count for key, count in sorted(grown.items()) if count}


def _proposers(before: pb.GetInfoResponse, now: pb.GetInfoResponse) -> dict[str, list[int]]:
    """Steps, drafted and accepted tokens of each whose drafts were verified."""
    was = {p.name: p for p in before.acceptance_by_proposer}
    result: dict[str, list[int]] = {}
    for proposer in now.acceptance_by_proposer:
        old = was.get(proposer.name, pb.ProposerAcceptance())
        sums = [
            _grown(old.num_spec_steps, proposer.num_spec_steps),
            _grown(old.num_draft_tokens, proposer.num_draft_tokens),
            _grown(old.num_accepted_draft_tokens, proposer.num_accepted_draft_tokens),
        ]
        if sums[0]:
            result[proposer.name] = sums
    return result


def _observed(before: pb.GetInfoResponse, now: pb.GetInfoResponse, kind: str) -> list[float]:
    """How many steps of a kind there were, and their seconds."""
    was: types_pb2.Histogram = getattr(before.step_times, kind)
    is_: types_pb2.Histogram = getattr(now.step_times, kind)
    count, earlier = sum(is_.counts), sum(was.counts)
    if count < earlier:
        return [count, round(is_.sum, 6)]
    return [count - earlier, round(max(is_.sum - was.sum, 0.0), 6)]


def _sum(info: pb.GetInfoResponse, name: str) -> int:
    return sum(getattr(proposer, name) for proposer in info.proposers)
