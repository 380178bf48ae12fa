"""Decoding steps that were captured once and are replayed: forward, choice and verdict.

Knows buckets, their inputs and how tokens are chosen; does not know the model, which is a function
of inputs here, nor prefill. Between a step's inputs and its result nothing is read by the host; the
result is one small copy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.buckets import Bucket, Buckets
from verifier_service.engines.editing import has_edits
from verifier_service.engines.run_ahead import Expected
from verifier_service.engines.step_buffers import StepBuffers, StepInputs
from verifier_service.messages import RejectionRule
from verifier_service.noise import VocabularyNoise, tensor_keys
from verifier_service.rejection.chain import emit, leading
from verifier_service.sampling import is_greedy

_log = logging.getLogger(__name__)

# Logits [T, V] of a bucket's inputs.
BucketForward = Callable[[StepInputs, Bucket], Tensor]
Replay = Callable[[], None]
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
    """A step on its way. `logits` [T, V] are valid until the next step is launched."""

    bucket: Bucket
    logits: Tensor
    result: Tensor | None
    done: Callable[[], None]
    random: bool = False

    def verdicts(self, count: int) -> list[Verdict]:
        """Wait for the result; of the first `count` sequences. Only where tokens were chosen."""
        if self.result is None:
            raise RuntimeError("this step's tokens were not chosen on the device")
        self.done()
        rows = self.result[:count].tolist()
        return [Verdict(row[0], row[1 : row[0] + 2]) for row in rows]


class GraphRunner:
    """Captured decoding steps of one engine. Not thread-safe.

    Construction captures every bucket, which takes a while; it logs how far it is.
    """

    def __init__(
        self,
        forward: BucketForward,
        buckets: Buckets,
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
        # The blocks of each sequence of the step that was filled last.
        self._filled: list[tuple[int, ...]] = []
        self._steps: dict[Bucket, _Captured] = {}
        perturbed: Callable[..., Tensor] = choose_perturbed
        if compiled:
            perturbed = torch.compile(choose_perturbed, dynamic=True)
        began = time.monotonic()
        for number, bucket in enumerate(buckets, start=1):
            self._steps[bucket] = _Captured(bucket, buffers, forward, noise, capture, perturbed)
            if number in (1, len(buckets)) or number % 5 == 0:
                _log.info(
                    "captured %d of %d decoding steps (%d sequences, %d tokens) seconds=%.1f",
                    number,
                    len(buckets),
                    bucket.sequences,
                    bucket.tokens,
                    time.monotonic() - began,
                )

    def find(self, chunks: Sequence[Chunk]) -> Bucket | None:
        """The bucket that these chunks, all of them verifications, fit in."""
        tokens = sum(len(chunk.ids) for chunk in chunks)
        bucket = self._buckets.find(len(chunks), tokens)
        if bucket is None or max(len(chunk.ids) for chunk in chunks) > bucket.query:
            return None
        return bucket

    def launch(self, chunks: Sequence[Chunk], bucket: Bucket) -> Launched:
        """Start the step; its tokens are chosen on the device where all chunks allow that."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.serves(chunks):
            return ahead.launched
        self._buffers.fill(chunks, bucket)
        self._filled = [tuple(chunk.blocks) for chunk in chunks]
        step = self._steps[bucket]
        step.forward()
        if not self._coupled or not all(map(chosen_in_graph, chunks)):
            return Launched(bucket, step.logits, None, _nothing)
        random = any(not is_greedy(chunk.sampling) for chunk in chunks)
        return Launched(bucket, step.logits, *step.choose(random), random)

    def begin_next(self, expected: list[Expected] | None, launched: Launched) -> None:
        """Begin the plain step behind `launched`, whose verdicts were read; None: there is none."""
        if expected is None or launched.result is None or launched.bucket.query > 1:
            return
        for known, one in zip(self._filled, expected, strict=True):
            if known[: len(one.blocks)] != one.blocks:
                # A block that the sequence got since is not in the device's table.
                return
        step = self._steps[launched.bucket]
        step.advance(launched.random)
        step.forward()
        result = step.choose(launched.random)
        self._ahead = _Ahead(
            expected, Launched(launched.bucket, step.logits, *result, launched.random)
        )


def chosen_in_graph(chunk: Chunk) -> bool:
    """Whether a chunk's tokens need no more than its logits, temperature and seed."""
    sampling = chunk.sampling
    if has_edits(chunk) or sampling.logprobs >= 0:
        return False
    limited = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    return is_greedy(sampling) or not limited


class _Captured:
    """One bucket: its forward, the two ways to choose, and their results.

    What a function makes while it is captured is what every replay writes to.
    """

    def __init__(
        self,
        bucket: Bucket,
        buffers: StepBuffers,
        forward: BucketForward,
        noise: VocabularyNoise,
        capture: Capture,
        perturbed: Callable[..., Tensor],
    ) -> None:
        width = bucket.query - 1
        inputs = buffers.inputs(bucket)
        # Nothing but padding: all buckets share the memory, and what another left there is no
        # valid step of this one.
        buffers.fill([], bucket)

        def run_forward() -> None:
            self.logits = forward(inputs, bucket)

        def choose_greedy() -> None:
            self._greedy = verdict_rows(self.logits.argmax(dim=-1), inputs, width)

        def choose_random() -> None:
            owner = inputs.owner
            seeds, temperature = inputs.seeds[owner], inputs.temperature[owner]
            chosen = perturbed(self.logits, seeds, inputs.positions + 1, temperature, noise)
            self._random = verdict_rows(chosen, inputs, width)

        self.forward = capture(run_forward)
        self._choose = {False: capture(choose_greedy), True: capture(choose_random)}
        self._advance: dict[bool, Replay] = {}
        if bucket.query == 1:
            self._advance = {
                False: capture(lambda: buffers.advance(inputs, self._greedy[:, 1])),
                True: capture(lambda: buffers.advance(inputs, self._random[:, 1])),
            }
        cuda = self._greedy.device.type == "cuda"
        self._host = torch.empty_like(self._greedy, device="cpu", pin_memory=cuda)
        self._event = torch.cuda.Event() if cuda else None

    def advance(self, random: bool) -> None:
        """Make the step's own tokens its inputs, one position on."""
        self._advance[random]()

    def choose(self, random: bool) -> tuple[Tensor, Callable[[], None]]:
        """The result where the host reads it, once the function beside it has returned."""
        self._choose[random]()
        self._host.copy_(self._random if random else self._greedy, non_blocking=True)
        if self._event is None:
            return self._host, _nothing
        self._event.record()
        return self._host, self._event.synchronize


def choose_perturbed(
    logits: Tensor, seed: Tensor, position: Tensor, temperature: Tensor, noise: VocabularyNoise
) -> Tensor:
    """`sampling.choose` without filters, as one function for a compiler to fuse; int64 [T].

    logits [T, V] any float; seed, position [T] int64; temperature [T] float32, 0 for greedy rows.
    """
    scores = logits.float()
    random = temperature > 0
    scaled = scores / torch.where(random, temperature, 1.0).unsqueeze(-1)
    shift = noise.exponential(tensor_keys(seed, position)).log()
    return torch.where(random, (scaled - shift).argmax(dim=-1), scores.argmax(dim=-1))


def verdict_rows(chosen: Tensor, inputs: StepInputs, width: int) -> Tensor:
    """Coupled verdicts of a bucket's sequences, int64 [B, width + 2]: accepted, then tokens.

    `chosen` [T] is the target's choice at each token; the draft tokens are the ids behind each
    sequence's first one, at most `width`.
    """
    last = chosen.shape[0] - 1
    steps = torch.arange(width + 1, device=chosen.device)
    drafts = inputs.drafts
    at = inputs.cu_query[:-1, None].long() + torch.minimum(steps, drafts[:, None])
    target = chosen[at.clamp(max=last)]
    ids = inputs.ids[(at + 1).clamp(max=last)][:, :width]
    accepted = leading(ids == target[:, :-1], drafts)
    own = target.gather(1, accepted.unsqueeze(1)).squeeze(1)
    result = emit(ids, accepted, own)
    return torch.cat((accepted.unsqueeze(1), result.tokens), dim=1)


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
        return replay

    return capture


def _nothing() -> None:
    """There is nothing to wait for."""
