"""Prometheus metrics: what this gateway saw, and what the verifiers counted.

Knows names and labels. Acceptance and token counters are the verifiers' own totals, read at each
scrape: every request is in them, cancelled ones and those of other gateways too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier import Verifier

_TTFT_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)


class GatewayMetrics:
    """Counts of one gateway; each has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "outrider:requests",
            "Generations by how they ended: stop, length, abort (client gone), error.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._first_token = Histogram(
            "outrider:time_to_first_token_seconds",
            "Time from a request's arrival at the gateway to its first token.",
            ["model_name"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self._responses = Counter(
            "outrider:http_responses",
            "HTTP responses by route and status; 499 means that the client left first.",
            ["route", "status"],
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "outrider:http_requests_in_flight",
            "Generation requests this gateway is answering.",
            registry=self.registry,
        )
        self.server_load = 0

    def begin_request(self) -> None:
        self.server_load += 1
        self._in_flight.set(self.server_load)

    def end_request(self) -> None:
        self.server_load -= 1
        self._in_flight.set(self.server_load)

    def first_token(self, model: str, arrived: float) -> None:
        """`arrived` in time.monotonic seconds."""
        self._first_token.labels(model).observe(time.monotonic() - arrived)

    def finished(self, model: str, reason: str) -> None:
        self._requests.labels(model, reason).inc()

    def response(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def exposition(
        self,
        verifiers: Sequence[Verifier],
        answered: Sequence[tuple[Verifier, pb.GetInfoResponse]],
    ) -> bytes:
        """Prometheus text: this gateway's metrics, then those of the verifiers that answered."""
        snapshot = CollectorRegistry(auto_describe=False)
        snapshot.register(VerifierSnapshot(verifiers, answered))
        return generate_latest(self.registry) + generate_latest(snapshot)


class VerifierSnapshot(Collector):
    """The verifiers' totals at one moment, under vLLM's names where it has them."""

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        answered: Sequence[tuple[Verifier, pb.GetInfoResponse]],
    ) -> None:
        self._verifiers = verifiers
        self._infos = [((info.model, str(v.index)), info) for v, info in answered]

    def collect(self) -> Iterator[Metric]:
        yield self._up()
        yield from self._speculation()
        yield from self._tokens_and_load()
        yield from self._proposers()

    def _up(self) -> Metric:
        up = GaugeMetricFamily(
            "outrider:verifier_up",
            "1 while the verifier serves.",
            labels=["engine", "address"],
        )
        for verifier in self._verifiers:
            up.add_metric([str(verifier.index), verifier.address], float(not verifier.problem))
        return up

    def _speculation(self) -> Iterator[Metric]:
        speculating = [(labels, i) for labels, i in self._infos if i.num_speculative_tokens]
        stats = [(labels, info.acceptance) for labels, info in speculating]
        yield _counter(
            "vllm:spec_decode_num_drafts",
            "Verification steps that carried at least one draft token.",
            ((labels, s.num_spec_steps) for labels, s in stats),
        )
        yield _counter(
            "vllm:spec_decode_num_draft_tokens",
            "Draft tokens that were verified.",
            ((labels, s.num_draft_tokens) for labels, s in stats),
        )
        yield _counter(
            "vllm:spec_decode_num_accepted_tokens",
            "Draft tokens that were accepted and emitted.",
            ((labels, s.num_accepted_draft_tokens) for labels, s in stats),
        )
        yield _by_number(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position in the block.",
            "position",
            ((labels, s.accepted_per_position) for labels, s in stats),
        )
        yield _by_number(
            "outrider:spec_decode_num_draft_tokens_per_pos",
            "Verified draft tokens by position: what the accepted ones are a share of.",
            "position",
            ((labels, s.proposed_per_position) for labels, s in stats),
        )
        yield _by_number(
            "outrider:spec_decode_num_drafts_by_accepted",
            "Verification steps by how many draft tokens were accepted.",
            "accepted",
            ((labels, s.acceptance_histogram) for labels, s in stats),
        )
        yield _by_word(
            "outrider:rounds_without_drafts",
            "Rounds that verified no draft token, by the reason.",
            "off_reason",
            ((labels, i.off_rounds) for labels, i in speculating),
        )
        state = GaugeMetricFamily(
            "outrider:speculation_on",
            "1 while the controller speculates; the label says why not.",
            labels=["model_name", "engine", "off_reason"],
        )
        for labels, info in speculating:
            on = info.speculation_state == "on"
            # Behind a colon come figures, which would make a time series of every scrape.
            reason = "" if on else info.speculation_state.removeprefix("off: ").partition(":")[0]
            state.add_metric([*labels, reason], float(on))
        yield state

    def _tokens_and_load(self) -> Iterator[Metric]:
        yield _counter(
            "vllm:prompt_tokens",
            "Prompt tokens of finished and running requests.",
            ((labels, i.prompt_tokens_total) for labels, i in self._infos),
        )
        yield _counter(
            "vllm:generation_tokens",
            "Tokens that were generated and emitted.",
            ((labels, i.generation_tokens_total) for labels, i in self._infos),
        )
        for name, help_text, field in (
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked for in the prefix cache.",
                "prefix_cache_queries_total",
            ),
            (
                "vllm:prefix_cache_hits",
                "Prompt tokens found in the prefix cache.",
                "prefix_cache_hits_total",
            ),
            (
                "vllm:num_preemptions",
                "Running requests whose cache was taken away, to be computed again.",
                "preemptions_total",
            ),
        ):
            yield _counter(
                name, help_text, ((labels, getattr(i, field)) for labels, i in self._infos)
            )
        yield _by_word(
            "outrider:verifier_requests",
            "Generations that ended at the verifier, by how; of all its clients.",
            "finished_reason",
            ((labels, i.finished_requests) for labels, i in self._infos),
        )
        for name, help_text, field in (
            ("vllm:num_requests_running", "Requests being decoded.", "running_requests"),
            ("vllm:num_requests_waiting", "Requests waiting to start.", "waiting_requests"),
            ("outrider:kv_blocks", "Blocks of the KV cache.", "kv_blocks_total"),
            ("outrider:kv_blocks_free", "Free blocks of the KV cache.", "kv_blocks_free"),
        ):
            gauge = GaugeMetricFamily(name, help_text, labels=["model_name", "engine"])
            for labels, info in self._infos:
                gauge.add_metric(labels, getattr(info, field))
            yield gauge

    def _proposers(self) -> Iterator[Metric]:
        names = ["model_name", "engine", "proposer"]
        connected = GaugeMetricFamily(
            "outrider:proposer_connected", "1 while the proposer is connected.", labels=names
        )
        blocks = CounterMetricFamily(
            "outrider:proposer_draft_blocks", "Draft blocks received.", labels=names
        )
        dropped = CounterMetricFamily(
            "outrider:proposer_dropped_blocks",
            "Draft blocks that were dropped, by reason.",
            labels=[*names, "reason"],
        )
        lookahead = CounterMetricFamily(
            "outrider:proposer_lookahead",
            "Rounds whose draft had been prepared before the outcome was known, and those not.",
            labels=[*names, "result"],
        )
        for labels, info in self._infos:
            for proposer in info.proposers:
                place = [*labels, proposer.name or proposer.address]
                connected.add_metric(place, float(proposer.state == "connected"))
                blocks.add_metric(place, proposer.draft_blocks)
                for reason, count in sorted(proposer.dropped.items()):
                    dropped.add_metric([*place, reason], count)
                lookahead.add_metric([*place, "hit"], proposer.lookahead_hits)
                lookahead.add_metric([*place, "miss"], proposer.lookahead_misses)
        yield from (connected, blocks, dropped, lookahead)


_Labels = tuple[str, str]


def _counter(name: str, help_text: str, values: Iterable[tuple[_Labels, int]]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=["model_name", "engine"])
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _by_number(
    name: str, help_text: str, label: str, values: Iterable[tuple[_Labels, Iterable[int]]]
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=["model_name", "engine", label])
    for labels, numbers in values:
        for number, value in enumerate(numbers):
            family.add_metric([*labels, str(number)], value)
    return family


def _by_word(
    name: str, help_text: str, label: str, values: Iterable[tuple[_Labels, Mapping[str, int]]]
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=["model_name", "engine", label])
    for labels, words in values:
        for word, value in sorted(words.items()):
            family.add_metric([*labels, word], value)
    return family
