"""One proposer as the verifier reaches it: connecting, its state, and what it says.

Knows one address. Everything runs under the pool's lock and never waits; time is handed in. What
messages mean is `proposer_answers`' business; when to come back after a failure is decided here.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Sequence

from speculation.v1 import proposer_pb2

from outrider.backoff import Backoff
from outrider.transport import Listener, Stream, Transport
from verifier_service.messages import DraftBlock, SequenceView
from verifier_service.proposer_answers import ProposerAnswers
from verifier_service.proposer_ask import ForeseenAnswer
from verifier_service.proposer_expectation import ExpectedProposer
from verifier_service.proposer_handshake import (
    HandshakeError,
    HelloParameters,
    ProposerLimits,
    check_welcome,
)
from verifier_service.proposer_mirror import Mirrors
from verifier_service.proposer_pace import Pace
from verifier_service.proposer_state import LinkState, ProposerRecord, ProposerState

RECONNECT_FIRST_S = 0.1
RECONNECT_CAP_S = 2.0
QUARANTINE_FIRST_S = 5.0
QUARANTINE_CAP_S = 300.0
REFUSED_RETRY_S = 30.0
HANDSHAKE_TIMEOUT_S = 5.0
# A step without an answer for so long: the stream is dead, whatever the network says.
HANG_TIMEOUT_S = 30.0

# Before a welcome these mean "not me, not you", which no quick retry cures.
_REFUSALS = frozenset(
    {
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
    }
)

_logger = logging.getLogger(__name__)


class ProposerClient:
    """The state machine of one proposer.

    `choose_name` gives the name under which the advertised one is known here, unique among the
    pool's; `listener` makes a stream's listener, which leads back to `received` and `closed`. One
    that is not as `expected` is refused.
    """

    def __init__(
        self,
        address: str,
        *,
        hello: HelloParameters,
        draft_deadline_s: float,
        transport: Transport,
        choose_name: Callable[[ProposerClient, str], str],
        listener: Callable[[ProposerClient], Listener],
        rng: random.Random,
        expected: ExpectedProposer | None = None,
    ) -> None:
        self.address = address
        self.name = ""
        self._expected = expected
        self._hello = hello = expected.hello(hello) if expected is not None else hello
        self._lookahead = hello.takes_lookahead(address)
        self._hello_bytes = hello.to_proto(lookahead=self._lookahead).SerializeToString()
        self._deadline_s = draft_deadline_s
        self._transport = transport
        self._choose_name = choose_name
        self._make_listener = listener
        self._reconnect = Backoff(RECONNECT_FIRST_S, RECONNECT_CAP_S, rng=rng)
        self._quarantine = Backoff(QUARANTINE_FIRST_S, QUARANTINE_CAP_S, rng=rng)
        self._record = ProposerRecord(address, _logger)
        self._epochs = itertools.count(1)
        self._state = LinkState.CONNECTING
        self._detail = ""
        self._limits: ProposerLimits | None = None
        self._pace = Pace(draft_deadline_s)
        self._listener: Listener | None = None
        self._stream: Stream | None = None
        self._answers: ProposerAnswers | None = None
        self._retry_at = 0.0
        self._connected_at = 0.0

    @property
    def awaited(self) -> bool:
        """Whether the last step's answer should be waited for."""
        return self._answers is not None and self._answers.awaited

    @property
    def patience_s(self) -> float:
        """How long the last step is worth waiting for, from its `send`."""
        return self._pace.patience_s

    def tick(self, now: float) -> float:
        """Do what is due; returns when to look again."""
        self._record.now = now
        if self._stream is None:
            if now < self._retry_at:
                return self._retry_at
            self._connect(now)
            if self._stream is None:
                return self._retry_at
        if self._answers is None:
            due = self._connected_at + HANDSHAKE_TIMEOUT_S
            if now >= due:
                self._lost(f"no welcome within {HANDSHAKE_TIMEOUT_S:g} s")
                return self._retry_at
            return due
        oldest = self._answers.oldest_sent_at()
        if oldest is not None and now >= oldest + HANG_TIMEOUT_S:
            self._lost(f"no answer to a step for {HANG_TIMEOUT_S:g} s")
            return self._retry_at
        return now + HANG_TIMEOUT_S if oldest is None else oldest + HANG_TIMEOUT_S

    def send(
        self,
        views: Sequence[SequenceView],
        closed: Sequence[tuple[int, bool]],
        step_id: int,
        now: float,
    ) -> None:
        """Tell what became true, where there is someone to tell."""
        self._record.now = now
        if self._answers is None or self._stream is None:
            return
        step = self._answers.advance(views, closed, step_id, now)
        if step is not None:
            request = proposer_pb2.ProposeRequest(step=step)
            self._stream.send(request.SerializeToString())

    def collect(self, *, waited: bool = True) -> dict[int, DraftBlock]:
        """The last step's blocks by sequence, once."""
        return {} if self._answers is None else self._answers.collect(waited=waited)

    @property
    def looks_ahead(self) -> bool | None:
        """Whether it prepares answers; None while it is not connected."""
        if self._answers is None or self._limits is None:
            return None
        return self._limits.lookahead

    def foreseen(self, views: Sequence[SequenceView]) -> ForeseenAnswer:
        """What it would answer to these views, as far as look-ahead has told it."""
        return ForeseenAnswer() if self._answers is None else self._answers.foreseen(views)

    def behind(
        self, outcomes: Sequence[tuple[int, Sequence[int]]], known: set[int], unknown: set[int]
    ) -> None:
        """Adds the sequences for which it would have drafts, and those of which it is not known."""
        if self._answers is not None:
            self._answers.behind(outcomes, known, unknown)

    def missed(self) -> None:
        """The last step was waited for until the deadline."""
        if self._answers is None:
            return
        self._answers.missed()
        self._show_pace()

    def received(
        self, listener: Listener, response: proposer_pb2.ProposeResponse | None, now: float
    ) -> None:
        """One message of the stream that `listener` belongs to; None where it was no message."""
        self._record.now = now
        if listener is not self._listener:
            return
        if self._answers is None:
            self._take_welcome(response)
            return
        self._answers.receive(response, now)
        self._show_pace()
        if self._answers.flooding:
            self._leave(
                LinkState.QUARANTINED,
                "sent far more messages than were asked for",
                self._quarantine.next_delay(),
            )
        elif self._answers.answered:
            self._reconnect.reset()

    def closed(self, listener: Listener, code: str, detail: str, now: float) -> None:
        """The stream of `listener` is over."""
        self._record.now = now
        if listener is not self._listener:
            return
        reason = f"{code}: {detail}" if detail else code
        if self._answers is None and code in _REFUSALS:
            self._leave(LinkState.REFUSED, reason, REFUSED_RETRY_S)
        else:
            self._lost(reason)

    def shutdown(self) -> None:
        """End the stream; nothing is connected again unless `tick` is called."""
        self._drop_stream()

    def state(self) -> ProposerState:
        record = self._record
        return ProposerState(
            name=self.name,
            method=self._limits.method if self._limits is not None else "",
            address=self.address,
            state=self._state,
            detail=self._detail,
            dropped=dict(record.dropped),
            unserved=dict(record.unserved),
            draft_blocks=record.draft_blocks,
            lookahead_hits=record.lookahead_hits,
            lookahead_misses=record.lookahead_misses,
            lookahead_none=record.lookahead_none,
            lookahead_late=record.lookahead_late,
            reconnects=max(0, record.welcomes - 1),
            faults=record.faults,
            wait_count=record.waits.count,
            wait_sum_ms=record.waits.sum_ms,
            wait_counts=tuple(record.waits.counts),
        )

    def _connect(self, now: float) -> None:
        self._connected_at = now
        self._listener = self._make_listener(self)
        try:
            self._stream = self._transport.connect(self.address, self._listener)
        except RuntimeError as error:  # No thread to be had now; there may be one later.
            self._lost(str(error))
            return
        self._stream.send(self._hello_bytes)

    def _take_welcome(self, response: proposer_pb2.ProposeResponse | None) -> None:
        if response is None or response.WhichOneof("message") != "welcome":
            self._leave(LinkState.REFUSED, "its first message is no welcome", REFUSED_RETRY_S)
            return
        try:
            limits = check_welcome(
                response.welcome.capabilities, self._hello, lookahead=self._lookahead
            )
            if self._expected is not None:
                self._expected.check(response.welcome.capabilities)
        except HandshakeError as error:
            self._leave(LinkState.REFUSED, str(error), REFUSED_RETRY_S)
            return
        self.name = self._choose_name(self, limits.name)
        self._record.subject = f"{self.name} ({self.address})"
        self._limits = limits
        self._record.welcomes += 1
        self._pace = Pace(self._deadline_s)
        self._answers = ProposerAnswers(
            limits=limits,
            name=self.name,
            vocabulary_size=self._hello.vocabulary_size,
            mirrors=Mirrors(limits, self.name, self._epochs, self._record),
            pace=self._pace,
            record=self._record,
        )
        self._state = LinkState.CONNECTED
        self._detail = ""
        _logger.info("proposer %s: connected", self._record.subject)

    def _show_pace(self) -> None:
        if self._pace.slow and self._state is LinkState.CONNECTED:
            self._state = LinkState.SLOW
            self._detail = (
                f"missed the draft deadline of {self._deadline_s * 1e3:g} ms several times in a row"
            )
            self._record.warn("slow", self._detail)
        elif not self._pace.slow and self._state is LinkState.SLOW:
            self._state = LinkState.CONNECTED
            self._detail = ""
            _logger.info("proposer %s: answers in time again", self._record.subject)

    def _lost(self, reason: str) -> None:
        self._leave(LinkState.CONNECTING, reason, self._reconnect.next_delay())

    def _leave(self, state: LinkState, reason: str, delay: float) -> None:
        self._drop_stream()
        self._state = state
        self._detail = reason
        self._retry_at = self._record.now + delay
        self._record.warn("not reachable" if state is LinkState.CONNECTING else state.value, reason)

    def _drop_stream(self) -> None:
        stream = self._stream
        self._stream = None
        self._listener = None
        self._answers = None
        if stream is not None:
            stream.close()
