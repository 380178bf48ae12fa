"""How many drafts of which block each sequence gets verified in a step; zero is an answer.

Knows measured step times, acceptance estimates and counts; never a draft token's id, so that under
every rejection rule the output stays the target's own (DESIGN: selection must not peek). It runs
on the engine's thread between two forwards. `docs/controller.md` explains the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.draft_schedule import DraftSchedule
from verifier_service import choice
from verifier_service.admission import Admission, admit
from verifier_service.candidates import Candidate, Decision
from verifier_service.costs import CostTable
from verifier_service.estimates import AcceptanceEstimates
from verifier_service.messages import DraftBlock
from verifier_service.offers import Offers, gather
from verifier_service.probing import ProbeBudget, choose_probes
from verifier_service.refusals import (
    NO_CEILING,
    DoesNotPay,
    Refuse,
    measuring,
    scheduled_off,
    step_full,
    without_offer,
)

__all__ = ["Candidate", "Controller", "Decision"]

# Relative gain over plain below which speculation is given up, and above which it is taken up.
_LEAVE, _ENTER = 0.005, 0.02
# Weight of one step in the average gain and wait, while on and (asking seldom) while off.
_RATE_ON, _RATE_OFF = 1.0 / 48.0, 1.0 / 6.0
_WAIT_RATE_ON, _WAIT_RATE_OFF = 0.1, 0.5
# Asking counts as free where its wait is below this share of a step.
_FREE_WAIT = 0.002
# A plain step is taken when none was measured for so many steps and little is lost by it.
_PLAIN_AGE, _PLAIN_MAX_GAIN = 256, 0.25
# It is also taken when the curve has moved by this share since, on other counts' evidence.
_PLAIN_DRIFT = 0.1


class Controller:
    """Admits drafts so that emitted tokens per measured second are most; `choose` picks blocks.

    Call order for each step: `wanted` (before asking), `plan`, the forward, `observe_step`,
    `observe_round` for each sequence with drafts, `observe_wait`. Not thread-safe.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        costs: CostTable,
        *,
        adaptive: bool = True,
        choose: choice.ChooseBlock = choice.best_block,
        schedule: DraftSchedule | None = None,
    ) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(
                f"num_speculative_tokens is {num_speculative_tokens}; allowed: 0 or more"
            )
        self.costs = costs
        self.estimates = AcceptanceEstimates(max(num_speculative_tokens, 1))
        self._ceiling = num_speculative_tokens
        self._schedule = schedule
        # Sequences that ran when the last step was planned.
        self._running = 1
        self._adaptive = adaptive
        self._choose = choose
        self._budget = ProbeBudget()
        self._on = True
        # Decayed averages: gain of the plans made, seconds waited, deepest draft admitted.
        self._gain = 2.0 * _ENTER
        self._wait = -1.0
        self._depth = float(num_speculative_tokens)
        self._step = 0
        # Seconds of a step without and with one draft, for one step and number of sequences.
        self._priced = (-1, 0)
        self._plain = self._one = 0.0
        self._verified_at: dict[int, int] = {}
        # Each probe of the last plan: seconds spent on it, and seconds that a token is worth.
        self._probing: dict[int, tuple[float, float]] = {}
        self._last: Admission | None = None
        self._refusal = ""

    def wanted(self, num_sequences: int, limit: int) -> int:
        """How many drafts to ask proposers for now, for a sequence that may verify `limit`.

        `num_sequences` run now. 0 while waiting for drafts costs more than they save, but for
        probes.
        """
        most = min(limit, self._ceiling_of(num_sequences))
        if most <= 0:
            return 0
        if not self._adaptive or self._wait <= 0.0:
            return most
        rows = max(num_sequences, 1)
        # Asked for each sequence of a step: one look at the table serves them all.
        if self._priced != (self._step, rows):
            self._priced = (self._step, rows)
            self._plain, self._one = self.costs.curve(rows, 2, rows).tolist()
        if self._wait <= _FREE_WAIT * self._plain:
            return most
        if self._on:
            return min(most, math.ceil(self._depth) + 2)
        return most if self._budget.affords(self._wait + self._one - self._plain) else 0

    def plan(
        self,
        candidates: Sequence[Candidate],
        *,
        other_query_tokens: int = 0,
        total_context: int = 0,
        draft_budget: int | None = None,
        running: int = 0,
    ) -> list[Decision]:
        """One decision for each candidate, in order.

        `other_query_tokens` are rows of the step that are no candidate's (prefill chunks);
        `total_context` is the sum of context lengths; `draft_budget` the most drafts in all;
        `running` sequences run in all, those in prefill too (0: the candidates alone).
        """
        self._step += 1
        self._running = running or len(candidates)
        ceiling = self._ceiling_of(self._running)
        self._probing.clear()
        self.estimates.begin_step()
        most = ceiling * len(candidates)
        if draft_budget is not None:
            most = max(min(most, draft_budget), 0)
        offers = gather(candidates, ceiling, self.estimates, self._choose)
        if not self._adaptive:
            counts: list[int] = []
            for length in offers.lengths:
                counts.append(min(length, most - sum(counts)))
            return self._decisions(candidates, offers, counts, None, plain_step=False)
        if not candidates:
            return []
        asked = any(candidate.ask > 0 for candidate in candidates)
        best = admit(
            offers.survivals,
            self.costs,
            sequences=len(candidates),
            others=other_query_tokens,
            context=total_context,
            waited=max(self._wait, 0.0) if asked else 0.0,
            most=most,
        )
        if asked:
            self._follow(best)
        self._last = best
        counts = best.counts
        plain_step = other_query_tokens == 0 and self._plain_due(best, len(candidates))
        if plain_step or best.gain < (_LEAVE if self._on else _ENTER):
            counts = [0] * len(offers)
        if not plain_step:
            self._probe(candidates, offers, counts, best, most)
        self._depth = max([0.98 * self._depth, *map(float, counts)])
        return self._decisions(candidates, offers, counts, best, plain_step=plain_step)

    def observe_wait(self, seconds: float) -> None:
        """Take in what asking for drafts, and waiting for them, added to this step."""
        if seconds < 0.0:
            raise ValueError(f"draft wait is {seconds} seconds; allowed: 0 or more")
        if self._wait < 0.0:
            self._wait = seconds
        # One missed deadline is no habit yet.
        bounded = min(seconds, 4.0 * self._wait + 1e-3)
        rate = _WAIT_RATE_ON if self._on else _WAIT_RATE_OFF
        self._wait += rate * (bounded - self._wait)
        if not self._on:
            self._budget.spend(seconds)

    def observe_step(
        self,
        sequences: int,
        query_tokens: int,
        context_tokens: int,
        seconds: float,
        prefill_tokens: int = 0,
    ) -> None:
        """Take in what a step cost. Steps with `prefill_tokens` do not refresh the table."""
        if sequences < 1 or seconds <= 0.0:
            return
        if prefill_tokens == 0:
            self.costs.observe(query_tokens, sequences, context_tokens, seconds)
        self._budget.earn(min(seconds, 2.0 * self.costs.seconds(query_tokens, sequences)))

    def observe_round(
        self, sequence_id: int, block: DraftBlock, *, greedy: bool, drafted: int, accepted: int
    ) -> None:
        """Take in a verification: `accepted` by the rule, before any cut by a stop condition."""
        if drafted <= 0:
            return
        self.estimates.observe(
            sequence_id, block, greedy=greedy, drafted=drafted, accepted=accepted
        )
        if sequence_id in self._probing:
            self._budget.record(accepted, *self._probing[sequence_id])

    def observe_shadow(
        self, sequence_id: int, block: DraftBlock, *, greedy: bool, compared: int, matched: int
    ) -> None:
        """Take in a block that was not verified: the first `matched` of `compared` ids came true.

        Free evidence. Right for greedy decoding and for one-hot or coupled drafts; a sampled draft
        with sparse q may be accepted without being what the target would draw: leave it out.
        """
        self.estimates.observe(
            sequence_id, block, greedy=greedy, drafted=compared, accepted=matched
        )

    def close(self, sequence_id: int) -> None:
        """Forget a finished sequence. Unknown ids are ignored."""
        self.estimates.forget(sequence_id)
        self._verified_at.pop(sequence_id, None)

    def state(self) -> str:
        """`on`, or `off: ` and why."""
        closed = self._closed()
        if closed is not None:
            return f"off: {closed.off_reason}"
        if self._on or not self._adaptive:
            return "on"
        if self._last is not None and self._wait > _FREE_WAIT * self._last.plain_seconds:
            return (
                f"off: asking for drafts does not pay: {self._wait * 1e3:.1f} ms a step, with it "
                f"speculation is {self._gain:+.1%} against plain decoding"
            )
        return f"off: {self._refusal or 'no draft offered'}"

    def explain(self) -> dict[str, object]:
        """The numbers behind the last plan, for logs and metrics; times in milliseconds."""
        last = self._last
        return {
            "state": self.state(),
            "plain_step_ms": round(last.plain_seconds * 1e3, 3) if last else 0.0,
            "gain": round(last.gain, 4) if last else 0.0,
            "average_gain": round(self._gain, 4),
            "tokens_per_second": round(last.rate, 2) if last else 0.0,
            "probes": len(self._probing),
            "probe_share": round(self._budget.share, 4),
            "draft_wait_ms": round(max(self._wait, 0.0) * 1e3, 3),
            "acceptance": self.estimates.rates(),
        }

    def _follow(self, best: Admission) -> None:
        """Average the gain of asking, and switch across two thresholds."""
        rate = _RATE_ON if self._on else _RATE_OFF
        self._gain += rate * (best.net_gain - self._gain)
        if self._on and self._gain < _LEAVE:
            self._on = False
        elif not self._on and self._gain > _ENTER:
            self._on = True

    def _plain_due(self, best: Admission, sequences: int) -> bool:
        """Whether to measure a plain step again: all gains are told from what it costs."""
        if not any(best.counts):
            return False
        if self.costs.drift(sequences) > _PLAIN_DRIFT:
            return True
        return best.gain < _PLAIN_MAX_GAIN and self.costs.age(sequences) > _PLAIN_AGE

    def _probe(
        self,
        candidates: Sequence[Candidate],
        offers: Offers,
        counts: list[int],
        best: Admission,
        most: int,
    ) -> None:
        """Add drafts that do not seem to pay to `counts`, as far as the probe budget goes."""
        if self._budget.saved <= 0.0 or all(counts):
            return
        since = self._verified_at
        ids = [candidates[owner].sequence_id for owner in offers.owners]
        probes = choose_probes(
            self._budget,
            best.step[: most + 1].tolist(),
            1.0 / best.rate,
            counts,
            offers.lengths,
            offers.survivals[:, 0].tolist(),
            [since.get(sequence_id, 0) for sequence_id in ids],
        )
        for row, (drafts, cost) in probes.items():
            counts[row] = drafts
            self._probing[ids[row]] = (cost, 1.0 / best.rate)

    def _decisions(
        self,
        candidates: Sequence[Candidate],
        offers: Offers,
        counts: list[int],
        best: Admission | None,
        *,
        plain_step: bool,
    ) -> list[Decision]:
        result: list[Decision | None] = [None] * len(candidates)
        refuse: Refuse = step_full
        if plain_step:
            refuse = measuring
        elif best is not None and len(best.step) > 1:
            refuse = DoesNotPay(best, sum(counts))
        chances = offers.survivals[:, 0].tolist()
        for row, (owner, count) in enumerate(zip(offers.owners, counts, strict=True)):
            if count:
                self._verified_at[candidates[owner].sequence_id] = self._step
                result[owner] = Decision(offers.blocks[row], count)
                continue
            refused = result[owner] = refuse(chances[row])
            if not plain_step:
                self._refusal = refused.off_reason
        closed = self._closed()
        return [
            decision or without_offer(candidate, closed)
            for decision, candidate in zip(result, candidates, strict=True)
        ]

    def _closed(self) -> Decision | None:
        """Why the configuration allows no draft now; None where it does."""
        if self._ceiling == 0:
            return NO_CEILING
        if self._ceiling_of(self._running) == 0:
            return scheduled_off(self._running)
        return None

    def _ceiling_of(self, running: int) -> int:
        if self._schedule is None:
            return self._ceiling
        return min(self._schedule.at(running), self._ceiling)
