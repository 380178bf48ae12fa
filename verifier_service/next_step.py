"""The step behind the one that runs: whether it is begun before it is asked for, and how it was.

Knows what was planned, what look-ahead has told and what pauses cost; does not know the device. A
plain step can be begun as soon as the last outcome is read, or blindly before that, and who has
come joins it; a step with drafts has to be planned first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verifier_service.controller import Controller
from verifier_service.engines.base import Chunk, GoesOn, Joining, Verdict
from verifier_service.messages import DraftSource, Expected
from verifier_service.scheduler import PREFILL, Newcomers, Planned, Scheduler

# (from, to) blocks.
Copies = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CameAbout:
    """How a step came about; times in ns.

    `begun` ahead, None where it was not; `blindly`, before the outcome of the last one was `read`
    (None where nothing ran before it) though drafts might have come.
    """

    begun: int | None
    blindly: bool
    read: int | None


class NextStep:
    """Decides, and remembers, for the loop's thread. `arrive` takes in who has come meanwhile."""

    def __init__(
        self,
        scheduler: Scheduler,
        controller: Controller,
        source: DraftSource,
        arrive: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._source = source
        self._arrive = arrive
        self._begun: int | None = None
        self._blindly = False
        # Whether it was not begun because there are drafts for it, or will be.
        self._holds = False
        self._read: int | None = None
        self._looked = False
        # Sequences that have drafts behind the last outcome, as far as look-ahead has told.
        self.known = 0
        # Who has joined it, once that is settled.
        self._joined: Newcomers | None = None

    @property
    def begun(self) -> bool:
        """Whether it was begun: a plain round of the same sequences, and who has joined them."""
        return self._begun is not None

    @property
    def looked_at(self) -> int | None:
        """When it was looked whether it has drafts, in ns, behind which it was begun; else None."""
        return self._read if self._looked and self.begun and not self._blindly else None

    def take_joined(self) -> Newcomers | None:
        """Who has joined the step that is planned now; None: it was not begun."""
        joined, self._joined = self._joined, None
        return joined if self.begun else None

    def take_holding(self) -> bool:
        """Whether it was held for drafts. It is the step that is planned now."""
        holding, self._holds = self._holds, False
        return holding

    def take(self) -> CameAbout:
        """How the step that runs now came about; the next one is behind it."""
        came = CameAbout(self._begun, self._blindly, self._read)
        self._begun = self._read = None
        self._blindly = False
        return came

    def rest(self) -> None:
        """There is nothing to run: what comes then follows on nothing."""
        self._source.listen()
        self._begun = self._read = self._joined = None

    def is_sure(self, planned: list[Planned], unused: int, *, drafting: bool) -> bool:
        """Whether it is begun whatever this step brings: nobody is asked of that, or it is not
        worth a look.

        Who has come joins it, or the one behind. `unused`: so many sequences have drafts that this
        step does not verify.
        """
        if not self._scheduler.goes_on_behind(planned):
            return False
        self._controller.weigh_behind(len(planned))
        return not drafting or self._controller.begins_blindly(unused)

    def joining(self, planned: list[Planned], copy: Callable[[Copies], None]) -> Joining:
        """Says who joins the step that is begun behind this one. `copy` copies blocks at once."""

        def joining() -> list[Chunk] | None:
            self._arrive()
            self._joined = self._scheduler.join(planned)
            copies = self._scheduler.take_copies()
            if copies:
                copy(copies)
            return self._joined.chunks()

        return joining

    def goes_on(
        self, planned: list[Planned], unused: int, *, drafting: bool, blindly: bool
    ) -> GoesOn:
        """Says whether a plain step of the same sequences follows, and notes that it is begun.

        `blindly`: the engine may have begun it already. `unused` as for `is_sure`.
        """

        def goes_on(verdicts: Sequence[Verdict]) -> bool:
            self._read = time.perf_counter_ns()
            joined = 0 if self._joined is None else self._joined.count
            if not self._scheduler.goes_on_behind(planned, joined):
                self._joined = None
                return False
            self._looked = drafting
            if drafting:
                holds = self._look(planned, verdicts, unused)
                if holds and not blindly:
                    if self._holds:
                        # Until the next launch the device has nothing to do. What comes before
                        # this is still read: it may be drafts of the step that is held.
                        self._source.hush()
                    return False
                self._holds = False
            self._blindly = blindly
            self._begun = time.perf_counter_ns()
            return True

        return goes_on

    def _look(self, planned: Sequence[Planned], verdicts: Sequence[Verdict], unused: int) -> bool:
        """Whether the step behind this one is worth a pause: there are drafts, or may be."""
        outcomes = []
        opening = 0
        for part, verdict in zip(planned, verdicts, strict=True):
            # Of the others proposers are never told.
            if part.sequence.ask_limit > 0:
                if part.decision is PREFILL:
                    opening += 1
                else:
                    outcomes.append((part.sequence.sequence_id, verdict.tokens))
        expected = self._source.behind(outcomes) if outcomes else Expected(0, 0)
        if expected is None:
            self.known = 0
            return True
        self.known, unknown = expected
        # Nobody looks ahead of a prompt.
        holds = self._controller.holds_for(self.known)
        prepared = self._source.looks_ahead
        waits = self._controller.waits_for(unknown + opening, standing=holds, prepared=prepared)
        holds = holds or waits
        # Whoever is not prepared is asked for this step alone.
        self._holds = holds and not (waits and prepared)
        # Behind a prompt nobody could know, which says nothing of looks behind rounds.
        found = self.known + (unknown if waits else 0)
        self._controller.observe_look(unused, found, holds=holds and found > 0)
        return holds
