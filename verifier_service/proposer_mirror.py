"""The sequences one proposer holds, and the step that keeps them true; knows no stream.

A proposer's copy of a sequence is a mirror: this file remembers how far each one is and says what
to send next. It lives as long as one stream; a new stream starts with no mirrors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from speculation.v1 import proposer_pb2, types_pb2

from verifier_service.messages import Sampling, SequenceView
from verifier_service.proposer_ask import COVERED, NOTHING, UNKNOWN, Ask, SentStep, Told
from verifier_service.proposer_handshake import ProposerLimits
from verifier_service.proposer_outlook import Outlook
from verifier_service.proposer_state import ProposerRecord

OPEN_CHUNK_IDS = 16_384
# Bounds one step's size and the time to build it; longer opens go on in the next steps.
OPEN_IDS_PER_STEP = 65_536
MAX_FAULTS = 3
_SEED_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Mirror:
    """One sequence at the proposer; `sent` ids of it are there, all of them once not `opening`.

    `told` is False while the proposer has heard nothing of the sequence, whatever the epoch.
    `outlook` is of the round behind `sent`, in this epoch. `barren` is the length of text of which
    it has told that no drafts follow, -1 where it was not asked.
    """

    epoch: int
    told: bool = False
    sent: int = 0
    opening: bool = True
    outlook: Outlook = field(default_factory=Outlook)
    barren: int = -1


class Mirrors:
    """All mirrors of one stream.

    `name` is the proposer's name here; `epochs` never repeats a number for this proposer.
    """

    def __init__(
        self, limits: ProposerLimits, name: str, epochs: Iterator[int], record: ProposerRecord
    ) -> None:
        self._limits = limits
        self._name = name
        self._epochs = epochs
        self._record = record
        self._mirrors: dict[int, Mirror] = {}
        self._unserved: dict[int, str] = {}
        self._faults: Counter[int] = Counter()
        self._closes: list[tuple[int, bool]] = []
        # Sequences that only other proposers are asked about.
        self._elsewhere: set[int] = set()

    def __len__(self) -> int:
        return len(self._mirrors)

    def get(self, sequence_id: int) -> Mirror | None:
        return self._mirrors.get(sequence_id)

    def close(self, sequence_id: int, finished: bool) -> None:
        """The sequence is over; the next step says so. Unknown ones are ignored."""
        self._unserved.pop(sequence_id, None)
        self._elsewhere.discard(sequence_id)
        mirror = self._mirrors.pop(sequence_id, None)
        # What contradicts at the proposer may still take a place there.
        faulted = self._faults.pop(sequence_id, 0) > 0
        if faulted or (mirror is not None and mirror.told):
            self._closes.append((sequence_id, finished))

    def fault(self, sequence_id: int) -> None:
        """The proposer lost the sequence: open it again, but not for ever."""
        self._faults[sequence_id] += 1
        self._mirrors.pop(sequence_id, None)
        if self._faults[sequence_id] > MAX_FAULTS:
            self._leave_out(sequence_id, "faulted")

    def foreseen(self, view: SequenceView) -> Told:
        """What the answer to a view would be, as far as look-ahead has told it."""
        wanted = self._wanted(view)
        if wanted <= 0 or (view.only and view.only != self._name):
            return NOTHING
        mirror = self._mirrors.get(view.sequence_id)
        if mirror is not None and mirror.barren == len(view.ids):
            return COVERED
        if mirror is None:
            reason = self._unserved.get(view.sequence_id)
            full = len(self._mirrors) >= self._limits.max_sequences
            return NOTHING if reason and (reason != "over_capacity" or full) else UNKNOWN
        ids = tuple(view.ids[mirror.sent :])
        return UNKNOWN if mirror.opening or not ids else _told(mirror.outlook, ids, wanted)

    def offers_behind(self, sequence_id: int, ids: Sequence[int]) -> bool | None:
        """Whether drafts would be offered once exactly `ids` are committed to a sequence.

        None where that is not known.
        """
        mirror = self._mirrors.get(sequence_id)
        if mirror is not None:
            if mirror.opening:
                return None
            offered = mirror.outlook.offers(tuple(ids))
            if offered is False:
                # What is asked next of most sequences.
                mirror.barren = mirror.sent + len(ids)
            return offered
        if sequence_id in self._elsewhere:
            return False
        reason = self._unserved.get(sequence_id)
        if reason == "over_capacity":
            return False if len(self._mirrors) >= self._limits.max_sequences else None
        return None if reason is None else False

    def advance(
        self, views: Sequence[SequenceView], step_id: int, now: float
    ) -> tuple[proposer_pb2.Step, SentStep]:
        """The step that makes the mirrors equal to the views, and what it asks for."""
        step = proposer_pb2.Step(step_id=step_id)
        sent = SentStep(step_id, now)
        budget = OPEN_IDS_PER_STEP
        limit = self._limits.context_limit
        for view in views:
            if view.only and view.only != self._name:
                self._elsewhere.add(view.sequence_id)
                continue
            length = len(view.ids)
            if limit is not None and length >= limit:
                self._give_up(view.sequence_id, "context_limit")
                continue
            mirror = self._mirror_of(view.sequence_id, length)
            if mirror is None:
                continue
            wanted = self._wanted(view)
            if mirror.opening:
                budget = self._open(step, view, mirror, wanted, budget)
                if mirror.opening:
                    continue
            elif length > mirror.sent or wanted:
                self._commit(step, sent, view, mirror, wanted)
            if wanted:
                sent.asks[view.sequence_id] = Ask(mirror.epoch, length, wanted)
        for sequence_id, finished in self._closes:
            step.closes.add(sequence_id=sequence_id, finished=finished)
        self._closes.clear()
        return step, sent

    def _wanted(self, view: SequenceView) -> int:
        """How many drafts this proposer may give; 0 or less where none."""
        limits, wanted = self._limits, view.max_draft_tokens
        if wanted > limits.max_draft_tokens:
            wanted = limits.max_draft_tokens
        if limits.context_limit is None:
            return wanted
        room = limits.context_limit - len(view.ids)
        return wanted if wanted < room else room

    def _mirror_of(self, sequence_id: int, length: int) -> Mirror | None:
        mirror = self._mirrors.get(sequence_id)
        if mirror is not None and length >= mirror.sent:
            return mirror
        if mirror is None:
            if self._unserved.get(sequence_id, "over_capacity") != "over_capacity":
                return None
            if len(self._mirrors) >= self._limits.max_sequences:
                self._leave_out(sequence_id, "over_capacity")
                return None
            self._unserved.pop(sequence_id, None)
        # Also where the ids are fewer than were sent: what the proposer holds is not this.
        told = mirror is not None and mirror.told
        mirror = self._mirrors[sequence_id] = Mirror(next(self._epochs), told)
        return mirror

    def _give_up(self, sequence_id: int, reason: str) -> None:
        mirror = self._mirrors.pop(sequence_id, None)
        if mirror is not None and mirror.told:
            self._closes.append((sequence_id, False))
        self._leave_out(sequence_id, reason)

    def _leave_out(self, sequence_id: int, reason: str) -> None:
        if self._unserved.get(sequence_id) != reason:
            self._unserved[sequence_id] = reason
            self._record.leave_out(reason, f"sequence {sequence_id}")

    def _open(
        self,
        step: proposer_pb2.Step,
        view: SequenceView,
        mirror: Mirror,
        wanted: int,
        budget: int,
    ) -> int:
        total = len(view.ids)
        while mirror.opening and budget > 0:
            end = min(total, mirror.sent + min(OPEN_CHUNK_IDS, budget))
            more = end < total
            step.updates.add(
                sequence_id=view.sequence_id,
                epoch=mirror.epoch,
                max_draft_tokens=0 if more else wanted,
                open=proposer_pb2.SequenceOpen(
                    offset=mirror.sent,
                    token_ids=view.ids[mirror.sent : end],
                    prompt_length=view.prompt_length,
                    more=more,
                    sampling=_sampling(view.sampling),
                    cache_salt=view.cache_salt,
                    traceparent="" if mirror.sent else view.traceparent,
                ),
            )
            budget -= max(1, end - mirror.sent)
            mirror.told = True
            mirror.sent = end
            mirror.opening = more
        return budget

    def _commit(
        self,
        step: proposer_pb2.Step,
        sent: SentStep,
        view: SequenceView,
        mirror: Mirror,
        wanted: int,
    ) -> None:
        mirror.barren = -1
        ids = list(view.ids[mirror.sent :])
        # Setting fields one by one is faster than naming them in a call.
        update = step.updates.add()
        update.sequence_id = view.sequence_id
        update.epoch = mirror.epoch
        update.max_draft_tokens = wanted
        commit = update.commit
        commit.base_length = mirror.sent
        commit.token_ids.extend(ids)
        # A commit may span rounds that were not sent; the view tells of the last one only.
        if view.drafted and len(ids) == view.accepted + 1:
            commit.proposer = self._told_name(view.proposer)
            commit.drafted = view.drafted
            commit.accepted = view.accepted
        if not ids:
            mirror.outlook.asked_again()
            return
        if wanted and self._limits.lookahead:
            outcome = tuple(ids)
            sent.ahead[view.sequence_id] = mirror.outlook.block_behind(outcome)
            if mirror.outlook.excludes(outcome):
                sent.covered.add(view.sequence_id)
        mirror.sent += len(ids)
        mirror.outlook.clear()

    def _told_name(self, used: str) -> str:
        """The used proposer's name as this one knows it: its own name means itself only."""
        if used == self._name:
            return self._limits.name
        return f"{used}-1" if used == self._limits.name else used


def _told(outlook: Outlook, ids: tuple[int, ...], wanted: int) -> Told:
    outcome = outlook.block_behind(ids)
    if outcome is not None:
        return Told(False, outcome, None, wanted)
    if outlook.excludes(ids):
        return COVERED
    rest = outlook.rest_behind(ids)
    return UNKNOWN if rest is None else Told(False, None, rest, wanted)


def _sampling(sampling: Sampling) -> types_pb2.DraftSampling:
    return types_pb2.DraftSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed & _SEED_MASK,
    )
