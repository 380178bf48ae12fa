"""Counts what a soak's requests came to, and keeps what failed with all that is needed to see why.

Knows outcomes; judges nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak_answers import Answer
from benchmarks.soak_draw import SoakRequest
from benchmarks.soak_replay import Replay, Verdict

# Failures kept in full; all are counted.
KEPT_FAILURES = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """Something the client did not cause. `request` and `answer` are whole, as JSON values."""

    what: str
    request: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "request": self.request, "answer": self.answer}


@dataclass(slots=True)
class Tally:
    """Sums of one soak. `asked`, `answered` and `left` count requests by kind."""

    requests: int = 0
    answered: int = 0
    refused: int = 0
    left: int = 0
    tokens: int = 0
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    answered_by_kind: Counter[str] = field(default_factory=Counter)
    by_place: Counter[str] = field(default_factory=Counter)
    replays: Counter[str] = field(default_factory=Counter)
    replayed_tokens: int = 0
    unequal: list[Replay] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    num_failures: int = 0
    slowest_seconds: float = 0.0

    def add(self, request: SoakRequest, answer: Answer, breaches: Sequence[str]) -> None:
        """One request's outcome; `breaches` is why it failed, empty where it did not."""
        self.requests += 1
        self.tokens += answer.tokens
        self.slowest_seconds = max(self.slowest_seconds, answer.seconds)
        self.by_place[request.place.value] += 1
        self.asked_by_kind.update(request.kinds)
        if breaches:
            self.fail("; ".join(breaches), request, answer)
            return
        if answer.left:
            self.left += 1
        elif request.refused is not None:
            self.refused += 1
            self.answered_by_kind.update(request.kinds)
        else:
            self.answered += 1
            self.answered_by_kind.update(request.kinds)

    def fail(
        self, what: str, request: SoakRequest | None = None, answer: Answer | None = None
    ) -> None:
        self.num_failures += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(
                Failure(
                    what,
                    None if request is None else request.to_json(),
                    None if answer is None else answer.to_json(),
                )
            )

    def add_replays(self, request: SoakRequest, answer: Answer, replays: Sequence[Replay]) -> None:
        """The comparison of one answer; a difference that rounding does not explain fails."""
        for replay in replays:
            self.replays[replay.verdict.value] += 1
            self.replayed_tokens += replay.tokens
            if replay.verdict is not Verdict.EQUAL:
                self.unequal.append(replay)
            if replay.verdict is Verdict.DIFFERENT:
                where = f"choice {replay.choice} at output {replay.position}"
                found = replay.detail or f"{replay.got} instead of {replay.expected}"
                gap = "" if replay.gap is None else f", scores {replay.gap:.3g} apart"
                self.fail(f"differs from its plain re-run: {where}: {found}{gap}", request, answer)

    def unanswered_kinds(self, kinds: Sequence[str]) -> list[str]:
        """Kinds of which not one request was answered: they were not tested."""
        return [kind for kind in kinds if not self.answered_by_kind[kind]]
