"""The result as one JSON document.

Knows the names under which users of `vllm bench serve` find the figures, and ours beside them;
times are milliseconds there. Everything that tables and pages show comes from this document.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from outrider import __version__
from outrider.bench.arms import ArmRun, Load
from outrider.bench.drafts import DraftCounts
from outrider.bench.figures import ArmFigures, Comparison, arm_figures, compare
from outrider.bench.notes import point_notes
from outrider.bench.session import Outcome, Point

FORMAT: Final = 1


def outcome_points(
    outcome: Outcome,
    *,
    percentiles: Sequence[float],
    goodput: Mapping[str, float],
    repeated: bool,
    seed: int,
    detailed: bool = False,
) -> list[dict[str, Any]]:
    """One object for each speculative arm of each point, its baseline and speed-up within."""
    return [
        entry
        for point in outcome.points
        for entry in point_objects(
            point,
            percentiles=percentiles,
            goodput=goodput,
            repeated=repeated,
            seed=seed,
            detailed=detailed,
        )
    ]


def point_objects(
    point: Point,
    *,
    percentiles: Sequence[float],
    goodput: Mapping[str, float],
    repeated: bool,
    seed: int,
    detailed: bool = False,
) -> list[dict[str, Any]]:
    """The objects of one point; times in `goodput` are seconds."""
    baseline = point.baseline
    notes = point_notes(point, repeated)
    plain = None
    if baseline is not None:
        plain = _arm_object(baseline, arm_figures(baseline, percentiles, goodput), detailed)
    result = []
    for run in point.speculative:
        speedup = None if baseline is None else compare(run, baseline, seed=seed)
        result.append(
            {
                **load_object(point.load),
                "arm": run.arm.name,
                "num_speculative_tokens": run.arm.k,
                **_arm_object(run, arm_figures(run, percentiles, goodput), detailed),
                "baseline": plain,
                "speedup": None if speedup is None else _comparison_object(speedup),
                "notes": notes,
            }
        )
    return result


def points_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The points of a result: a list in a sweep's, the document itself in any other."""
    return list(document["points"]) if "points" in document else [document]


def environment_object(kind: str, command: Sequence[str]) -> dict[str, Any]:
    """Where and with what a result of `outrider bench KIND` was made."""
    return {
        "format": FORMAT,
        "kind": kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": list(command),
        "outrider": __version__,
        "client": {
            "platform": platform.platform(terse=True),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
    }


def servers_object(outcome: Outcome) -> list[dict[str, Any]]:
    """The measured servers."""
    return [
        {"url": url, "kind": p.kind.value, "version": p.version, "model": p.model}
        for url, p in outcome.profiles.items()
    ]


def load_object(load: Load) -> dict[str, Any]:
    """The load; an infinite rate is the string `inf`, as JSON has no infinity."""
    infinite = math.isinf(load.request_rate)
    ramp = load.ramp
    rise: dict[str, Any] = {}
    if ramp is not None:
        rise = {
            "ramp_up_strategy": ramp.strategy.value,
            "ramp_up_start_rps": ramp.start,
            "ramp_up_end_rps": ramp.end,
        }
    return {
        "request_rate": "inf" if infinite else load.request_rate,
        **rise,
        "burstiness": "inf" if math.isinf(load.burstiness) else load.burstiness,
        "max_concurrency": load.max_concurrency,
        "num_runs": load.runs,
    }


def _arm_object(run: ArmRun, figures: ArmFigures, detailed: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "url": run.arm.server.url,
        "duration": figures.duration,
        "blocks": len(run.blocks),
        "completed": figures.completed,
        "failed": figures.failed,
        "errors": [{"error": text, "count": count} for text, count in figures.errors],
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_throughput,
        "max_output_tokens_per_s": figures.peak_output_throughput,
        "max_concurrent_requests": figures.peak_requests,
        "output_tokens_counted_by": figures.counted_by.value,
    }
    for name, summary in figures.times.items():
        result[f"mean_{name}_ms"] = summary.mean * 1000
        result[f"median_{name}_ms"] = summary.median * 1000
        result[f"std_{name}_ms"] = summary.std * 1000
        for percent, value in summary.percentiles:
            result[f"p{percent:g}_{name}_ms"] = value * 1000
    if figures.drafts is not None and not run.arm.is_baseline:
        result.update(_drafts_object(figures.drafts))
        result["spec_decode_source"] = figures.drafts_from.value
    if detailed:
        result["requests"] = _requests(run)
    return result


def _drafts_object(drafts: DraftCounts) -> dict[str, Any]:
    return {
        # A percentage, as there.
        "spec_decode_acceptance_rate": 100 * drafts.draft_acceptance_rate,
        "spec_decode_acceptance_length": drafts.mean_acceptance_length,
        "spec_decode_num_drafts": drafts.steps,
        "spec_decode_draft_tokens": drafts.drafted,
        "spec_decode_accepted_tokens": drafts.accepted,
        "spec_decode_per_position_acceptance_rates": drafts.rates_of_all_steps(),
        "spec_decode_per_position_rates_of_reached": drafts.rates_of_reached(),
    }


def _comparison_object(comparison: Comparison) -> dict[str, Any]:
    throughput = comparison.throughput
    return {
        "output_throughput": None if throughput is None else throughput.to_json(),
        **{name: ratio.to_json() for name, ratio in comparison.times.items()},
        "same_answers": comparison.same_answers,
        "compared_answers": comparison.compared,
    }


def _requests(run: ArmRun) -> list[dict[str, Any]]:
    return [
        {
            "sample": record.sample,
            "sent": record.sent - block.began,
            "block": number,
            "input_len": record.prompt_tokens,
            "output_len": record.output_tokens,
            "ttft": record.ttft,
            "e2el": record.e2el,
            "itl": record.itls(),
            "finish_reason": record.finish_reason,
            "text_digest": record.text_digest,
            "accepted": None if record.drafts is None else record.drafts.accepted,
            "drafted": None if record.drafts is None else record.drafts.drafted,
            "error": record.error,
        }
        for number, block in enumerate(run.blocks)
        for record in block.records
    ]
