"""Which sequences one verifier has open here, and whether an update continues them.

Knows the protocol's rules of epochs, base lengths and chunks; does not know what is drafted or how
messages travel. A contradiction costs the sequence it names, never another one: it is forgotten
and the verifier is told to open it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.proposers.base import Proposer
from proposer_service.proposers.batch import BatchProposer, TargetSampling

if TYPE_CHECKING:
    # It brings the SDK's interface in, which an untraced proposer does without.
    from proposer_service.tracing import SequenceTrace


class SequenceError(Exception):
    """An update contradicts what is known of its sequence.

    `kind` is one word for counting, the text is the SequenceFault's reason.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Bounds that updates must keep.

    `context_limit` in tokens and `vocabulary_size` in ids; 0 means unknown. `tenant` separates
    this verifier's sequences from those that may not shape its drafts. `coupled` tells that its
    target chooses by noise that a draft can share, `takes_q` that drafts may come with their own q.
    """

    max_sequences: int
    context_limit: int = 0
    vocabulary_size: int = 0
    tenant: str = ""
    coupled: bool = False
    takes_q: bool = False


@dataclass(slots=True)
class OpenSequence:
    """One sequence; `number` is its name at the proposer, `length` its committed ids."""

    number: int
    epoch: int
    prompt_length: int
    length: int
    # More chunks of the open are to come.
    opening: bool
    trace: SequenceTrace | None = None


class SequenceTable:
    """The sequences of one stream. `numbers` are unique among all users of the proposer.

    `trace` begins a sequence's trace with the context that its open brings, if it is to have one.
    """

    def __init__(
        self,
        proposer: Proposer,
        numbers: Iterator[int],
        limits: SequenceLimits,
        trace: Callable[[str], SequenceTrace | None] | None = None,
    ) -> None:
        self._proposer = proposer
        self._batching = proposer if isinstance(proposer, BatchProposer) else None
        self._trace = trace
        self._numbers = numbers
        self._limits = limits
        self._sequences: dict[int, OpenSequence] = {}
        self._highest_id = limits.vocabulary_size - 1 if limits.vocabulary_size else 2**31 - 1

    def __len__(self) -> int:
        return len(self._sequences)

    def get(self, sequence_id: int) -> OpenSequence | None:
        return self._sequences.get(sequence_id)

    def apply(self, update: proposer_pb2.SequenceUpdate, closing: int = 0) -> OpenSequence:
        """Make the update true. Raises SequenceError where it contradicts what is known.

        `closing` open sequences are closed later in the same step and do not count.
        """
        sequence_id = update.sequence_id
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and update.epoch < sequence.epoch:
            # What is stale says nothing of the sequence as it is now.
            raise SequenceError("stale_epoch", f"epoch {update.epoch}: {sequence.epoch} is current")
        try:
            change = update.WhichOneof("change")
            if change == "commit":
                return self._commit(update, sequence)
            if change == "open":
                return self._open(update, sequence, closing)
            return _require_current(update, sequence)
        except SequenceError:
            self.forget(sequence_id)
            raise

    def close(self, sequence_id: int, finished: bool) -> None:
        """The sequence is over; unknown ones were forgotten before and are ignored."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            if sequence.trace is not None:
                sequence.trace.end()
            self._proposer.close(sequence.number, finished and not sequence.opening)

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of a sequence."""
        self.close(sequence_id, False)

    def forget_all(self) -> None:
        """The stream is over."""
        for sequence_id in list(self._sequences):
            self.forget(sequence_id)

    def _commit(
        self, update: proposer_pb2.SequenceUpdate, sequence: OpenSequence | None
    ) -> OpenSequence:
        sequence = _require_current(update, sequence)
        commit = update.commit
        if sequence.opening:
            raise SequenceError("early_commit", "commit before the last chunk of the open")
        if commit.base_length != sequence.length:
            raise SequenceError(
                "wrong_base", f"base_length {commit.base_length}: {sequence.length} ids are known"
            )
        ids = commit.token_ids[:]
        if ids:
            self._check_ids(ids, sequence.length)
            self._proposer.extend(sequence.number, ids)
            sequence.length += len(ids)
        return sequence

    def _open(
        self, update: proposer_pb2.SequenceUpdate, sequence: OpenSequence | None, closing: int
    ) -> OpenSequence:
        chunk = update.open
        ids = chunk.token_ids[:]
        if not ids:
            raise SequenceError("empty_open", "token_ids of an open are empty")
        self._check_ids(ids, chunk.offset)
        if chunk.offset == 0:
            return self._begin(update, sequence, ids, closing)
        sequence = _require_current(update, sequence)
        if not sequence.opening or chunk.offset != sequence.length:
            raise SequenceError(
                "wrong_offset",
                f"offset {chunk.offset} of an open: {sequence.length} ids are known, "
                f"{'more are' if sequence.opening else 'no more is'} expected",
            )
        if chunk.prompt_length != sequence.prompt_length:
            raise SequenceError(
                "wrong_prompt_length",
                f"prompt_length {chunk.prompt_length}: the first chunk said "
                f"{sequence.prompt_length}",
            )
        self._proposer.extend(sequence.number, ids)
        sequence.length += len(ids)
        sequence.opening = chunk.more
        return sequence

    def _begin(
        self,
        update: proposer_pb2.SequenceUpdate,
        sequence: OpenSequence | None,
        ids: Sequence[int],
        closing: int,
    ) -> OpenSequence:
        sequence_id = update.sequence_id
        if sequence is not None:
            if update.epoch == sequence.epoch:
                raise SequenceError(
                    "repeated_open",
                    f"epoch {update.epoch} is open already; a resync needs a new one",
                )
            self.forget(sequence_id)
        if len(self._sequences) - closing >= self._limits.max_sequences:
            raise SequenceError(
                "too_many_sequences",
                f"{len(self._sequences)} sequences are open; at most "
                f"{self._limits.max_sequences} are followed",
            )
        chunk = update.open
        number = next(self._numbers)
        # The separator cannot be part of a salt that means another tenant's.
        salt = f"{self._limits.tenant}\0{chunk.cache_salt}"
        self._proposer.open(number, ids, chunk.prompt_length, salt)
        if self._batching is not None:
            self._batching.heed(number, self._sampling_of(chunk.sampling))
        sequence = OpenSequence(number, update.epoch, chunk.prompt_length, len(ids), chunk.more)
        if self._trace is not None and chunk.traceparent:
            sequence.trace = self._trace(chunk.traceparent)
        self._sequences[sequence_id] = sequence
        return sequence

    def _sampling_of(self, told: types_pb2.DraftSampling) -> TargetSampling:
        seed = told.seed - (1 << 64) if told.seed >> 63 else told.seed
        return TargetSampling(
            temperature=told.temperature,
            top_k=told.top_k,
            # Not told is no limit, either.
            top_p=told.top_p or 1.0,
            seed=seed,
            coupled=self._limits.coupled,
            takes_q=self._limits.takes_q,
            vocabulary_size=self._limits.vocabulary_size,
        )

    def _check_ids(self, ids: Sequence[int], base: int) -> None:
        lowest, highest = min(ids), max(ids)
        if lowest < 0 or highest > self._highest_id:
            raise SequenceError(
                "id_out_of_range",
                f"token id {lowest if lowest < 0 else highest}: ids are 0 to {self._highest_id}",
            )
        limit = self._limits.context_limit
        if limit and base + len(ids) > limit:
            raise SequenceError(
                "over_context_limit", f"{base + len(ids)} ids: the context limit is {limit}"
            )


def _require_current(
    update: proposer_pb2.SequenceUpdate, sequence: OpenSequence | None
) -> OpenSequence:
    if sequence is None:
        raise SequenceError("unknown_sequence", "the sequence is not open here")
    if update.epoch != sequence.epoch:
        raise SequenceError(
            "unopened_epoch", f"epoch {update.epoch} was never opened; {sequence.epoch} is current"
        )
    return sequence


def sequence_numbers() -> Iterator[int]:
    """Numbers for the sequences of all streams that share a proposer."""
    return itertools.count(1)
