"""A verifier's running totals as OpenTelemetry metrics.

Knows the ledger, the core's figures and the proposers' states, which `GetInfo` tells too; counts
nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.util.types import AttributeValue

from outrider import telemetry
from verifier_service.accounting import Ledger, ProposerSums
from verifier_service.backend import Backend

_Observe = Callable[[], Iterable[Observation]]


class VerifierMeters:
    """Observes one verifier, from the meter's own thread.

    The ledger is the event loop's: single numbers are read as they are, and what grows is copied in
    one call, which no other thread can interrupt.
    """

    def __init__(self, meter: Meter, ledger: Ledger, backend: Backend, model: str) -> None:
        self._ledger = ledger
        self._backend = backend
        self._model: dict[str, AttributeValue] = {telemetry.REQUEST_MODEL: model}
        for name, unit, observe in (
            (telemetry.METRIC_STEPS, "{step}", self._of_proposers(_steps)),
            (telemetry.METRIC_DRAFT_TOKENS, "{token}", self._of_proposers(_drafted)),
            (telemetry.METRIC_ACCEPTED_TOKENS, "{token}", self._of_proposers(_accepted)),
            (telemetry.METRIC_PROMPT_TOKENS, "{token}", self._prompt_tokens),
            (telemetry.METRIC_GENERATION_TOKENS, "{token}", self._generation_tokens),
            (telemetry.METRIC_OFF_ROUNDS, "{round}", self._off_rounds),
            (telemetry.METRIC_LOOKAHEAD_HITS, "{block}", self._lookahead_hits),
            (telemetry.METRIC_LOOKAHEAD_MISSES, "{block}", self._lookahead_misses),
            (telemetry.METRIC_LOOKAHEAD_NONE, "{block}", self._lookahead_none),
        ):
            meter.create_observable_counter(name, [_callback(observe)], unit=unit)
        for name, observe in (
            (telemetry.METRIC_RUNNING, self._running),
            (telemetry.METRIC_WAITING, self._waiting),
        ):
            meter.create_observable_up_down_counter(name, [_callback(observe)], unit="{request}")

    def _of_proposers(self, read: Callable[[ProposerSums], int]) -> _Observe:
        def observe() -> Iterator[Observation]:
            for name, sums in dict(self._ledger.by_proposer).items():
                yield self._observation(read(sums), {telemetry.PROPOSER: name})

        return observe

    def _prompt_tokens(self) -> Iterator[Observation]:
        yield self._observation(self._ledger.prompt_tokens)

    def _generation_tokens(self) -> Iterator[Observation]:
        yield self._observation(self._ledger.generation_tokens)

    def _off_rounds(self) -> Iterator[Observation]:
        for reason, rounds in dict(self._ledger.off_rounds).items():
            yield self._observation(rounds, {telemetry.ROUND_OFF_REASON: reason})

    def _lookahead_hits(self) -> Iterator[Observation]:
        for state in self._backend.proposers.states():
            if state.name:
                message = state.to_proto()
                attributes = _proposer(message.name, message.method)
                yield self._observation(message.lookahead_hits, attributes)

    def _lookahead_misses(self) -> Iterator[Observation]:
        for state in self._backend.proposers.states():
            if state.name:
                message = state.to_proto()
                attributes = _proposer(message.name, message.method)
                yield self._observation(message.lookahead_misses, attributes)

    def _lookahead_none(self) -> Iterator[Observation]:
        for state in self._backend.proposers.states():
            if state.name:
                message = state.to_proto()
                attributes = _proposer(message.name, message.method)
                yield self._observation(message.lookahead_none, attributes)

    def _running(self) -> Iterator[Observation]:
        yield self._observation(self._backend.core.stats().running)

    def _waiting(self) -> Iterator[Observation]:
        yield self._observation(self._backend.core.stats().waiting)

    def _observation(
        self, value: int, attributes: dict[str, AttributeValue] | None = None
    ) -> Observation:
        return Observation(value, self._model | (attributes or {}))


def _callback(observe: _Observe) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: observe()


def _proposer(name: str, method: str) -> dict[str, AttributeValue]:
    return {telemetry.PROPOSER: name, telemetry.METHOD: method}


def _steps(sums: ProposerSums) -> int:
    return sums.num_spec_steps


def _drafted(sums: ProposerSums) -> int:
    return sums.num_draft_tokens


def _accepted(sums: ProposerSums) -> int:
    return sums.num_accepted_draft_tokens
