"""What the edge and the engine's process say to each other, and how outputs become bytes.

Knows messages; knows no sockets, threads or processes. Both sides are the same program on the same
machine, joined by a socket that nobody else has, so everything is pickled. Outputs are many and
small: their fields travel as plain tuples, since pickling the dataclasses takes six times as long.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.acceptance import Round
from verifier_service.attaching import Target
from verifier_service.core import CoreStats
from verifier_service.messages import FinishReason, ModelInfo, Output, Request, TokenLogprob
from verifier_service.proposer_state import ProposerState
from verifier_service.settings import VerifierSettings

_PROTOCOL = 5
# Behind a request's number: everything of a round whose output says no more than that.
_Packed = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what to load and serve. `build` names a `build_core`, MODULE:FUNCTION."""

    settings: VerifierSettings
    target: Target
    build: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The core runs."""

    model: ModelInfo
    moment: Moment


@dataclass(frozen=True, slots=True)
class NotReady:
    """The core cannot run: `refused` where the command asked for something wrong."""

    message: str
    refused: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """A request under a number that no other request of this channel has."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """See `EngineCore.abort`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Look:
    """Asks for a moment now; its `looked` is at least this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """See `EngineCore.shutdown`; the process ends when all is told."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The core and its proposers at one moment.

    `taken` of all submitted requests have reached the scheduler, or never will; `looked` is the
    number of the last `Look` that this answers.
    """

    stats: CoreStats
    proposers: tuple[ProposerState, ...] = ()
    failure: str = ""
    taken: int = 0
    looked: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Outputs by request number, in order, and the moment behind them where one is told."""

    outputs: Sequence[tuple[int, Output]] = ()
    moment: Moment | None = None


def encode(message: object) -> bytes:
    """Any message but a `Report`."""
    return pickle.dumps(message, _PROTOCOL)


def decode(data: bytes) -> Any:
    """What `encode` was given."""
    return pickle.loads(data)


def encode_report(report: Report) -> bytes:
    """A report as bytes."""
    return pickle.dumps((pack(report.outputs), report.moment), _PROTOCOL)


def decode_report(data: bytes) -> Report:
    """What `encode_report` was given."""
    packed, moment = pickle.loads(data)
    return Report(unpack(packed), moment)


def pack(outputs: Iterable[tuple[int, Output]]) -> list[_Packed]:
    """Outputs as tuples of plain values; what most rounds leave out is left out."""
    packed: list[_Packed] = []
    for number, output in outputs:
        told = output.round
        round_ = None if told is None else _pack_round(told)
        if _is_plain(output):
            packed.append((number, output.token_ids, round_, output.cached_prompt_tokens))
            continue
        reason = output.finish_reason
        packed.append(
            (
                number,
                output.token_ids,
                round_,
                output.cached_prompt_tokens,
                None if reason is None else reason.value,
                output.stop_token_id,
                output.error,
                output.refusal,
                output.queue_ns,
                _pack_logprobs(output.logprobs),
                _pack_logprobs(output.prompt_logprobs),
            )
        )
    return packed


def unpack(packed: Iterable[_Packed]) -> list[tuple[int, Output]]:
    """The outputs that `pack` was given."""
    outputs = []
    for number, token_ids, told, cached, *rest in packed:
        round_ = None if told is None else Round(*told)
        if not rest:
            outputs.append((number, Output(token_ids, round_, None, None, cached)))
            continue
        reason, stop, error, refusal, queue_ns, logprobs, prompt_logprobs = rest
        output = Output(
            token_ids,
            round_,
            None if reason is None else FinishReason(reason),
            stop,
            cached,
            error,
            refusal,
            queue_ns,
            tuple(TokenLogprob(*entry) for entry in logprobs),
            tuple(TokenLogprob(*entry) for entry in prompt_logprobs),
        )
        outputs.append((number, output))
    return outputs


def is_last(output: Output) -> bool:
    """Whether nothing follows this output of its request."""
    return output.finish_reason is not None or bool(output.error or output.refusal)


def _is_plain(output: Output) -> bool:
    """Whether all is said with its tokens, its round and what was cached."""
    if is_last(output) or output.stop_token_id is not None or output.queue_ns:
        return False
    return not output.logprobs and not output.prompt_logprobs


def _pack_round(told: Round) -> _Packed:
    """In the order of `Round`'s fields."""
    return (
        told.base,
        told.offered,
        told.drafted,
        told.accepted,
        told.emitted,
        told.proposer,
        told.off_reason,
        told.draft_wait_ns,
        told.verify_ns,
        told.lookahead_hit,
        told.draft_token_ids,
    )


def _pack_logprobs(entries: Sequence[TokenLogprob]) -> list[_Packed]:
    return [(entry.token_id, entry.logprob, entry.rank, entry.top) for entry in entries]
