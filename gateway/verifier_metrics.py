"""Prometheus metrics of what the verifiers counted.

Knows names and labels, vLLM's where it has them. Acceptance, tokens and times are the verifiers'
own totals, read at each scrape: every request is in them, cancelled ones and those of other
gateways too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier import Verifier

# Kinds of steps: the label's value and the field of `pb.StepTimes`.
_STEPS: Final = (("plain", "plain"), ("drafts", "verify"), ("prefill", "prefill"))


# The controller's numbers: what speculation gains, and what it weighs drafts against.
_FIGURES: Final[tuple[tuple[str, str, Callable[[pb.SpeculationFigures], float]], ...]] = (
    (
        "outrider:speculation_average_gain",
        "Tokens a second with speculation over those without, less 1, asking included.",
        lambda figures: figures.average_gain,
    ),
    (
        "outrider:speculation_gain",
        "The same for the last step's plan, asking aside.",
        lambda figures: figures.gain,
    ),
    (
        "outrider:speculation_measured_gain",
        "Tokens a second with speculation over plain periods beside it, less 1, since start.",
        lambda figures: figures.measured_gain,
    ),
    (
        "outrider:speculation_measured_gain_error",
        "Standard error of that.",
        lambda figures: figures.measured_gain_error,
    ),
    (
        "outrider:plain_periods",
        "Periods of plain decoding that were compared, since start.",
        lambda figures: figures.plain_periods,
    ),
    (
        "outrider:speculation_ceiling",
        "Most draft tokens of a sequence in a step, for as many sequences as run.",
        lambda figures: figures.ceiling,
    ),
    (
        "outrider:plain_step_seconds",
        "What a step of as many sequences takes without drafts.",
        lambda figures: figures.plain_step_ms / 1e3,
    ),
    (
        "outrider:draft_asking_seconds",
        "What asking for drafts, and waiting for them, adds to a step.",
        lambda figures: figures.draft_wait_ms / 1e3,
    ),
)


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
        yield from self._step_times()
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
        # A verifier without speculation still has drafts where requests predict their answers.
        speculating = [
            (labels, i)
            for labels, i in self._infos
            if i.num_speculative_tokens or i.acceptance.num_draft_tokens
        ]
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
        for name, help_text, value in _FIGURES:
            gauge = GaugeMetricFamily(name, help_text, labels=["model_name", "engine"])
            for labels, info in speculating:
                gauge.add_metric(labels, value(info.speculation))
            yield gauge

    def _step_times(self) -> Iterator[Metric]:
        wait = HistogramMetricFamily(
            "outrider:draft_wait_seconds",
            "How long a step waited for drafts, of the steps that asked for any.",
            labels=["model_name", "engine"],
        )
        verify = HistogramMetricFamily(
            "outrider:verify_seconds",
            "Forward and sampling of a step, by whether it verified drafts or computed prompts.",
            labels=["model_name", "engine", "step"],
        )
        busy = CounterMetricFamily(
            "outrider:device_busy_seconds",
            "How long the device has worked on steps: its rate is the share of time it is busy.",
            labels=["model_name", "engine"],
        )
        for labels, info in self._infos:
            times = info.step_times
            if times.HasField("draft_wait"):
                wait.add_metric(labels, *_histogram(times.draft_wait))
            for step, field in _STEPS:
                if times.HasField(field):
                    verify.add_metric([*labels, step], *_histogram(getattr(times, field)))
            if info.HasField("device_busy_seconds_total"):
                busy.add_metric(labels, info.device_busy_seconds_total)
        yield from (wait, verify, busy)

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
            "Asks that look-ahead had answered with a draft or with none, and those it had not.",
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
                lookahead.add_metric([*place, "none"], proposer.lookahead_none)
                lookahead.add_metric([*place, "miss"], proposer.lookahead_misses)
        yield from (connected, blocks, dropped, lookahead)
        for name, help_text, field in (
            ("drafts", "Verification steps of the proposer's drafts.", "num_spec_steps"),
            ("draft_tokens", "The proposer's draft tokens that were verified.", "num_draft_tokens"),
            (
                "accepted_tokens",
                "The proposer's draft tokens that were accepted and emitted.",
                "num_accepted_draft_tokens",
            ),
        ):
            family = CounterMetricFamily(f"outrider:proposer_{name}", help_text, labels=names)
            for labels, info in self._infos:
                for sums in info.acceptance_by_proposer:
                    family.add_metric([*labels, sums.name], getattr(sums, field))
            yield family


_Labels = tuple[str, str]


def _histogram(value: types_pb2.Histogram) -> tuple[list[tuple[str, float]], float]:
    """Prometheus' buckets, each with all that is not above its bound, and the sum."""
    bounds = [*map(repr, value.upper_bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(value.counts)), strict=True)), value.sum


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
