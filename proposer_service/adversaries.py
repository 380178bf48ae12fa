"""Proposers that misbehave on purpose, for tests of whoever listens to them; no public method.

Two kinds: methods whose drafts are bad, and servers that spoil the messages of a sound method. All
are deterministic functions of what they were told and a seed, but for the clock of `DELAYED`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

import grpc
import grpc.aio
from speculation.v1 import proposer_pb2

from proposer_service.handshake import describe
from proposer_service.proposers.base import Draft, Outcome, Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.server import RunningServer, serve_servicer
from proposer_service.servicer import ProposerServicer
from proposer_service.streams import Context

Message = proposer_pb2.ProposeResponse | bytes
# What is sent in place of one message.
Spoil = Callable[[proposer_pb2.ProposeResponse], Sequence[Message]]

_FLOOD = 200


class Kind(StrEnum):
    """How an adversary misbehaves."""

    RANDOM = "random"
    ALWAYS_WRONG = "always_wrong"
    OUT_OF_RANGE = "out_of_range"
    DELAYED = "delayed"
    SILENT = "silent"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    STALE_EPOCH = "stale_epoch"
    STALE_BASE = "stale_base"
    WRONG_LENGTH = "wrong_length"
    FLOOD = "flood"
    GARBAGE = "garbage"
    OTHER_VOCABULARY = "other_vocabulary"
    FALSE_CLAIM = "false_claim"


class BadProposer(Proposer):
    """Drafts `guess(text, k)`, with the boldest confidences; look-ahead says the same."""

    def __init__(self, guess: Callable[[Sequence[int], int], Sequence[int]]) -> None:
        self._guess = guess
        self._texts: dict[int, list[int]] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        self._texts[sequence_id] = list(ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._texts[sequence_id].extend(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        return self._draft(self._texts[sequence_id], max_draft_tokens)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        text = self._texts[sequence_id]
        ends = [(*draft.ids[:kept], text[-1]) for kept in (0, len(draft.ids))]
        return [Outcome(ids, self._draft([*text, *ids], max_draft_tokens)) for ids in ends]

    def close(self, sequence_id: int, finished: bool) -> None:
        del self._texts[sequence_id]

    def _draft(self, text: Sequence[int], max_draft_tokens: int) -> Draft:
        ids = tuple(self._guess(text, max_draft_tokens))
        return Draft(ids, match_length=len(text), confidences=(1.0,) * len(ids))


def random_ids(vocabulary_size: int, seed: int = 0) -> BadProposer:
    """Ids of the text itself and of the whole vocabulary, drawn anew for each text."""

    def guess(text: Sequence[int], k: int) -> Sequence[int]:
        rng = Random(f"{seed} {len(text)} {list(text[-8:])}")
        return [
            rng.choice(text) if rng.random() < 0.5 else rng.randrange(vocabulary_size)
            for _ in range(k)
        ]

    return BadProposer(guess)


def always_wrong(
    truth: Callable[[Sequence[int], int], Sequence[int]], vocabulary_size: int
) -> BadProposer:
    """Each id is one above the true one; `truth(text, k)` is what the target will say."""

    def guess(text: Sequence[int], k: int) -> Sequence[int]:
        return [(token + 1) % vocabulary_size for token in truth(text, k)]

    return BadProposer(guess)


def out_of_range(vocabulary_size: int) -> BadProposer:
    """One of the k ids is negative or beyond the vocabulary, in turn."""

    def guess(text: Sequence[int], k: int) -> Sequence[int]:
        ids = [text[-1]] * k
        ids[len(text) % k] = -1 if len(text) % 2 else vocabulary_size
        return ids

    return BadProposer(guess)


class SpoilingServicer(ProposerServicer):
    """Sends what `spoil` makes of each message, `delay_seconds` late."""

    def __init__(
        self,
        proposer: Proposer,
        capabilities: proposer_pb2.Capabilities,
        spoil: Spoil,
        delay_seconds: float = 0.0,
    ) -> None:
        super().__init__(proposer, capabilities)
        self._spoil = spoil
        self._delay_seconds = delay_seconds

    def add_to(self, server: grpc.aio.Server) -> None:
        """As the sound one, but answers may be bytes that are no message."""
        handlers = {
            "GetCapabilities": grpc.unary_unary_rpc_method_handler(
                self.GetCapabilities,
                request_deserializer=proposer_pb2.GetCapabilitiesRequest.FromString,
                response_serializer=_serialize,
            ),
            "Propose": grpc.stream_stream_rpc_method_handler(
                self.Propose,
                request_deserializer=proposer_pb2.ProposeRequest.FromString,
                response_serializer=_serialize,
            ),
        }
        service = proposer_pb2.DESCRIPTOR.services_by_name["ProposerService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def check(self, hello: proposer_pb2.Hello) -> None:
        """Takes any verifier, so that it is the verifier who has to refuse."""

    async def send(self, context: Context, message: proposer_pb2.ProposeResponse) -> None:
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        for spoiled in self._spoil(message):
            await context.write(spoiled)  # type: ignore[arg-type]


def _serialize(message: proposer_pb2.GetCapabilitiesResponse | Message) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def spoil_for(kind: Kind) -> Spoil:
    """How servers of this kind spoil messages; kinds that do not send each one as it is."""
    if kind is Kind.REORDERED:
        return _Reorder()
    return {
        Kind.SILENT: lambda message: (),
        Kind.DUPLICATED: lambda message: (message, message),
        Kind.STALE_EPOCH: _with_blocks(lambda block: _shift(block, "epoch")),
        Kind.STALE_BASE: _with_blocks(lambda block: _shift(block, "base_length")),
        Kind.WRONG_LENGTH: _with_blocks(lambda block: block.token_ids.extend([1] * 300)),
        Kind.FLOOD: lambda message: (message,) * _FLOOD,
        Kind.FALSE_CLAIM: _claim_nothing,
        Kind.GARBAGE: lambda message: (b"\xff\xfe no message", message.SerializeToString()[:-3]),
    }.get(kind, lambda message: (message,))


class _Reorder:
    """Sends each message after the one that follows it."""

    def __init__(self) -> None:
        self._held: list[proposer_pb2.ProposeResponse] = []

    def __call__(self, message: proposer_pb2.ProposeResponse) -> Sequence[Message]:
        self._held.insert(0, message)
        if len(self._held) < 2:
            return ()
        ready, self._held = self._held, []
        return ready


def _claim_nothing(message: proposer_pb2.ProposeResponse) -> Sequence[Message]:
    """Look-ahead that says of each sequence that no draft will come; it answers all the same."""
    spoiled = proposer_pb2.ProposeResponse()
    spoiled.CopyFrom(message)
    if spoiled.HasField("lookahead"):
        del spoiled.lookahead.blocks[:]
    for claim in spoiled.lookahead.complete:
        del claim.accepted[:]
        del claim.token_ids[:]
    return (spoiled,)


def _with_blocks(change: Callable[[proposer_pb2.DraftBlock], None]) -> Spoil:
    def spoil(message: proposer_pb2.ProposeResponse) -> Sequence[Message]:
        spoiled = proposer_pb2.ProposeResponse()
        spoiled.CopyFrom(message)
        for block in spoiled.drafts.blocks:
            change(block)
        for outcome in spoiled.lookahead.blocks:
            change(outcome.block)
        return (spoiled,)

    return spoil


def _shift(block: proposer_pb2.DraftBlock, field: str) -> None:
    value = getattr(block, field)
    setattr(block, field, value - 1 if value else value + 1)


async def start_adversary(
    kind: Kind | str,
    address: str,
    *,
    vocabulary_size: int = 49_152,
    seed: int = 0,
    delay_seconds: float = 0.1,
    max_draft_tokens: int = 32,
    max_sequences: int = 256,
    truth: Callable[[Sequence[int], int], Sequence[int]] | None = None,
) -> RunningServer:
    """Serve an adversary at `unix:PATH` or `HOST:PORT`; the caller stops it.

    `vocabulary_size` is the target's, `delay_seconds` how late `DELAYED` is with each message;
    `truth` is what `ALWAYS_WRONG` contradicts, by default that the target says the last id again.
    """
    kind = Kind(kind)
    proposer: Proposer = NgramProposer(1, 3)
    if kind is Kind.RANDOM:
        proposer = random_ids(vocabulary_size, seed)
    elif kind is Kind.ALWAYS_WRONG:
        proposer = always_wrong(truth or (lambda text, k: [text[-1]] * k), vocabulary_size)
    elif kind is Kind.OUT_OF_RANGE:
        proposer = out_of_range(vocabulary_size)
    elif kind is Kind.FALSE_CLAIM:
        # Where windows may be a single token, nothing is claimed.
        proposer = NgramProposer(2, 3)
    capabilities = describe(
        instance_id=f"{kind}-{seed}",
        name=kind.value,
        method="ngram",
        max_sequences=max_sequences,
        max_draft_tokens=max_draft_tokens,
        context_limit=0,
        lookahead=True,
    )
    if kind is Kind.OTHER_VOCABULARY:
        capabilities.vocabulary_fingerprint = "of-another-tokenizer"
        capabilities.vocabulary_size = vocabulary_size + 1
    servicer = SpoilingServicer(
        proposer,
        capabilities,
        spoil_for(kind),
        delay_seconds if kind is Kind.DELAYED else 0.0,
    )
    return await serve_servicer(servicer, address, drain_seconds=0.1)
