"""What a reader must know of how a point was measured.

Knows what makes figures unsure; changes no figure.
"""

from __future__ import annotations

from typing import Final

from outrider.bench.probe import DraftSource, Kind
from outrider.bench.session import Point

# Share of one core above which this process may have kept answers waiting.
_BUSY: Final = 0.8


def point_notes(point: Point, repeated: bool) -> list[str]:
    """What a reader must know of how one point was measured."""
    notes = []
    for run in point.runs:
        ways = {record.counted_by for record in run.records if record.ok}
        notes += [
            f"{run.arm.name}: tokens are counted by {way.value}."
            for way in sorted(ways)
            if not way.per_token
        ]
        failed = [record.error for record in run.records if not record.ok]
        if failed:
            notes.append(
                f"{run.arm.name}: {len(failed)} of {len(run.records)} requests failed and are in "
                f"no figure; the first: {failed[0]}."
            )
        told = [record.drafts for record in run.records if record.drafts is not None]
        if told and not run.arm.is_baseline and not any(drafts.steps for drafts in told):
            notes.append(
                f"{run.arm.name}: the server drafted nothing, in none of {len(told)} answers; its "
                "log says why speculation is off."
            )
        elif told and not run.arm.is_baseline and not any(drafts.accepted for drafts in told):
            notes.append(
                f"{run.arm.name}: no draft token was accepted: where it is faster than the "
                "baseline, the machine was."
            )
    baseline = point.baseline
    if baseline is not None and any(r.drafts and r.drafts.drafted for r in baseline.records):
        notes.append("The baseline was not plain: its answers report draft tokens.")
    if any(r.arm.profile.drafts is DraftSource.COUNTERS for r in point.speculative):
        notes.append(f"Acceptance comes from {DraftSource.COUNTERS.value}.")
    again = repeated or point.load.runs > 1
    if again:
        notes.append(
            "Prompts were asked more than once. A proposer that learns from earlier answers "
            "(suffix) accepts more of them than of new traffic."
        )
    elif len(point.speculative) > 1:
        notes.append(
            "Every K was asked the same prompts in turn. A proposer that learns from earlier "
            "answers (suffix) accepts more of them than of new traffic."
        )
    if point.client_cpu > _BUSY:
        notes.append(
            f"This command used {point.client_cpu:.0%} of a core: it may have been the bottleneck."
        )
    if again and any(r.arm.profile.kind is Kind.OTHER for r in point.runs):
        notes.append(
            "The server takes no cache_salt: prompts that were asked before may be found in its "
            "prefix cache."
        )
    return notes
