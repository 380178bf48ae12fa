"""Decoding steps that were captured once and are replayed: forward, choice and verdict.

Knows buckets, their inputs and when which replay is due; does not know the model, which is a
function of inputs here, how tokens are chosen, nor prefill. Between a step's inputs and its result
nothing is read by the host; the result is one small copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from verifier_service.engines.run_ahead import Begun, Expected, Served, serving, with_tokens
from verifier_service.engines.start_progress import captured_one_by_one
from verifier_service.engines.step_buffers import StepBuffers
from verifier_service.engines.step_inputs import StepInputs
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

    expected: Begun
    launched: Launched

    def serves(self, chunks: Sequence[Chunk]) -> Served | None:
        return serving(self.expected, chunks) if chunks else None


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way. `logits` [T, V] or [R, V] are valid until the next step is launched.

    `rows` are those that were asked for, where the step was begun for more. `tokens` [B] are on the
    device what each sequence without drafts goes on with, where the step chooses that.
    """

    bucket: Bucket
    logits: Tensor
    result: Result | None
    done: Callable[[], None]
    choosing: Choosing = Choosing.OUTSIDE
    rows: tuple[int, ...] | None = None
    tokens: Tensor | None = None

    def verdicts(self, count: int) -> list[Verdict]:
        """Wait for the result; of the first `count` sequences. Only where tokens were chosen."""
        if self.result is None:
            raise RuntimeError("this step's tokens were not chosen on the device")
        self.done()
        rows = self.result[:count].tolist() if self.rows is None else self._told()
        return [Verdict(row[0], row[1 : row[0] + 2]) for row in rows]

    def _told(self) -> list[list[int]]:
        assert self.result is not None
        told: list[list[int]] = self.result[list(self.rows or ())].tolist()
        return told


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
        self._asked: tuple[_Ahead, Sequence[Chunk], Served | None] | None = None
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
        served = None if ahead is None else self._served(ahead, chunks)
        self._asked = None
        if ahead is not None and served is not None:
            return (
                ahead.launched if served.rows is None else replace(ahead.launched, rows=served.rows)
            )
        self._buffers.fill(chunks, bucket)
        step = self._steps[bucket]
        step.forward()
        choosing = self._choosing(chunks)
        if choosing is Choosing.OUTSIDE:
            return Launched(bucket, step.logits, None, _nothing)
        return step.choose(choosing)

    def choose(self, chunks: Sequence[Chunk], logits: Tensor) -> Launched | None:
        """Start the choice alone, on logits [R, V] that another forward gave for these chunks.

        None where it is not captured. What was begun is forgotten: these rounds went on without.
        """
        self._ahead = None
        choosing = self._choosing(chunks)
        bucket = None if choosing is Choosing.OUTSIDE else self.find(chunks)
        if bucket is None:
            return None
        self._buffers.fill(chunks, bucket)
        step = self._steps[bucket]
        step.logits[: logits.shape[0]].copy_(logits)
        return step.choose(choosing)

    def _choosing(self, chunks: Sequence[Chunk]) -> Choosing:
        """How the step's tokens are chosen, if any are."""
        samples = not self._lists_rows or any(chunk.samples for chunk in chunks)
        return self._needs.of(chunks) if self._coupled and samples else Choosing.OUTSIDE

    def has_begun(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a launch of these chunks has nothing left to do: it was begun ahead."""
        return self._ahead is not None and self._served(self._ahead, chunks) is not None

    def _served(self, ahead: _Ahead, chunks: Sequence[Chunk]) -> Served | None:
        """What `ahead` is good for, found out once: whoever asks launches these chunks next."""
        if self._asked is None or self._asked[0] is not ahead or self._asked[1] is not chunks:
            self._asked = ahead, chunks, ahead.serves(chunks)
        return self._asked[2]

    def begin_blindly(self, expected: list[Expected], launched: Launched) -> bool:
        """Begin the plain step behind `launched`, whose verdicts are not known; whether it was.

        `tell` says what they were.
        """
        if launched.result is None or not self._is_on_device(expected, launched):
            return False
        self._ahead = _Ahead(expected, self._advance(launched))
        return True

    def begin_behind(self, expected: Begun, launched: Launched) -> bool:
        """Begin any step behind `launched`, whose verdicts are not known; whether it was.

        Those of `expected` that go on come first, in the order of `launched`, and take the tokens
        that it will choose. `tell` says what they were.
        """
        chunks = [one.as_chunk() for one in expected]
        choosing = self._choosing(chunks)
        bucket = None if choosing is Choosing.OUTSIDE else self.find(chunks)
        if launched.tokens is None or bucket is None:
            return False
        step = self._steps[bucket]
        self._buffers.fill(chunks, bucket)
        going_on = sum(isinstance(one, Expected) for one in expected)
        self._buffers.take_tokens(step.inputs, launched.tokens, launched.rows or range(going_on))
        step.forward()
        self._ahead = _Ahead(expected, step.choose(choosing))
        return True

    def tell(self, verdicts: Sequence[Verdict]) -> None:
        """What the step has chosen behind which the next one was begun."""
        if self._ahead is not None:
            expected = with_tokens(self._ahead.expected, verdicts)
            self._ahead = _Ahead(expected, self._ahead.launched)

    def forget_next(self) -> None:
        """The step that was begun is not wanted."""
        self._ahead = None

    def begin_next(self, expected: Begun, launched: Launched | None) -> None:
        """Begin the step behind `launched`, whose verdicts were read, if the device chooses in it.

        None: behind one of which this knows nothing, or not all. What the host chooses is read row
        by row from the logits, and of what was begun some rows may be nobody's by then.
        """
        if launched is not None and self._is_on_device(expected, launched):
            following = self._advance(launched)
        else:
            chunks = [one.as_chunk() for one in expected]
            bucket = self.find(chunks)
            if bucket is None or self._choosing(chunks) is Choosing.OUTSIDE:
                return
            following = self.launch(chunks, bucket)
        self._ahead = _Ahead(expected, following)

    def _is_on_device(self, expected: Begun, launched: Launched) -> bool:
        """Whether the step behind needs nothing but what `launched` had and will choose.

        No sequence may have left (its row would go on in blocks that are another's by then), and
        none have got a block of which the device was not told.
        """
        if launched.bucket.query != 1 or launched.rows is not None:
            return False
        return self._buffers.holds([one.blocks for one in expected])

    def _advance(self, launched: Launched) -> Launched:
        step = self._steps[launched.bucket]
        step.advance(launched.choosing)
        step.forward()
        return step.choose(launched.choosing)


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
        self._bucket = bucket
        self.inputs = inputs = buffers.inputs(bucket)
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
        # By turns: a step may be begun before the one in front of it was read.
        self._copies = _Copy(some), _Copy(some)
        self._turn = 0

    def advance(self, choosing: Choosing) -> None:
        """Make the step's own tokens its inputs, one position on."""
        self._advance[choosing]()

    def choose(self, choosing: Choosing) -> Launched:
        """Start the choice behind the forward, and the copy of what comes of it."""
        self._choose[choosing]()
        self._turn = 1 - self._turn
        told = self._results[choosing]
        copied = self._copies[self._turn].take(told)
        return Launched(self._bucket, self.logits, *copied, choosing, tokens=told[:, 1])


class _Copy:
    """Where the host reads results like `some`."""

    def __init__(self, some: Tensor) -> None:
        cuda = some.device.type == "cuda"
        self._host = torch.empty_like(some, device="cpu", pin_memory=cuda)
        # The same memory: numpy makes lists of small arrays several times faster.
        self._read: Result = self._host.numpy()
        self._event = torch.cuda.Event() if cuda else None

    def take(self, result: Tensor) -> tuple[Result, Callable[[], None]]:
        """The result, valid once the function beside it has returned."""
        self._host.copy_(result, non_blocking=True)
        if self._event is None:
            return self._read, _nothing
        self._event.record()
        return self._read, self._event.synchronize


def _nothing() -> None:
    """There is nothing to wait for."""
