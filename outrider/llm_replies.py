"""Gathers one answer's messages and tells them as vLLM's result objects.

Knows the verifier's messages; knows no engine and no thread. Light: imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from outrider.llm_outputs import (
    CompletionOutput,
    Logprob,
    LogprobsOfPosition,
    RequestMetrics,
    RequestOutput,
    SpecDecodeMetrics,
)
from outrider.llm_requests import Job

_REASONS = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
    types_pb2.FINISH_REASON_ABORT: "abort",
}


@dataclass(slots=True)
class Reply:
    """One answer as it grows; `begun` in seconds of the monotonic clock."""

    begun: float = field(default_factory=time.monotonic)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    started: pb.Started = field(default_factory=pb.Started)
    finished: pb.Finished = field(default_factory=pb.Finished)

    def add(self, message: pb.GenerateResponse) -> int:
        """Take a message; how many tokens it brought."""
        kind = message.WhichOneof("message")
        if kind == "started":
            self.started = message.started
        elif kind == "finished":
            self.finished = message.finished
        else:
            delta = message.delta
            self.texts.append(delta.text)
            self.token_ids.extend(delta.token_ids)
            self.logprobs.extend(delta.logprobs)
            return len(delta.token_ids)
        return 0


def request_output(
    job: Job,
    prompt: str | None,
    prompt_ids: list[int],
    replies: Sequence[Reply],
    *,
    request_id: str,
    eos_token_ids: Collection[int],
    spec_decode_metrics: str,
) -> RequestOutput:
    """The result of a prompt whose answers all ended; `spec_decode_metrics` as the option's."""
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=prompt_ids,
        prompt_logprobs=_prompt_logprobs(job, replies[0].started),
        outputs=[
            _completion(index, job, reply, eos_token_ids, spec_decode_metrics)
            for index, reply in enumerate(replies)
        ],
        finished=True,
        metrics=_metrics(replies),
        num_cached_tokens=replies[0].finished.cached_prompt_tokens,
    )


def _completion(
    index: int, job: Job, reply: Reply, eos_token_ids: Collection[int], spec_decode_metrics: str
) -> CompletionOutput:
    params = job.params
    logprobs = [_position(entry) for entry in reply.logprobs]
    return CompletionOutput(
        index=index,
        text="".join(reply.texts),
        token_ids=reply.token_ids,
        cumulative_logprob=(
            sum(entry.logprob for entry in reply.logprobs) if params.logprobs is not None else None
        ),
        logprobs=logprobs if params.logprobs is not None else None,
        finish_reason=_REASONS[reply.finished.reason],
        stop_reason=_stop_reason(reply.finished, params.stop_token_ids or (), eos_token_ids),
        spec_decode_metrics=_acceptance(reply.finished.acceptance, spec_decode_metrics),
    )


def _stop_reason(
    finished: pb.Finished, asked: Collection[int], eos_token_ids: Collection[int]
) -> str | int | None:
    kind = finished.WhichOneof("stop")
    if kind == "stop_string":
        return finished.stop_string
    if kind is None or (
        finished.stop_token_id in eos_token_ids and finished.stop_token_id not in asked
    ):
        return None
    return finished.stop_token_id


def _prompt_logprobs(job: Job, started: pb.Started) -> list[LogprobsOfPosition | None] | None:
    if job.params.prompt_logprobs is None:
        return None
    return [None, *(_position(entry) for entry in started.prompt_logprobs)]


def _position(entry: pb.TokenLogprob) -> LogprobsOfPosition:
    told = {entry.token_id: _logprob(entry, entry.rank)}
    for rank, top in enumerate(entry.top, start=1):
        told.setdefault(top.token_id, _logprob(top, rank))
    return told


def _logprob(entry: pb.TokenLogprob | pb.TopLogprob, rank: int) -> Logprob:
    return Logprob(entry.logprob, rank, entry.token_bytes.decode("utf-8", "replace"))


def _acceptance(
    stats: types_pb2.AcceptanceStats, spec_decode_metrics: str
) -> SpecDecodeMetrics | None:
    if spec_decode_metrics == "none" or not stats.num_spec_tokens:
        return None
    detailed = spec_decode_metrics == "detailed"
    return SpecDecodeMetrics(
        num_spec_tokens=stats.num_spec_tokens,
        histogram=tuple(stats.acceptance_histogram),
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
        per_step_accepted=tuple(stats.per_step_accepted) if detailed else None,
        per_step_drafted=tuple(stats.per_step_drafted) if detailed else None,
    )


def _metrics(replies: Sequence[Reply]) -> RequestMetrics:
    def seconds(reply: Reply, nanoseconds: int) -> float:
        return reply.begun + nanoseconds * 1e-9

    queued = min(reply.begun for reply in replies)
    first = min(seconds(reply, reply.finished.first_token_ns) for reply in replies)
    return RequestMetrics(
        arrival_time=time.time() - (time.monotonic() - queued),
        queued_ts=queued,
        scheduled_ts=min(seconds(reply, reply.finished.queue_ns) for reply in replies),
        first_token_ts=first,
        last_token_ts=max(seconds(reply, reply.finished.total_ns) for reply in replies),
        first_token_latency=first - queued,
        num_generation_tokens=sum(len(reply.token_ids) for reply in replies),
    )
