"""Which sequences wait, which run, and who gives way when blocks are short.

Knows requests, their order of service and the block tables; does not know drafts, chunks or
verdicts. A running sequence holds blocks, a waiting one none.
"""

from __future__ import annotations

import bisect
import itertools
import time
from operator import attrgetter

from verifier_service.block_tables import BlockTables
from verifier_service.core import QueueFullError
from verifier_service.messages import PREDICTION, OutputSink, Request
from verifier_service.sequences import Sequence

_rank = attrgetter("rank")


class Queues:
    """All sequences of one engine; `running` in the order in which they began.

    `max_drafts` is the most drafts that proposers are asked for, `max_predicted` the most that a
    round verifies of a request with a prediction of its own.

    Lower priority values are served first, then first come. Nobody is preempted for an arrival,
    however urgent: only where the cache is full, and then the last in that order gives way.
    """

    def __init__(
        self,
        tables: BlockTables,
        *,
        max_running: int,
        max_waiting: int,
        max_drafts: int,
        max_predicted: int = 0,
    ) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self._tables = tables
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_drafts = max_drafts
        self._max_predicted = max(max_predicted, max_drafts)
        self._by_request: dict[str, Sequence] = {}
        self._numbers = itertools.count(1)
        self._closed: list[tuple[int, bool]] = []

    @property
    def has_seat(self) -> bool:
        """Whether one more sequence may run, as far as their number goes."""
        return len(self.running) < self._max_running

    @property
    def may_admit(self) -> bool:
        """Whether somebody waits who would begin now, if the cache has room."""
        return bool(self.waiting) and self.has_seat

    def add(self, request: Request, sink: OutputSink) -> None:
        """Queue a request. Raises QueueFullError, and ValueError for an id that is in use."""
        if len(self.waiting) >= self._max_waiting:
            raise QueueFullError(f"{len(self.waiting)} requests are waiting: the queue is full")
        if request.request_id in self._by_request:
            raise ValueError(f"request_id {request.request_id!r} is already running")
        number = next(self._numbers)
        asked = 0 if request.proposer == PREDICTION else self._max_drafts
        most = asked if request.prediction is None else self._max_predicted
        own = request.num_speculative_tokens
        if own is not None:
            asked, most = min(own, asked), min(own, most)
        sequence = Sequence(
            sequence_id=number,
            request=request,
            sink=sink,
            draft_limit=most,
            ask_limit=asked,
            arrival=number,
            ids=list(request.prompt_ids),
        )
        self._by_request[request.request_id] = sequence
        bisect.insort(self.waiting, sequence, key=_rank)

    def find(self, request_id: str) -> Sequence | None:
        return self._by_request.get(request_id)

    def all(self) -> list[Sequence]:
        return list(self._by_request.values())

    def admit(self) -> None:
        """Start waiting sequences while there is room for all they are known to need."""
        while self.may_admit:
            sequence = self.waiting[0]
            # Room for one more token of each running sequence stays, lest they be preempted.
            if not self._tables.open(sequence, spare=len(self.running)):
                return
            del self.waiting[0]
            self.running.append(sequence)
            if sequence.queue_ns < 0:
                sequence.queue_ns = time.perf_counter_ns() - sequence.queued_at

    def make_room(self, sequence: Sequence, length: int) -> bool:
        """Blocks for `length` tokens, others' if need be; False if it had to give way itself."""
        while not self._tables.reserve(sequence, length):
            victim = max(self.running, key=_rank)
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Give up a running sequence's cache; its ids stay and are computed again later."""
        self.running.remove(sequence)
        self._tables.close(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        bisect.insort(self.waiting, sequence, key=_rank)

    def end(self, sequence: Sequence, *, finished: bool) -> None:
        """Forget a sequence and free what it holds."""
        del self._by_request[sequence.request.request_id]
        (self.running if sequence.blocks else self.waiting).remove(sequence)
        self._tables.close(sequence)
        if sequence.announced:
            self._closed.append((sequence.sequence_id, finished))

    def take_closed(self) -> list[tuple[int, bool]]:
        """(id, finished) of the sequences that ended, of which proposers know."""
        closed, self._closed = self._closed, []
        return closed
