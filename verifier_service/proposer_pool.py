"""All proposers of one verifier as a single source of drafts; knows no message's content.

The engine's thread sends and collects; streams' threads bring answers; a thread of the pool's own
reconnects. One lock guards it all, and nothing is done under it that could wait.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Sequence

from outrider.addresses import parse_target
from outrider.errors import InputError
from outrider.transport import Clock, SystemClock, Transport
from verifier_service.messages import PREDICTION, DraftBlock, Expected, Foreseen, SequenceView
from verifier_service.proposer_answers import parse
from verifier_service.proposer_client import ProposerClient
from verifier_service.proposer_expectation import ExpectedProposer
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_state import ProposerState

CLOSE_TIMEOUT_S = 1.0
_LONGEST_NAP_S = 1.0
# Whatever becomes of the step that is planned meanwhile.
_LONGEST_HUSH_S = 0.005


class ProposerPool:
    """A `DraftSource` over any number of proposers.

    `addresses` are `unix:PATH`, `HOST:PORT`, or `dns:HOST:PORT` for one of the proposers behind a
    name, each once; `draft_deadline_s` is the longest a step waits, counted from its `send`: for a
    proposer that has always answered far sooner it is less (`Pace`).
    `expected`, where given, holds what each address must turn out to be, in their order. Without a
    `transport` it speaks gRPC. With `maintain` False no thread is started and the caller calls
    `tick` (tests with a virtual clock).
    Raises InputError for a bad address, ValueError for a bad deadline; connecting happens in the
    background.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: HelloParameters,
        draft_deadline_s: float,
        *,
        expected: Sequence[ExpectedProposer] = (),
        transport: Transport | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        maintain: bool = True,
    ) -> None:
        dialled = [parse_target(address, "proposers") for address in addresses]
        for address in dialled:
            if dialled.count(address) > 1:
                raise InputError(f"proposers: {address!r} is given twice; give each once")
        if expected and len(expected) != len(dialled):
            raise ValueError(f"{len(expected)} expected proposers for {len(dialled)} addresses")
        if not 0 < draft_deadline_s < float("inf"):
            raise ValueError(f"draft_deadline_s={draft_deadline_s}; a positive number is needed")
        self._deadline_s = draft_deadline_s
        self._clock = clock or SystemClock()
        self._transport = transport or GrpcTransport()
        # Re-entrant: an in-process transport delivers on the waiting thread.
        self._condition = threading.Condition(threading.RLock())
        # Set while messages are read as they come.
        self._listening = threading.Event()
        self._listening.set()
        self._wake = threading.Event()
        self._step_ids = itertools.count(1)
        self._sent_at = 0.0
        self._ended = False
        self._clients = [
            ProposerClient(
                address,
                hello=hello,
                draft_deadline_s=draft_deadline_s,
                transport=self._transport,
                choose_name=self._choose_name,
                listener=lambda client: _Listener(self, client),
                rng=rng or random.Random(),
                expected=expected[index] if expected else None,
            )
            for index, address in enumerate(dialled)
        ]
        self._maintainer: threading.Thread | None = None
        if maintain and self._clients:
            self._maintainer = threading.Thread(
                target=self._maintain, name="proposer-pool", daemon=True
            )
            self._maintainer.start()

    @property
    def looks_ahead(self) -> bool:
        """Whether any proposer that is connected does, or none is."""
        known = [client.looks_ahead for client in self._clients]
        return any(known) or not any(found is False for found in known)

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        """Tell all proposers what became true; one message each. `closed`: (id, finished)."""
        self.listen()
        with self._condition:
            if self._ended:
                return
            step_id = next(self._step_ids)
            self._sent_at = self._clock.now()
            for client in self._clients:
                client.send(views, closed, step_id, self._sent_at)

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen:
        """What all would answer to these views, as far as look-ahead has told it already."""
        drafts: dict[int, list[DraftBlock]] = {}
        stopgaps: dict[int, list[DraftBlock]] = {}
        unknown: set[int] = set()
        with self._condition:
            for client in self._clients:
                answer = client.foreseen(views)
                unknown |= answer.unknown
                for sequence_id, block in answer.blocks.items():
                    drafts.setdefault(sequence_id, []).append(block)
                for sequence_id, block in answer.stopgaps.items():
                    stopgaps.setdefault(sequence_id, []).append(block)
        return Foreseen(drafts, len(unknown), stopgaps)

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        """Blocks that answer the last `send`, by sequence, in the order of the addresses.

        Returns as soon as every proposer that is worth waiting for has answered, and without `wait`
        at once.
        """
        if wait:
            self.listen()
        with self._condition:
            given_up: list[ProposerClient] = []
            while wait and (
                awaited := [c for c in self._clients if c.awaited and c not in given_up]
            ):
                now = self._clock.now()
                left = {client: self._sent_at + client.patience_s - now for client in awaited}
                overdue = [client for client in awaited if left[client] <= 0]
                for client in overdue:
                    client.missed()
                given_up += overdue
                if not overdue:
                    self._clock.wait(self._condition, min(left.values()))
            drafts: dict[int, list[DraftBlock]] = {}
            for client in self._clients:
                for sequence_id, block in client.collect(waited=wait).items():
                    drafts.setdefault(sequence_id, []).append(block)
            return drafts

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected:
        """See `DraftSource.behind`."""
        known: set[int] = set()
        unknown: set[int] = set()
        with self._condition:
            for client in self._clients:
                client.behind(outcomes, known, unknown)
        return Expected(len(known), len(unknown - known))

    def hush(self) -> None:
        """See `DraftSource.hush`; for 5 ms at most."""
        self._listening.clear()

    def listen(self) -> None:
        """See `DraftSource.listen`."""
        if not self._listening.is_set():
            self._listening.set()

    def states(self) -> list[ProposerState]:
        """Each proposer at this moment, in the order of the addresses."""
        with self._condition:
            return [client.state() for client in self._clients]

    def tick(self) -> float:
        """Connect and time out what is due; returns when to look again, on the pool's clock."""
        with self._condition:
            now = self._clock.now()
            if self._ended:
                return now + _LONGEST_NAP_S
            return min((client.tick(now) for client in self._clients), default=now + _LONGEST_NAP_S)

    def close(self) -> None:
        """End all streams and threads within a second. Idempotent; later calls do nothing."""
        self.listen()
        with self._condition:
            self._ended = True
            for client in self._clients:
                client.shutdown()
            self._condition.notify_all()
        self._wake.set()
        self._transport.close(CLOSE_TIMEOUT_S)
        if self._maintainer is not None:
            self._maintainer.join(CLOSE_TIMEOUT_S)

    def _choose_name(self, client: ProposerClient, advertised: str) -> str:
        taken = {other.name for other in self._clients if other is not client} | {PREDICTION}
        candidates = itertools.chain(
            [client.name] if re.fullmatch(re.escape(advertised) + r"(-\d+)?", client.name) else [],
            [advertised],
            (f"{advertised}-{number}" for number in itertools.count(2)),
        )
        return next(name for name in candidates if name not in taken)

    def _maintain(self) -> None:
        while not self._ended:
            nap = self.tick() - self._clock.now()
            self._wake.wait(min(_LONGEST_NAP_S, max(0.0, nap)))
            self._wake.clear()


class _Listener:
    """Brings one stream's events to its client, under the pool's lock."""

    def __init__(self, pool: ProposerPool, client: ProposerClient) -> None:
        self._pool = pool
        self._client = client

    def received(self, data: bytes) -> None:
        pool = self._pool
        pool._listening.wait(_LONGEST_HUSH_S)
        response = parse(data)
        with pool._condition:
            if pool._ended:
                return
            self._client.received(self, response, pool._clock.now())
            # Waking the engine for half of the answers would only cost it a switch.
            if not any(client.awaited for client in pool._clients):
                pool._condition.notify_all()

    def closed(self, code: str, detail: str) -> None:
        pool = self._pool
        with pool._condition:
            if pool._ended:
                return
            self._client.closed(self, code, detail, pool._clock.now())
            pool._condition.notify_all()
        pool._wake.set()
