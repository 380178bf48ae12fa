"""A running proposer over the traffic, dialled as a verifier dials it.

Knows the proposer protocol's client side; knows no costs. Each K follows each request as a sequence
of its own under a salt of its own, so that neither what another K accepted nor what the proposer
remembers of real requests shapes its drafts.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from speculation.v1 import proposer_pb2

from outrider.advise.methods import Replayed
from outrider.advise.replay import Cursor, Tally
from outrider.advise.spool import Spool, TrafficRequest
from outrider.credentials import PLAIN, Credentials, open_channel
from outrider.errors import InputError, OperationError
from outrider.transport import Transport
from verifier_service.messages import Sampling, SequenceView
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_mirror import OPEN_IDS_PER_STEP
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState

CONNECT_TIMEOUT_S = 10.0
# A slow proposer is measured by what it drafts, not by when.
ANSWER_TIMEOUT_S = 30.0
# Steps without an answer that a proposer may be sent while a long text is opened.
_OPENING_STEPS = 3


@dataclass(slots=True)
class _Lane:
    """One K on the request that is replayed now; `ids` are what the proposer was told."""

    sequence_id: int
    cursor: Cursor
    ids: list[int]
    told: int = 0


def ask_capabilities(address: str, credentials: Credentials = PLAIN) -> proposer_pb2.Capabilities:
    """What the proposer at `address` says of itself. Raises OperationError."""
    import grpc
    from speculation.v1 import proposer_pb2_grpc

    with open_channel(address, credentials) as channel:
        stub = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.GetCapabilities(
                proposer_pb2.GetCapabilitiesRequest(), timeout=CONNECT_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise OperationError(
                f"--live: no proposer answers at {address}: {error.code().name.lower()}: "
                f"{error.details()}"
            ) from error
    capabilities: proposer_pb2.Capabilities = answer.capabilities
    return capabilities


class LiveProposer:
    """One proposer and what it says of itself; `ks` rise, those it does not draft are left out.

    `hello` says which target the ids belong to; its K is set here.
    """

    def __init__(
        self,
        address: str,
        capabilities: proposer_pb2.Capabilities,
        hello: HelloParameters,
        ks: Sequence[int],
        *,
        transport: Transport | None = None,
    ) -> None:
        most = max(capabilities.max_draft_tokens, 1)
        self._ks = [k for k in ks if k <= most] or [most]
        self._address = address
        self._capabilities = capabilities
        hello = replace(hello, num_speculative_tokens=self._ks[-1])
        self._pool = ProposerPool([address], hello, ANSWER_TIMEOUT_S, transport=transport)
        self._limit = min(hello.context_limit, capabilities.context_limit or hello.context_limit)
        self._run = uuid.uuid4().hex
        self._next_id = 0
        self._closed: list[tuple[int, bool]] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Within the body the stream is open. Raises OperationError where it cannot be opened."""
        try:
            deadline = time.monotonic() + CONNECT_TIMEOUT_S
            while (state := self._pool.states()[0]).state is not LinkState.CONNECTED:
                if state.state is LinkState.REFUSED or time.monotonic() > deadline:
                    reason = state.detail or state.state.value
                    raise OperationError(f"--live: proposer at {self._address}: {reason}")
                time.sleep(0.01)
            yield
        finally:
            self._pool.close()

    def replay_all(self, traffic: Spool, report: Callable[[], None]) -> Replayed:
        """All of the traffic in the file's order; `report` is called behind each request.

        Raises OperationError where the proposer fails meanwhile, InputError for a request longer
        than the protocol can replay. Requests longer than its context limit get no drafts, as
        from a verifier.
        """
        tallies = [Tally(k) for k in self._ks]
        for request in traffic:
            length = len(request.prompt_ids) + len(request.output_ids)
            for group in self._groups(tallies, length):
                self._replay(group, request)
            report()
        if self._closed:
            self._pool.send([], self._take_closed())
        options = {key: json.loads(value) for key, value in self._capabilities.options.items()}
        return Replayed(
            name=f"{self._capabilities.name} (live)",
            method=self._capabilities.method,
            config=options,
            tallies=tuple(tallies),
            address=self._address,
        )

    def _groups(self, tallies: Sequence[Tally], length: int) -> Iterator[Sequence[Tally]]:
        """Those that one step may open together: a proposer takes so many ids in one."""
        if length > OPEN_IDS_PER_STEP * _OPENING_STEPS:
            raise InputError(
                f"--live: a request has {length} tokens; at most "
                f"{OPEN_IDS_PER_STEP * _OPENING_STEPS} can be replayed through the protocol"
            )
        at_once = min(OPEN_IDS_PER_STEP // length, self._capabilities.max_sequences)
        for begin in range(0, len(tallies), max(at_once, 1)):
            yield tallies[begin : begin + max(at_once, 1)]

    def _replay(self, tallies: Sequence[Tally], request: TrafficRequest) -> None:
        lanes = []
        for tally in tallies:
            self._next_id += 1
            lanes.append(_Lane(self._next_id, Cursor(request, tally), list(request.prompt_ids)))
        opened = False
        while asking := [lane for lane in lanes if self._decode_unasked(lane.cursor)]:
            if not opened:
                self._open(lanes, request)
                opened = True
            self._pool.send(
                [self._view(lane, request, lane.cursor.wanted) for lane in asking],
                self._take_closed(),
            )
            blocks = self._pool.collect()
            self._check()
            for lane in asking:
                offers = blocks.get(lane.sequence_id, [])
                lane.cursor.verify(offers[0].token_ids if offers else ())
        if opened:
            self._closed += [(lane.sequence_id, request.finished) for lane in lanes]

    def _open(self, lanes: Sequence[_Lane], request: TrafficRequest) -> None:
        """Tell the prompts while nothing is asked for, as a verifier does during prefill."""
        for _ in range(-(-len(request.prompt_ids) // OPEN_IDS_PER_STEP)):
            views = [self._view(lane, request, 0) for lane in lanes]
            self._pool.send(views, self._take_closed())

    def _decode_unasked(self, cursor: Cursor) -> bool:
        """Take the rounds that may have no drafts; whether one that may is left."""
        while cursor.live and not cursor.wanted:
            cursor.verify(())
        return cursor.live

    def _view(self, lane: _Lane, request: TrafficRequest, wanted: int) -> SequenceView:
        cursor = lane.cursor
        if wanted:
            lane.ids.extend(request.output_ids[lane.told : cursor.position])
            lane.told = cursor.position
        return SequenceView(
            sequence_id=lane.sequence_id,
            ids=lane.ids,
            prompt_length=len(request.prompt_ids),
            max_draft_tokens=wanted,
            sampling=Sampling(temperature=0.0),
            cache_salt=f"{self._run}-{cursor.tally.k}\0{request.salt}",
        )

    def _check(self) -> None:
        state = self._pool.states()[0]
        if state.state is not LinkState.CONNECTED or state.reconnects:
            raise OperationError(
                f"--live: proposer {state.name} at {self._address} went away or became slow while "
                f"the traffic was replayed ({state.detail or state.state.value}); start again"
            )
        if state.faults or state.dropped:
            raise OperationError(
                f"--live: proposer {state.name} at {self._address} contradicts the protocol: "
                f"{state.faults} sequences lost, blocks dropped: {state.dropped or 'none'}"
            )

    def _take_closed(self) -> list[tuple[int, bool]]:
        closed, self._closed = self._closed, []
        return closed
