"""Which sequences in prefill get how many tokens of a step.

Knows sequences, what is cached, and what prefill costs; does not know drafts or verdicts. Two
limits: the step's token budget, and, while others decode, time: a long prompt must not make the
gap between their tokens as long as the budget allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter

from verifier_service.block_tables import BlockTables
from verifier_service.costs import CostTable
from verifier_service.prefill_pace import PrefillPace
from verifier_service.sequences import Sequence
from verifier_service.step_plan import PREFILL, Planned

# Prefill gets at least this many tokens of a step that has any to do, whatever they cost.
MIN_PREFILL = 16
# Prompt ids whose log-probabilities one step computes: each takes a row of logits, and while a long
# prompt is scored, running streams wait for the steps that score it.
_MAX_SCORED = 128


class Prefill:
    """Shares out prefill; `stall_seconds` is what it may add to a step while sequences decode.

    Where decoding alone takes longer than that, prefill may take as long as decoding does.
    """

    def __init__(self, tables: BlockTables, costs: CostTable, *, stall_seconds: float) -> None:
        self._tables = tables
        self._costs = costs
        self._stall = stall_seconds
        # More rows of one step cost about what prefill does until that was measured.
        self._pace = PrefillPace(max(costs.seconds(33) - costs.seconds(17), 1e-9) / 16)

    def plan(
        self, prefilling: Iterable[Sequence], decoding: list[Sequence], budget: int
    ) -> list[tuple[Sequence, int]]:
        """(sequence, tokens) of this step, first those served first; what is cached is skipped.

        A sequence whose next block another one computes in this step waits for it.
        """
        seconds = self._allowance(decoding)
        computing: set[bytes] = set()
        shares: list[tuple[Sequence, int]] = []
        taken = scored = 0
        for sequence in sorted(prefilling, key=attrgetter("rank")):
            self._tables.adopt(sequence)
            if self._tables.next_name(sequence) in computing:
                continue
            start = sequence.computed
            count = min(len(sequence.ids) - start, budget - taken)
            if seconds < math.inf:
                count = min(count, max(self._pace.fits(start, seconds), MIN_PREFILL - taken))
            if count <= 0:
                break
            if sequence.prompt_untold:
                count = min(count, _MAX_SCORED - scored)
                scored += count
                if count == 0:
                    continue
            shares.append((sequence, count))
            computing.update(self._tables.names(sequence, count))
            taken += count
            seconds -= self._pace.seconds(start, count)
        return shares

    def observe(self, planned: list[Planned], seconds: float) -> None:
        """Take in what a step took that had prefill in it."""
        chunks = [part.chunk for part in planned if part.decision is PREFILL]
        if not chunks:
            return
        rounds = [part.chunk for part in planned if part.decision is not PREFILL]
        others = self._costs.seconds(
            max(sum(len(chunk.ids) for chunk in rounds), 1),
            max(len(rounds), 1),
            sum(chunk.start + len(chunk.ids) for chunk in rounds),
        )
        self._pace.observe([(chunk.start, len(chunk.ids)) for chunk in chunks], seconds - others)

    def _allowance(self, decoding: list[Sequence]) -> float:
        if not decoding:
            return math.inf
        context = sum(len(sequence.ids) for sequence in decoding)
        return max(self._stall, self._costs.seconds(len(decoding), len(decoding), context))
