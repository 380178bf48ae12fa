"""A verifier's present state as the page shows it.

Knows the JSON object; what changed since is sample.py's.
"""

from __future__ import annotations

import math
from typing import Any

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier import Verifier
from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length

_RULES = {
    types_pb2.REJECTION_RULE_COUPLED: "coupled",
    types_pb2.REJECTION_RULE_STANDARD: "standard",
    types_pb2.REJECTION_RULE_BLOCK: "block",
}


def verifier_object(verifier: Verifier) -> dict[str, Any]:
    """`verifier` as it last answered; `info` is null for one that never has.

    One that is away keeps its last answer and runs nothing.
    """
    serves = not verifier.problem
    return {
        "address": verifier.address,
        "serves": serves,
        "problem": verifier.problem or None,
        "in_flight": verifier.in_flight,
        "info": None if verifier.info is None else _info(verifier.info, serves),
    }


def _info(info: pb.GetInfoResponse, serves: bool) -> dict[str, Any]:
    figures = info.speculation
    return {
        "model": info.model,
        "version": info.version,
        "engine": info.engine,
        "device": info.device,
        "dtype": info.dtype,
        "rule": _RULES.get(info.rejection_rule),
        "max_model_len": info.max_model_len,
        "num_speculative_tokens": info.num_speculative_tokens,
        "running": info.running_requests if serves else 0,
        "waiting": info.waiting_requests if serves else 0,
        "kv_blocks": {"total": info.kv_blocks_total, "free": info.kv_blocks_free},
        "preemptions": info.preemptions_total,
        "generation_tokens": info.generation_tokens_total,
        "speculation_state": info.speculation_state,
        "speculation": {
            "ceiling": figures.ceiling,
            "plain_step_ms": _number(figures.plain_step_ms),
            "gain": _number(figures.gain),
            "average_gain": _number(figures.average_gain),
            "draft_wait_ms": _number(figures.draft_wait_ms),
        },
        "step_cost_ms": {str(n): _number(ms) for n, ms in sorted(info.step_cost_ms.items())},
        "off_rounds": dict(sorted(info.off_rounds.items())),
        "acceptance": {
            **_sums(info.acceptance),
            "histogram": list(info.acceptance.acceptance_histogram),
            "accepted_per_position": list(info.acceptance.accepted_per_position),
            "proposed_per_position": list(info.acceptance.proposed_per_position),
        },
        "proposers": _proposers(info),
    }


def _proposers(info: pb.GetInfoResponse) -> list[dict[str, Any]]:
    """Attached ones, then those whose drafts were verified without being attached now."""
    sums = {p.name: p for p in info.acceptance_by_proposer}
    attached = [
        {
            "name": p.name,
            "method": p.method,
            "address": p.address,
            "state": p.state,
            "detail": p.detail,
            "draft_blocks": p.draft_blocks,
            "dropped": dict(sorted(p.dropped.items())),
            "lookahead_hits": p.lookahead_hits,
            "lookahead_misses": p.lookahead_misses,
            "acceptance": _sums(sums.get(p.name, pb.ProposerAcceptance())),
        }
        for p in info.proposers
    ]
    names = {p.name for p in info.proposers}
    others = [
        {
            "name": p.name,
            "method": None,
            "address": None,
            "state": None,
            "detail": "",
            "draft_blocks": None,
            "dropped": {},
            "lookahead_hits": 0,
            "lookahead_misses": 0,
            "acceptance": _sums(p),
        }
        for name, p in sums.items()
        if name not in names
    ]
    return attached + others


def _sums(stats: types_pb2.AcceptanceStats | pb.ProposerAcceptance) -> dict[str, Any]:
    accepted, drafted = stats.num_accepted_draft_tokens, stats.num_draft_tokens
    return {
        "num_spec_steps": stats.num_spec_steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": mean_acceptance_length(accepted, stats.num_spec_steps),
        "draft_acceptance_rate": draft_acceptance_rate(accepted, drafted),
    }


def _number(value: float) -> float | None:
    """JSON knows no infinities."""
    return round(value, 6) if math.isfinite(value) else None
