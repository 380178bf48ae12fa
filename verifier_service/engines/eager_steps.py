"""Steps whose operators the host launches one after the other: all that was not captured.

Knows chunks, the forward and how tokens are chosen; does not know which steps are captured, nor
what is begun ahead. Until the verdicts are read the host waits for nothing that the device does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from verifier_service.engines.base import CacheShape, Chunk, Meanwhile, Verdict
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.device_time import DeviceTime
from verifier_service.engines.forward import Chosen
from verifier_service.engines.graphs import GraphRunner, Launched
from verifier_service.engines.layout import pack, pack_choices
from verifier_service.engines.logprobs import with_logprobs

Answers = list[Verdict | None]

# By whether the forward is compiled: a step of more tokens takes the device longer to compute than
# its launches take the host. (An 8B model on an H200: 21 us a token; 25 to 45 ms to launch its
# operators one by one.)
_BOUND_BY_HOST = {True: 1280, False: 2048}


@dataclass(frozen=True, slots=True)
class EagerSteps:
    """Uncaptured steps of one engine.

    `graphs` are the captured decoding steps, if there are any: their choice serves other logits,
    too. `longest_round` is the most tokens that a round usually has.
    """

    chosen: Chosen
    cache: CacheShape
    group: int
    chooser: Chooser
    device: torch.device
    device_time: DeviceTime | None
    graphs: GraphRunner | None
    longest_round: int

    def is_bound_by_device(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a step's forward takes the device longer than its launches take the host.

        It is bound by arithmetic then: rounds that share it cost what is computed for their rows,
        less than a forward of their own, which reads all weights again.
        """
        if self.graphs is None:
            return False
        tokens = sum(len(chunk.ids) for chunk in chunks)
        return tokens > _BOUND_BY_HOST[self.chosen.compiled]

    def run(self, chunks: list[Chunk], meanwhile: Meanwhile) -> Answers:
        """Verdicts as `Engine.run`."""
        return self._run(chunks, meanwhile, 0)

    def run_together(
        self, rounds: list[Chunk], prompts: list[Chunk], meanwhile: Meanwhile
    ) -> tuple[Answers, Answers]:
        """Verdicts of rounds and of prompts, by one forward: weights are read once."""
        answers = self._run([*rounds, *prompts], meanwhile, len(rounds))
        return answers[: len(rounds)], answers[len(rounds) :]

    def choose_on(self, launched: Launched, chunks: list[Chunk]) -> Callable[[], Answers]:
        """Have tokens chosen that need more than the captured choice: edits, log-probabilities,
        other rules. The function waits for them."""
        logits = launched.logits[: sum(len(chunk.ids) for chunk in chunks)]
        choices = pack_choices(chunks, self.device)
        with self._launching():
            read = self.chooser.begin(logits, choices, chunks)
        return lambda: with_logprobs(logits, chunks, read())

    def _run(self, chunks: list[Chunk], meanwhile: Meanwhile, rounds: int) -> Answers:
        launches_first = self.is_bound_by_device(chunks)
        if not launches_first:
            # The host computes itself, or its launches take as long as the device's work: behind
            # them there would be nothing left to hide this.
            meanwhile()
        step = pack(
            chunks,
            self.cache,
            self.group,
            self.device,
            self.chosen.min_tokens,
            rounds,
            self.longest_round,
        )
        with self._launching():
            logits = self.chosen.forward(step)
        sampling = [chunk for chunk in chunks if chunk.samples]
        read = self._choose(logits, sampling, rounds) if sampling else None
        if launches_first:
            meanwhile()
        told = iter(read() if read is not None else ())
        answers = [next(told) if chunk.samples else None for chunk in chunks]
        return with_logprobs(logits, chunks, answers)

    def _choose(
        self, logits: Tensor, sampling: list[Chunk], rounds: int
    ) -> Callable[[], list[Verdict]]:
        logits = logits[: sum(chunk.drafts + 1 for chunk in sampling)]
        if self.graphs is not None and rounds:
            # Where there are no rounds what was begun for some is still good: its inputs stay.
            launched = self.graphs.choose([_as_round(chunk) for chunk in sampling], logits)
            if launched is not None:
                return partial(launched.verdicts, len(sampling))
        choices = pack_choices(sampling, self.device)
        with self._launching():
            return self.chooser.begin(logits, choices, sampling)

    def _launching(self) -> AbstractContextManager[None]:
        """Around what is given to the device outside of captures, for its account."""
        return nullcontext() if self.device_time is None else self.device_time.launch()


def _as_round(chunk: Chunk) -> Chunk:
    """The part of a chunk that chooses, as if its ids before that had been computed earlier."""
    before = len(chunk.ids) - chunk.drafts - 1
    return replace(chunk, ids=chunk.ids[before:], start=chunk.start + before) if before else chunk
