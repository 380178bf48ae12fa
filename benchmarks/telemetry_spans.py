"""Nanoseconds that telemetry adds to a round and to a request, by trace level.

    python -m benchmarks.telemetry_spans

Knows the calls that an answer makes of its account and its trace; runs no model and no server. A
span is also encoded and thrown away, as an exporting thread would: it shares the interpreter with
the verifier's event loop.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console
from rich.table import Table
from speculation.v1 import verifier_pb2

from outrider.acceptance import Round
from outrider.telemetry import VERIFIER_SERVICE, TraceLevel
from outrider.trace_context import NO_CONTEXT
from outrider.trace_settings import TraceSettings
from outrider.tracing import Telemetry
from verifier_service.accounting import Account, Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.backend import Backend
from verifier_service.messages import RejectionRule, Request, Sampling
from verifier_service.tracing import RequestTracer

K = 8
_ROUND = Round(0, 4, 4, 2, 3, "ngram", draft_wait_ns=90_000, verify_ns=9_000_000)
_IDS = (11, 12, 13)


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of a core: a round added, a span begun and ended, and one encoded."""

    round_ns: float
    request_ns: float
    export_ns: float


class _Discard:
    """Counts what it is handed, after it was encoded."""

    def __init__(self) -> None:
        self.messages = 0

    def traces(self, request: ExportTraceServiceRequest) -> bool:
        request.SerializeToString()
        self.messages += 1
        return True

    def metrics(self, request: ExportMetricsServiceRequest) -> bool:
        return True

    def hurry(self) -> None:
        return

    def close(self) -> None:
        return


class _NoProposers:
    def states(self) -> Sequence[Any]:
        return ()


def measure(level: TraceLevel, rounds: int, requests: int) -> Cost:
    """A low percentile over `requests` of `rounds` rounds each: what it takes undisturbed."""
    if level is TraceLevel.NONE:
        return Cost(_low(lambda: _rounds(Ledger(K).open(9), rounds), requests) / rounds, 0.0, 0.0)
    settings = TraceSettings("unix:/nobody", level)
    with _telemetry(settings) as telemetry:
        tracer = RequestTracer(
            telemetry.tracer,
            settings,
            instance_id="v",
            model="model",
            rule=RejectionRule.COUPLED,
        )
        kept = rounds if settings.detailed else 0
        round_ns = _low(lambda: _rounds(Ledger(K).open(9, traced_rounds=kept), rounds), requests)
        request_ns = _low(lambda: _request(tracer, rounds, kept), requests)
        export_ns = _low(lambda: _exported(telemetry, tracer, rounds, kept), requests)
    return Cost(round_ns / rounds, request_ns, export_ns)


def _rounds(account: Account, rounds: int) -> float:
    began = time.thread_time_ns()
    for _ in range(rounds):
        account.add(3, _ROUND, _IDS)
    return time.thread_time_ns() - began


def _request(tracer: RequestTracer, rounds: int, kept: int) -> float:
    account = Ledger(K).open(9, traced_rounds=kept)
    _rounds(account, rounds)
    account.close("length")
    asked = verifier_pb2.GenerateRequest(text="", model="model")
    answer = Answer(
        AnswerOptions("r", 1), account, detokenizer=None, matcher=None, abort=lambda: None
    )
    request = Request("r", [1], Sampling())
    # Of a backend only its proposers' names are asked for.
    backend = cast(Backend, _Backend())
    began = time.thread_time_ns()
    trace = tracer.begin(asked, NO_CONTEXT)
    assert trace is not None
    with trace:
        trace.admitted(request, account, answer, backend)
    return time.thread_time_ns() - began


class _Backend:
    proposers = _NoProposers()


def _exported(telemetry: Telemetry, tracer: RequestTracer, rounds: int, kept: int) -> float:
    telemetry.flush()
    _request(tracer, rounds, kept)
    began = time.thread_time_ns()
    telemetry.flush()
    return time.thread_time_ns() - began


@contextmanager
def _telemetry(settings: TraceSettings) -> Iterator[Telemetry]:
    # So seldom that no exporting thread disturbs what is timed.
    telemetry = Telemetry(settings, VERIFIER_SERVICE, "v", delivery=_Discard(), delay_ms=3_600_000)
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def _low(once: Callable[[], float], times: int) -> float:
    spent = sorted(once() for _ in range(times))
    return spent[len(spent) // 8]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=64, help="rounds of a request")
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args(arguments)
    table = Table("level", "a round, ns", "a request, us", "its export, us")
    for level in TraceLevel:
        cost = measure(level, options.rounds, options.requests)
        figures = (cost.round_ns, cost.request_ns / 1e3, cost.export_ns / 1e3)
        table.add_row(level.value, *(f"{figure:,.0f}" for figure in figures))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
