"""The probes of a step: which sequences get drafts though these do not seem to pay, and what came.

Knows sequences, offers and when each was last verified; what may be spent is probing.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier_service.admission import Admission
from verifier_service.candidates import Candidate
from verifier_service.offers import Offers
from verifier_service.probing import ProbeBudget, choose_probes


class Probes:
    """Those of the last plan, and the `budget` that they are paid from. Not thread-safe."""

    __slots__ = ("_probing", "_step", "_verified_at", "budget")

    def __init__(self) -> None:
        self.budget = ProbeBudget()
        self._step = 0
        self._verified_at: dict[int, int] = {}
        # Each probe of the last plan: seconds spent on it, and seconds that a token is worth.
        self._probing: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._probing)

    def begin_step(self) -> None:
        """Another plan begins; the last one's probes were told, or never will be."""
        self._step += 1
        self._probing.clear()

    def verified(self, sequence_id: int) -> None:
        """Drafts of the sequence are verified in this step."""
        self._verified_at[sequence_id] = self._step

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of one sequence. Unknown ids are ignored."""
        self._verified_at.pop(sequence_id, None)

    def observe(self, sequence_id: int, accepted: int) -> bool:
        """Take in how many drafts of a sequence were accepted; whether they were a probe."""
        probe = self._probing.get(sequence_id)
        if probe is None:
            return False
        self.budget.record(accepted, *probe)
        return True

    def add(
        self,
        candidates: Sequence[Candidate],
        offers: Offers,
        counts: list[int],
        best: Admission,
        most: int,
    ) -> None:
        """Add drafts that do not seem to pay to the offers' `counts`, as far as the budget goes.

        `most` drafts are allowed in all.
        """
        self.budget.told_free = offers.teach_unverified
        if self.budget.saved <= 0.0 or all(counts):
            return
        since = self._verified_at
        ids = [candidates[owner].sequence_id for owner in offers.owners]
        probes = choose_probes(
            self.budget,
            best.step[: most + 1],
            1.0 / best.rate,
            counts,
            offers.lengths,
            [survival[0] for survival in offers.survivals],
            [since.get(sequence_id, 0) for sequence_id in ids],
        )
        for row, (drafts, cost) in probes.items():
            counts[row] = drafts
            self._probing[ids[row]] = (cost, 1.0 / best.rate)
