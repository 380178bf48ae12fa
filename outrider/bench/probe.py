"""What a server can do, found out with its list of models and one short request.

Knows the signs by which servers are told apart; measures nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import httpx

from outrider.bench.client import Ask, RefusedError, Server, reason
from outrider.bench.drafts import DraftCounts
from outrider.bench.reading import Reading
from outrider.bench.samples import Sample
from outrider.config import nearest
from outrider.errors import InputError, OperationError

_PROBE_TOKENS: Final = 8
_RETRY_S: Final = 1.0


class Kind(StrEnum):
    """Whose server it is, as far as it matters here."""

    OUTRIDER = "outrider"
    VLLM = "vllm"
    OTHER = "other"


class DraftSource(StrEnum):
    """Where the figures of acceptance come from."""

    RESPONSES = "each response's metrics.speculative_decoding"
    COUNTERS = "the server's /metrics before and after, other traffic included"
    NONE = "nowhere: the server tells nothing of drafts"


@dataclass(frozen=True, slots=True)
class Profile:
    """One server's model and abilities. `running_usage`: it takes continuous_usage_stats."""

    model: str
    kind: Kind
    running_usage: bool
    drafts: DraftSource
    version: str = ""

    @property
    def takes_speculative_decoding(self) -> bool:
        """Whether a request may turn speculation off or change K."""
        return self.kind is Kind.OUTRIDER

    @property
    def takes_cache_salt(self) -> bool:
        return self.kind is not Kind.OTHER


async def wait_until_reachable(server: Server, timeout_s: float) -> None:
    """Returns as soon as the server lists models. Raises OperationError after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            await server.models()
        except OperationError:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(min(_RETRY_S, max(deadline - loop.time(), 0)))
        else:
            return


async def probe(server: Server, model: str | None, sample: Sample, ask: Ask) -> Profile:
    """The profile of `server` for `model`, or for the first model it serves.

    Raises InputError for a model that is not served, OperationError where the server refuses the
    kind of request that the run will send.
    """
    entries = await server.models()
    served = tuple(str(entry["id"]) for entry in entries)
    chosen = served[0] if model is None else model
    if chosen not in served:
        raise InputError(
            f"--model: {chosen!r} is not served at {server.url}; it serves {', '.join(served)}"
            f"{nearest(chosen, served)}"
        )
    short = replace(sample, output_len=min(sample.output_len or ask.output_len, _PROBE_TOKENS))
    asked, running = replace(ask, running_usage=True), True
    try:
        reading = await _first_answer(server, chosen, short, asked)
    except RefusedError:
        # A server that takes no continuous_usage_stats refuses the request, or so we find out.
        asked, running = replace(ask, running_usage=False), False
        try:
            reading = await _first_answer(server, chosen, short, asked)
        except RefusedError as refused:
            raise OperationError(
                f"{server.url}{ask.path} refuses the first request: {refused}"
            ) from refused
    kind = _kind(entries[served.index(chosen)], reading.fingerprint)
    drafts = DraftSource.NONE
    if reading.drafts is not None:
        drafts = DraftSource.RESPONSES
    elif await server.draft_counters(chosen) is not None:
        drafts = DraftSource.COUNTERS
    return Profile(chosen, kind, running, drafts, await server.version())


async def _first_answer(server: Server, model: str, sample: Sample, ask: Ask) -> Reading:
    try:
        _, reading, closed = await server.stream(model, 0, sample, ask, {})
    except httpx.HTTPError as error:
        raise OperationError(f"{server.url}{ask.path} gives no answer: {reason(error)}") from error
    except ValueError as error:
        raise OperationError(
            f"{server.url}{ask.path} does not answer with a stream of events: {error}"
        ) from error
    record = reading.record(0, sample.name, 0.0, closed=closed)
    if record.error:
        raise OperationError(f"{server.url}{ask.path}: {record.error}")
    return reading


def _kind(entry: Mapping[str, Any], fingerprint: str) -> Kind:
    owner = str(entry.get("owned_by", "")).lower()
    for kind in (Kind.OUTRIDER, Kind.VLLM):
        if owner == kind.value or fingerprint.startswith(f"{kind.value}-"):
            return kind
    return Kind.OTHER


def spent(before: DraftCounts | None, after: DraftCounts | None) -> DraftCounts | None:
    """What the counters grew by; None where either reading is missing."""
    return None if before is None or after is None else after.since(before)
