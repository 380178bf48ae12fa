"""The verifier's real proposer client and real proposers, joined by a network without time.

What travels are the bytes of the protocol; the far end is a real session around a real method.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from speculation.v1 import proposer_pb2, types_pb2

from outrider.fake_transport import FakeNetwork, Peer, PeerFactory
from proposer_service.handshake import HelloRefusedError, check_hello, describe
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.batch import BatchProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from verifier_service.messages import (
    DraftBlock,
    Expected,
    Foreseen,
    RejectionRule,
    SequenceView,
)
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import ProposerState

ADDRESS = "unix:proposer"
DEADLINE_S = 0.010


class ProposerServer:
    """A process that serves `method`; one stream at a time. A `PeerFactory`.

    Servers that share a method share `numbers`, the names of sequences there.
    """

    def __init__(
        self,
        method: Proposer,
        *,
        name: str = "ngram",
        numbers: Iterator[int] | None = None,
        **limits: object,
    ) -> None:
        fields: dict[str, object] = {
            "max_sequences": 64,
            "max_draft_tokens": 16,
            "context_limit": 0,
            "lookahead": True,
            **limits,
        }
        self.capabilities = describe(instance_id="1", name=name, method=name, **fields)  # type: ignore[arg-type]
        self.method = method
        self.steps: list[proposer_pb2.Step] = []
        self.session: Session | None = None
        self._numbers = numbers or sequence_numbers()

    def __call__(self, reply: Callable[[bytes], None], end: Callable[[str, str], None]) -> Peer:
        self._reply = reply
        self._end = end
        return self

    def received(self, data: bytes) -> None:
        request = proposer_pb2.ProposeRequest.FromString(data)
        if request.HasField("hello"):
            self._greet(request.hello)
            return
        assert self.session is not None
        self.steps.append(request.step)
        self._say(self.session.answer(request.step))
        self.method.settle()
        if self.capabilities.lookahead:
            ahead = self.session.lookahead()
            for _ in ahead.prepare():
                pass
            message = ahead.message()
            if message is not None:
                self._say(message)
        if isinstance(self.method, BatchProposer):
            for _ in self.method.catch_up():
                pass

    def closed(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def _greet(self, hello: proposer_pb2.Hello) -> None:
        try:
            check_hello(hello, self.capabilities)
        except HelloRefusedError as error:
            self._end("FAILED_PRECONDITION", str(error))
            return
        limits = SequenceLimits(
            max_sequences=self.capabilities.max_sequences,
            context_limit=self.capabilities.context_limit,
            vocabulary_size=hello.vocabulary_size,
            coupled=hello.rejection_rule == types_pb2.REJECTION_RULE_COUPLED,
            takes_q=types_pb2.Q_FORM_SPARSE in hello.accepted_q_forms,
        )
        self.session = Session(
            self.method, self._numbers, limits, hello.max_draft_tokens, hello.verifier_instance_id
        )
        welcome = proposer_pb2.Welcome(capabilities=self.capabilities)
        self._say(proposer_pb2.ProposeResponse(welcome=welcome))

    def _say(self, response: proposer_pb2.ProposeResponse) -> None:
        self._reply(response.SerializeToString())


class Wire:
    """A `DraftSource`: a real pool, and proposers behind addresses."""

    def __init__(
        self,
        *servers: PeerFactory,
        k: int = 4,
        vocabulary_size: int = 4,
        rule: RejectionRule | None = None,
    ) -> None:
        self.network = FakeNetwork()
        addresses = [f"{ADDRESS}{i or ''}" for i in range(len(servers))]
        for address, server in zip(addresses, servers, strict=True):
            self.network.serve(address, server)
        self.pool = ProposerPool(
            addresses,
            HelloParameters(
                "v", "00ff", vocabulary_size, (), 64, max(k, 1), 4096, rejection_rule=rule
            ),
            DEADLINE_S,
            transport=self.network,
            clock=self.network,
            rng=random.Random(0),
            maintain=False,
        )
        self.settle()

    def settle(self, seconds: float = 0.0) -> None:
        """Let virtual time pass as the pool's own thread would see it."""
        until = self.network.now() + seconds
        while True:
            self.pool.tick()
            self.network.advance(0.0)
            left = until - self.network.now()
            if left <= 1e-9:
                return
            self.network.advance(min(0.05, left))

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.settle()
        self.pool.send(views, closed)

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        return self.pool.collect(wait=wait)

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        return self.pool.foreseen(views)

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return self.pool.behind(outcomes)

    @property
    def looks_ahead(self) -> bool:
        return self.pool.looks_ahead

    def hush(self) -> None:
        self.pool.hush()

    def listen(self) -> None:
        self.pool.listen()

    def close(self) -> None:
        self.pool.close()

    def state(self, index: int = 0) -> ProposerState:
        """A proposer as the verifier sees it, once everything in flight has arrived."""
        self.settle()
        return self.pool.states()[index]
