"""Decoding steps that were captured once and are replayed: forward, choice and verdict.

Knows buckets, their inputs and when which replay is due; does not know the model, which is a
function of inputs here, how tokens are chosen, nor prefill. Between a step's inputs and its result
nothing is read by the host; the result is one small copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.buckets import Bucket, Shapes
from verifier_service.engines.captured_choice import (
    Choosing,
    Needs,
    Perturb,
    choose_perturbed,
    choose_rows,
    choosing_inputs,
    verdict_rows,
)
from verifier_service.engines.run_ahead import Expected
from verifier_service.engines.start_progress import captured_one_by_one
from verifier_service.engines.step_buffers import StepBuffers, StepInputs
from verifier_service.messages import RejectionRule
from verifier_service.noise import VocabularyNoise

# Logits of a bucket's inputs: [T, V], or [R, V] of the rows that it lists.
BucketForward = Callable[[StepInputs, Bucket], Tensor]
Replay = Callable[[], None]
# What the host reads, [B, K + 2]: drafts accepted, then tokens.
Result = npt.NDArray[np.int64]
# Runs a function once to see that it works, and gives back what repeats it on the same memory.
Capture = Callable[[Replay], Replay]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that was begun unasked, and what it is good for."""

    expected: list[Expected]
    launched: Launched

    def serves(self, chunks: Sequence[Chunk]) -> bool:
        return len(chunks) == len(self.expected) and all(
            expected.is_met_by(chunk) for expected, chunk in zip(self.expected, chunks, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way. `logits` [T, V] or [R, V] are valid until the next step is launched."""

    bucket: Bucket
    logits: Tensor
    result: Result | None
    done: Callable[[], None]
    choosing: Choosing = Choosing.OUTSIDE

    def verdicts(self, count: int) -> list[Verdict]:
        """Wait for the result; of the first `count` sequences. Only where tokens were chosen."""
        if self.result is None:
            raise RuntimeError("this step's tokens were not chosen on the device")
        self.done()
        rows = self.result[:count].tolist()
        return [Verdict(row[0], row[1 : row[0] + 2]) for row in rows]


class GraphRunner:
    """Captured steps of one engine: verifications, or steps with prompts. Not thread-safe.

    Construction captures every bucket, which takes a while; it shows how far it is.
    """

    def __init__(
        self,
        forward: BucketForward,
        buckets: Shapes,
        buffers: StepBuffers,
        noise: VocabularyNoise,
        rule: RejectionRule,
        capture: Capture,
        *,
        compiled: bool,
    ) -> None:
        self._buckets = buckets
        self._buffers = buffers
        self._coupled = rule is RejectionRule.COUPLED
        self._ahead: _Ahead | None = None
        self._needs = Needs()
        self._steps: dict[Bucket, _Captured] = {}
        perturb: Perturb = choose_perturbed
        if compiled:
            perturb = torch.compile(choose_perturbed, dynamic=True)
        self._lists_rows = any(bucket.rows for bucket in buckets)
        for bucket in captured_one_by_one(buckets, "prefill" if self._lists_rows else "decoding"):
            self._steps[bucket] = _Captured(bucket, buffers, forward, noise, capture, perturb)

    def find(self, chunks: Sequence[Chunk]) -> Bucket | None:
        """The bucket that these chunks fit in: verifications, where buckets list no rows."""
        lengths = [len(chunk.ids) for chunk in chunks]
        rows = 0
        if self._lists_rows:
            rows = sum(chunk.drafts + 1 for chunk in chunks if chunk.samples)
        bucket = self._buckets.find(len(chunks), sum(lengths), rows)
        if bucket is None or max(lengths) > bucket.query:
            return None
        if rows and max(chunk.drafts for chunk in chunks) > bucket.most_drafts:
            return None
        return bucket

    def launch(self, chunks: Sequence[Chunk], bucket: Bucket) -> Launched:
        """Start the step; its tokens are chosen on the device where all chunks allow that."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.serves(chunks):
            return ahead.launched
        self._buffers.fill(chunks, bucket)
        step = self._steps[bucket]
        step.forward()
        choosing = self._needs.of(chunks) if self._coupled else Choosing.OUTSIDE
        if self._lists_rows and not any(chunk.samples for chunk in chunks):
            choosing = Choosing.OUTSIDE
        if choosing is Choosing.OUTSIDE:
            return Launched(bucket, step.logits, None, _nothing)
        return Launched(bucket, step.logits, *step.choose(choosing), choosing)

    def has_begun(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a launch of these chunks has nothing left to do: it was begun ahead."""
        return self._ahead is not None and self._ahead.serves(chunks)

    def begin_next(self, expected: list[Expected], launched: Launched) -> None:
        """Begin the plain step behind `launched`, whose verdicts were read."""
        if launched.bucket.query == 1 and self._knows_blocks_of(expected):
            # All that it needs is on the device.
            step = self._steps[launched.bucket]
            step.advance(launched.choosing)
            step.forward()
            result = step.choose(launched.choosing)
            following = Launched(launched.bucket, step.logits, *result, launched.choosing)
        else:
            chunks = [one.as_chunk() for one in expected]
            bucket = self.find(chunks)
            if bucket is None:
                return
            following = self.launch(chunks, bucket)
        self._ahead = _Ahead(expected, following)

    def _knows_blocks_of(self, expected: Sequence[Expected]) -> bool:
        """Whether no sequence got a block since the device was told of its blocks."""
        return all(self._buffers.holds(row, one.blocks) for row, one in enumerate(expected))


class _Captured:
    """One bucket: its forward, the ways to choose, and their results.

    What a function makes while it is captured is what every replay writes to.
    """

    def __init__(
        self,
        bucket: Bucket,
        buffers: StepBuffers,
        forward: BucketForward,
        noise: VocabularyNoise,
        capture: Capture,
        perturb: Perturb,
    ) -> None:
        width = bucket.most_drafts
        inputs = buffers.inputs(bucket)
        # Nothing but padding: all buckets share the memory, and what another left there is no
        # valid step of this one.
        buffers.fill([], bucket)
        self._results: dict[Choosing, Tensor] = {}
        self._choose: dict[Choosing, Replay] = {}
        self._advance: dict[Choosing, Replay] = {}

        def run_forward() -> None:
            self.logits = forward(inputs, bucket)

        def choose(choosing: Choosing) -> None:
            rows = choosing_inputs(inputs)
            chosen = choose_rows(self.logits, rows, choosing, noise, perturb)
            self._results[choosing] = verdict_rows(chosen, rows, width)

        def advance(choosing: Choosing) -> None:
            buffers.advance(inputs, self._results[choosing][:, 1])

        self.forward = capture(run_forward)
        for choosing in (Choosing.GREEDY, Choosing.RANDOM, Choosing.FILTERED):
            self._choose[choosing] = capture(partial(choose, choosing))
            if bucket.query == 1:
                self._advance[choosing] = capture(partial(advance, choosing))
        some = self._results[Choosing.GREEDY]
        cuda = some.device.type == "cuda"
        self._host = torch.empty_like(some, device="cpu", pin_memory=cuda)
        # The same memory: numpy makes lists of small arrays several times faster.
        self._read: Result = self._host.numpy()
        self._event = torch.cuda.Event() if cuda else None

    def advance(self, choosing: Choosing) -> None:
        """Make the step's own tokens its inputs, one position on."""
        self._advance[choosing]()

    def choose(self, choosing: Choosing) -> tuple[Result, Callable[[], None]]:
        """The result where the host reads it, once the function beside it has returned."""
        self._choose[choosing]()
        self._host.copy_(self._results[choosing], non_blocking=True)
        if self._event is None:
            return self._read, _nothing
        self._event.record()
        return self._read, self._event.synchronize


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()

    def capture(function: Replay) -> Replay:
        # What made the inputs must be done before another stream reads them.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            function()
        replay: Replay = graph.replay
        # The first replay takes longer, and what cannot be replayed should fail at the start.
        replay()
        return replay

    return capture


def _nothing() -> None:
    """There is nothing to wait for."""
