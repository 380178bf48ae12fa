"""The proposer's RPCs: streams of verifiers, each with a session of its own.

Knows gRPC statuses and the order of messages; what a step means is the session's business. An
answer is never delayed by look-ahead: that runs between answers and stops when a step arrives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import grpc.aio
from speculation.v1 import proposer_pb2, proposer_pb2_grpc, types_pb2

from proposer_service.handshake import HelloRefusedError, check_hello
from proposer_service.lookahead import LookaheadRound
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.batch import BatchProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from proposer_service.streams import Context, Stream

if TYPE_CHECKING:
    from proposer_service.tracing import SequenceTracer

logger = logging.getLogger(__name__)

# Look-ahead lets the event loop see new messages at least this often.
SLICE_NS = 300_000
# The loop hears of an event, the reading that awaits it goes on, and only then can be asked.
_TURNS_OF_THE_LOOP = 3


class ProposerServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Serves one proposer to any number of verifiers."""

    def __init__(
        self,
        proposer: Proposer,
        capabilities: proposer_pb2.Capabilities,
        tracer: SequenceTracer | None = None,
    ) -> None:
        self._proposer = proposer
        # Only work that comes in pieces can be left for a moment.
        self._batching = proposer if isinstance(proposer, BatchProposer) else None
        self._tracer = tracer
        self._capabilities = capabilities
        self._numbers = sequence_numbers()
        self._streams: dict[str, Stream] = {}
        self._sessions: set[Session] = set()
        self._draining = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Make the server answer with these RPCs."""
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def GetCapabilities(
        self, request: proposer_pb2.GetCapabilitiesRequest, context: Any
    ) -> proposer_pb2.GetCapabilitiesResponse:
        return proposer_pb2.GetCapabilitiesResponse(
            capabilities=self._capabilities,
            open_streams=len(self._sessions),
            open_sequences=sum(len(session) for session in self._sessions),
        )

    async def Propose(self, request_iterator: Any, context: Context) -> None:
        stream = Stream(context)
        hello = await self._handshake(stream, context)
        if hello is None:
            return
        verifier = hello.verifier_instance_id
        before = self._streams.get(verifier)
        if before is not None:
            # The verifier has reconnected before its old stream was seen to be dead.
            before.end(grpc.StatusCode.ABORTED, "a newer stream of this verifier took over")
        self._streams[verifier] = stream
        session = self._new_session(hello)
        self._sessions.add(session)
        logger.info("verifier %s connected", verifier)
        capabilities = self._capabilities_for(hello)
        try:
            await context.write(
                proposer_pb2.ProposeResponse(
                    welcome=proposer_pb2.Welcome(capabilities=capabilities)
                )
            )
            lookahead = capabilities.lookahead and not hello.no_lookahead
            await self._converse(stream, session, context, lookahead)
        finally:
            session.close()
            self._sessions.remove(session)
            if self._streams.get(verifier) is stream:
                del self._streams[verifier]
            logger.info(
                "verifier %s gone, contradictions: %s", verifier, dict(session.faults) or "none"
            )

    def drain(self) -> None:
        """End all streams once their current answer is sent, and take no new ones."""
        self._draining = True
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, "the proposer is shutting down")

    def check(self, hello: proposer_pb2.Hello) -> None:
        """Raises HelloRefusedError for a verifier that cannot be served."""
        check_hello(hello, self._capabilities)
        if self._batching is not None:
            reason = self._batching.refusal(coupled=_is_coupled(hello), takes_q=_takes_q(hello))
            if reason:
                raise HelloRefusedError(reason)

    async def send(self, context: Context, message: proposer_pb2.ProposeResponse) -> None:
        """Send one answer or look-ahead; where a test's proposer misbehaves."""
        await context.write(message)

    async def _handshake(self, stream: Stream, context: Context) -> proposer_pb2.Hello | None:
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the proposer is shutting down")
        request = await stream.next()
        if request is None:
            return None
        if request.WhichOneof("message") != "hello":
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "the first message of a stream must be a hello"
            )
        try:
            self.check(request.hello)
        except HelloRefusedError as error:
            logger.warning("verifier refused: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return request.hello

    def _capabilities_for(self, hello: proposer_pb2.Hello) -> proposer_pb2.Capabilities:
        """What is said to one verifier: on the target's own card nothing is prepared ahead."""
        own = "" if self._batching is None else self._batching.device_uuid
        if not (own and own == hello.device_uuid and self._capabilities.lookahead):
            return self._capabilities
        logger.info("look-ahead is off: it would take the card that the target runs on")
        shared = proposer_pb2.Capabilities()
        shared.CopyFrom(self._capabilities)
        shared.lookahead = False
        return shared

    def _new_session(self, hello: proposer_pb2.Hello) -> Session:
        limits = [x for x in (hello.context_limit, self._capabilities.context_limit) if x]
        return Session(
            self._proposer,
            self._numbers,
            SequenceLimits(
                max_sequences=self._capabilities.max_sequences,
                context_limit=min(limits, default=0),
                vocabulary_size=hello.vocabulary_size,
                # The same ids mean other texts in another vocabulary.
                tenant=f"{hello.vocabulary_fingerprint}/{hello.vocabulary_size}",
                coupled=_is_coupled(hello),
                takes_q=_takes_q(hello),
            ),
            hello.max_draft_tokens,
            hello.verifier_instance_id,
            self._tracer,
        )

    async def _converse(
        self, stream: Stream, session: Session, context: Context, lookahead: bool
    ) -> None:
        while (request := await stream.next()) is not None:
            kind = request.WhichOneof("message")
            if kind == "hello":
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, "a stream has one hello, at its start"
                )
            if kind != "step":
                # Of a newer protocol: it names no sequence, so it harms none.
                continue
            # gRPC's thread sends the answer while the next round is prepared.
            sending = await self._begin_to_send(context, await self._answer(session, request.step))
            stream.read_ahead()
            try:
                self._proposer.settle()
                if lookahead:
                    await self.look_ahead(stream, session, context, sending)
                if self._batching is not None:
                    await _catch_up(self._batching, stream)
            finally:
                await sending

    async def _answer(
        self, session: Session, step: proposer_pb2.Step
    ) -> proposer_pb2.ProposeResponse:
        """The answer to a step; health checks and other streams have their turn between pieces."""
        if self._batching is None:
            return session.answer(step)
        pieces = session.answering(step)
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                response: proposer_pb2.ProposeResponse = done.value
                return response
            await asyncio.sleep(0)

    async def look_ahead(
        self,
        stream: Stream,
        session: Session,
        context: Context,
        sending: asyncio.Future[None] | None = None,
    ) -> None:
        """Send blocks for the round in flight as they are made, until a step arrives.

        `sending` is a message on its way: a stream writes one at a time, and each to its end.
        """
        prepared = session.lookahead()
        begin = 0
        try:
            for _ in prepared.prepare():
                now = time.perf_counter_ns()
                if now - begin > SLICE_NS:
                    await _look_for_messages()
                    if stream.arrived:
                        return
                    begin = time.perf_counter_ns()
                if prepared.full:
                    sending = await self._send_ahead(prepared, context, sending)
            if not stream.arrived:
                sending = await self._send_ahead(prepared, context, sending)
        finally:
            if sending is not None:
                await sending

    async def _send_ahead(
        self, prepared: LookaheadRound, context: Context, sending: asyncio.Future[None] | None
    ) -> asyncio.Future[None] | None:
        """Begin to send what was prepared, once `sending` is sent; what is now on its way."""
        if sending is not None:
            await sending
        message = prepared.message()
        return None if message is None else await self._begin_to_send(context, message)

    async def _begin_to_send(
        self, context: Context, message: proposer_pb2.ProposeResponse
    ) -> asyncio.Future[None]:
        sending = asyncio.ensure_future(self.send(context, message))
        await asyncio.sleep(0)
        return sending


async def _catch_up(proposer: BatchProposer, stream: Stream) -> None:
    """Do what no answer waited for until a step arrives; some of it even if one has."""
    for _ in proposer.catch_up():
        await _look_for_messages()
        if stream.arrived:
            return


def _is_coupled(hello: proposer_pb2.Hello) -> bool:
    return hello.rejection_rule == types_pb2.REJECTION_RULE_COUPLED


def _takes_q(hello: proposer_pb2.Hello) -> bool:
    return types_pb2.Q_FORM_SPARSE in hello.accepted_q_forms


async def _look_for_messages() -> None:
    """Let the event loop go through all that stands between a message and who awaits it."""
    for _ in range(_TURNS_OF_THE_LOOP):
        await asyncio.sleep(0)
