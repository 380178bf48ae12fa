"""How many drafts of which block each sequence gets verified in a step; zero is an answer.

Knows measured step times, acceptance estimates and counts; never a draft token's id, so that under
every rejection rule the output stays the target's own (DESIGN: selection must not peek). It runs
on the engine's thread between two forwards. `docs/controller.md` explains the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from outrider.draft_schedule import DraftSchedule
from verifier_service import choice
from verifier_service.admission import Admission, admit
from verifier_service.candidates import Candidate, Decision
from verifier_service.costs import CostTable
from verifier_service.estimates import AcceptanceEstimates
from verifier_service.explanation import Explanation
from verifier_service.messages import PREDICTION, DraftBlock
from verifier_service.offers import Offers, gather
from verifier_service.plain_periods import PlainPeriods
from verifier_service.plain_steps import plain_due
from verifier_service.probes import Probes
from verifier_service.refusals import (
    NO_CEILING,
    PLAIN_PERIOD,
    DoesNotPay,
    Refuse,
    decide,
    held,
    measuring,
    scheduled_off,
    step_full,
)
from verifier_service.standstills import Standstills
from verifier_service.switch import OWING, Switch

__all__ = ["Candidate", "Controller", "Decision"]

# While speculation is off, or nobody looks at outcomes, one of so many steps asks behind its
# launch, for messages and answers cost time, too; of many sequences more of it, and one step tells
# as much as several of few do.
_ASK_EVERY, _SEQUENCES_A_STEP = 4, 8


class Controller(Standstills):
    """Admits drafts so that emitted tokens per measured second are most; `choose` picks blocks.

    Call order for each step: `begin`, `wanted` (before asking), `waits_for`, `observe_waited` where
    somebody was waited for, `plan`, the forward,
    `observe_step`, `observe_round` for each sequence with drafts, `observe_wait`, `observe_speed`.
    `plain_share` of the steps decode plainly, to measure what the others gain (None: as that gain
    allows). Where it `learns_later`, what takes time to learn waits for `learn`, which is called
    while the device works: the next plan goes without. Not thread-safe.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        costs: CostTable,
        *,
        adaptive: bool = True,
        choose: choice.ChooseBlock = choice.best_block,
        schedule: DraftSchedule | None = None,
        plain_share: float | None = 0.0,
    ) -> None:
        if num_speculative_tokens < 0:
            raise ValueError(
                f"num_speculative_tokens is {num_speculative_tokens}; allowed: 0 or more"
            )
        super().__init__(costs, adaptive=adaptive)
        self.estimates = AcceptanceEstimates(max(num_speculative_tokens, 1))
        self._ceiling = num_speculative_tokens
        self._schedule = schedule
        self._choose = choose
        self._probes = Probes()
        self._switch = Switch(num_speculative_tokens)
        # Without adapting nothing is given up, so nothing need be known.
        self._periods = PlainPeriods(plain_share if adaptive else plain_share or 0.0)
        # Whether asking costs nothing in this step, or is left out.
        self._free = self._silent = False
        self._turn = 0
        # Sequences that ran when the last step was planned.
        self._running = 1
        # Seconds for each admitted draft of the last plan, and what a token is worth beside plain.
        self._price = self._worth = 0.0
        # Seconds that the drafts of the last plan saved, as far as their rounds were told.
        self._saved = 0.0
        self._last: Admission | None = None
        self._refusal = ""
        self.learns_later = False
        self._lessons: list[Callable[[], None]] = []

    def begin(
        self,
        decoding: int,
        *,
        begun: bool = False,
        holding: bool = False,
        unused: int = 0,
        prepared: bool = True,
    ) -> None:
        """A step begins in which `decoding` sequences decode.

        Where it is `begun` already, proposers are asked behind its launch, which costs it nothing,
        and `unused` sequences have drafts that it does not verify; `holding`: it was not begun
        because there are drafts for it, or will be. Unless they are `prepared` for outcomes,
        proposers that share the device would take it from this step, to answer for one that is
        over: then nobody is asked who is not waited for.
        """
        self._turn += 1
        if self._turn >= max(_ASK_EVERY, decoding // _SEQUENCES_A_STEP):
            self._turn = 0
        seldom = not self._switch.on or self._looks.is_futile(unused, max(decoding, 1))
        unasked = not prepared or (seldom and self._turn > 0)
        self._silent = self._adaptive and begun and unasked
        self._free = holding or (begun and not self._silent)
        self._passing = self._free and prepared and not self._switch.on
        self._pauses.begin()
        self._decoding = decoding
        speculating = self._switch.on and self._closed() is None
        self._plain = self._periods.begin(decoding, self._switch.gain, speculating=speculating)

    @property
    def may_ask(self) -> bool:
        """Whether drafts may be asked for behind this step, as far as the configuration goes."""
        return self._closed() is None and not self._plain

    def observe_speed(self, sequences: int, tokens: int, seconds: float, *, drafted: bool) -> None:
        """Take in a step without prefill that emitted `tokens` of `sequences`.

        `seconds` since the step before it ended: all that there is to it. `drafted`: drafts were
        verified in it.
        """
        self._periods.observe(sequences, tokens, seconds, drafted=drafted)

    def wanted(self, num_sequences: int, limit: int) -> int:
        """How many drafts to ask for now for one of so many, if it may verify `limit`."""
        return min(limit, self.most_wanted(num_sequences)) if limit > 0 else 0

    def most_wanted(self, num_sequences: int) -> int:
        """How many drafts to ask for at most, for any of the `num_sequences` that run now.

        0 while waiting for drafts costs more than they save, but for probes.
        """
        most = self._ceiling_of(num_sequences)
        if most <= 0 or self._plain or self._silent:
            return 0
        switch = self._switch
        rows = max(num_sequences, 1)
        if not self._adaptive or self._free or switch.wait <= 0.0:
            return most
        plain, one = self.costs.curve(rows, 2, rows).tolist()
        if switch.is_free(plain):
            return most
        if switch.on:
            return min(most, switch.asks)
        return most if self._probes.budget.affords(switch.wait + one - plain) else 0

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
        self._running = running or len(candidates)
        ceiling = self._ceiling_of(self._running)
        self._probes.begin_step()
        self.estimates.begin_step()
        most = ceiling * len(candidates)
        if draft_budget is not None:
            most = max(min(most, draft_budget), 0)
        offers = gather(candidates, ceiling, self.estimates, self._choose)
        if not self._adaptive:
            counts = offers.first(0 if self._plain else most)
            return self._decisions(candidates, offers, counts, None, plain_step=False)
        if not candidates:
            return []
        switch = self._switch
        asked = any(candidate.ask > 0 for candidate in candidates)
        best = admit(
            offers.survivals,
            self.costs,
            sequences=len(candidates),
            others=other_query_tokens,
            context=total_context,
            waited=max(switch.wait, 0.0) if asked else 0.0,
            most=most,
        )
        if asked:
            switch.follow(best.net_gain)
        self._last = best
        counts = best.counts
        due = other_query_tokens == 0 and plain_due(best, self.costs, len(candidates))
        plain_step = self._plain or due
        least = OWING if self._probes.budget.owes_much else switch.threshold
        if plain_step or best.gain < least:
            counts = [0] * len(offers)
        self._saved = 0.0
        self._price = best.seconds_each
        self._worth = best.plain_seconds / len(candidates)
        if not plain_step:
            self._probes.add(candidates, offers, counts, best, most)
        switch.admitted(max(counts, default=0))
        return self._decisions(candidates, offers, counts, best, plain_step=plain_step)

    def observe_wait(self, seconds: float) -> None:
        """Take in what asking for drafts, and waiting for them, added to this step."""
        self._switch.observe_wait(seconds)
        if self._adaptive and self._last is not None:
            self._switch.settle(self._saved, self._last.plain_seconds)
        if not self._switch.on:
            self._probes.budget.spend(seconds)

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
        self._pauses.passed(seconds)
        if prefill_tokens == 0:
            self._take(
                partial(self.costs.observe, query_tokens, sequences, context_tokens, seconds)
            )
        self._probes.budget.earn(min(seconds, 2.0 * self.costs.seconds(query_tokens, sequences)))

    def observe_round(
        self, sequence_id: int, block: DraftBlock, *, greedy: bool, drafted: int, accepted: int
    ) -> None:
        """Take in a verification: `accepted` by the rule, before any cut by a stop condition."""
        if drafted <= 0:
            return
        self._compare(sequence_id, block, greedy, drafted, accepted)
        saved = accepted * self._worth - drafted * self._price
        if block.proposer != PREDICTION:
            tokens = saved / self._worth if self._worth > 0.0 else float(accepted)
            self._pauses.verified(accepted, tokens, waited=not block.lookahead_hit)
        self._saved += saved
        probed = self._probes.observe(sequence_id, accepted)
        if not probed and self._adaptive:
            self._probes.budget.owe(drafted * self._price - accepted * self._worth)

    def observe_shadow(
        self, sequence_id: int, block: DraftBlock, *, greedy: bool, compared: int, matched: int
    ) -> None:
        """Take in a block that was not verified: the first `matched` of `compared` ids came true.

        Free evidence. Right for greedy decoding and for one-hot or coupled drafts; a sampled draft
        with sparse q may be accepted without being what the target would draw: leave it out.
        """
        self._compare(sequence_id, block, greedy, compared, matched)

    def close(self, sequence_id: int) -> None:
        """Forget a finished sequence. Unknown ids are ignored."""
        self._take(partial(self.estimates.forget, sequence_id))
        self._probes.forget(sequence_id)

    def learn(self) -> None:
        """Take in what waits."""
        lessons, self._lessons = self._lessons, []
        for lesson in lessons:
            lesson()

    def state(self) -> str:
        """`on`, or `off: ` and why."""
        closed = self._closed()
        if closed is not None:
            return f"off: {closed.off_reason}"
        switch = self._switch
        if self._periods.loses:
            return f"off: measured: drafts make decoding {self._periods.loses:.1%} slower"
        if switch.on or not self._adaptive:
            return "on"
        if self._last is not None and not switch.is_free(self._last.plain_seconds):
            return (
                f"off: asking for drafts does not pay: {switch.wait * 1e3:.1f} ms a step, with it "
                f"speculation is {switch.gain:+.1%} against plain decoding"
            )
        return f"off: {self._refusal or 'no draft offered'}"

    def explain(self) -> Explanation:
        """The numbers behind the last plan, for logs, metrics and spans."""
        last = self._last
        return Explanation(
            state=self.state(),
            ceiling=self._ceiling_of(self._running),
            plain_step_ms=round(last.plain_seconds * 1e3, 3) if last else 0.0,
            gain=round(last.gain, 4) if last else 0.0,
            average_gain=round(self._switch.gain, 4) if last else 0.0,
            tokens_per_second=round(last.rate, 2) if last else 0.0,
            draft_wait_ms=round(max(self._switch.wait, 0.0) * 1e3, 3),
            probes=len(self._probes),
            probe_share=round(self._probes.budget.share, 4),
            measured=self._periods.measured,
            acceptance=self.estimates.rates(),
            **self.standing(),
        )

    def _compare(
        self, sequence_id: int, block: DraftBlock, greedy: bool, drafted: int, accepted: int
    ) -> None:
        self._take(
            partial(
                self.estimates.observe,
                sequence_id,
                block,
                greedy=greedy,
                drafted=drafted,
                accepted=accepted,
            )
        )

    def _take(self, lesson: Callable[[], None]) -> None:
        if self.learns_later:
            self._lessons.append(lesson)
        else:
            lesson()

    def _decisions(
        self,
        candidates: Sequence[Candidate],
        offers: Offers,
        counts: list[int],
        best: Admission | None,
        *,
        plain_step: bool,
    ) -> list[Decision]:
        refuse: Refuse = step_full
        if self._plain:
            refuse = held
        elif plain_step:
            refuse = measuring
        elif best is not None and len(best.step) > 1:
            refuse = DoesNotPay(best, sum(counts))
        for owner, count in zip(offers.owners, counts, strict=True):
            if count:
                self._probes.verified(candidates[owner].sequence_id)
        closed = self._closed()
        if closed is None and self._plain:
            closed = PLAIN_PERIOD
        decisions = decide(candidates, offers, counts, refuse, closed)
        if not plain_step and not all(counts):
            self._refusal = decisions[offers.owners[counts.index(0)]].off_reason
        return decisions

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
