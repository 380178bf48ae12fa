"""What a step consists of, and what its outcome teaches the controller.

Knows sequences, chunks, decisions and verdicts; does not know queues or blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as TypingSequence
from dataclasses import dataclass
from typing import Protocol

from outrider.records import record
from verifier_service import constraints
from verifier_service.controller import Controller, Decision
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.messages import DraftBlock, QForm
from verifier_service.sequences import Sequence

PREFILL = Decision(None, 0, "prefill")


@record(frozen=True, slots=True)
class Planned:
    """One sequence's part of a step and the decision behind it."""

    sequence: Sequence
    chunk: Chunk
    decision: Decision
    offered: tuple[DraftBlock, ...] = ()


@record(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds that the step waited for drafts and that its forward and sampling took.

    `around_ns` is all that it took besides the forward before its verdicts are committed, the wait
    included.
    """

    draft_wait_ns: int
    verify_ns: int
    around_ns: int = 0


class StepRecorder(Protocol):
    """Takes in what steps did, for a recording; called on the engine's thread, must not block."""

    def observe(
        self,
        planned: TypingSequence[Planned],
        verdicts: TypingSequence[Verdict | None],
        asked: dict[int, int],
        times: StepTimes,
    ) -> None:
        """A step, before its verdicts are committed; `asked` drafts of each sequence."""

    def end(self, sequence_id: int) -> None:
        """A sequence has ended."""

    def close(self) -> None:
        """Nothing more follows."""


def round_chunk(sequence: Sequence, decision: Decision) -> Chunk:
    """A sequence's last id and the drafts behind it. Raises ConstraintFailure."""
    block = decision.block
    drafts = block.token_ids[: decision.drafted] if block is not None else ()
    constrained = sequence.request.constraint is not None
    return Chunk(
        [sequence.ids[-1], *drafts],
        sequence.computed,
        sequence.blocks,
        len(drafts),
        True,
        sequence.sampling,
        block.q_form if block is not None else QForm.ONE_HOT,
        block.q[: decision.drafted] if block is not None else (),
        sequence.ids,
        sequence.prompt_length,
        constraints.masks(sequence, list(drafts)) if constrained else None,
    )


def prefill_chunk(sequence: Sequence, count: int) -> Chunk:
    """A sequence's next `count` ids. Raises ConstraintFailure."""
    start = sequence.computed
    samples = start + count == len(sequence.ids)
    return Chunk(
        ids=sequence.ids[start : start + count],
        start=start,
        blocks=sequence.blocks,
        drafts=0,
        samples=samples,
        sampling=sequence.sampling,
        sequence_ids=sequence.ids,
        prompt_length=sequence.prompt_length,
        mask=constraints.masks(sequence, ()) if samples else None,
        prompt_logprobs=sequence.prompt_untold,
    )


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Of `count` sequences that have begun: who decodes at once, and who reads how many tokens of
    its prompt."""

    count: int
    rounds: list[Sequence]
    shares: list[tuple[Sequence, int]]

    def chunks(self) -> list[Chunk] | None:
        """Theirs of that step, in its order; None where one has a structure to keep to."""
        everybody = [*self.rounds, *(sequence for sequence, _ in self.shares)]
        if any(sequence.request.constraint is not None for sequence in everybody):
            return None
        rounds = [round_chunk(sequence, PREFILL) for sequence in self.rounds]
        return rounds + [prefill_chunk(sequence, count) for sequence, count in self.shares]


def teach(controller: Controller, part: Planned, verdict: Verdict) -> None:
    """Tell the controller how the drafts did, the verified one's and the others'."""
    sequence, decision = part.sequence, part.decision
    verified = decision.block if decision.drafted else None
    if verified is not None:
        controller.observe_round(
            sequence.sequence_id,
            verified,
            greedy=sequence.greedy,
            drafted=decision.drafted,
            accepted=verdict.accepted,
        )
    for block in part.offered:
        if block is verified or (block.q_form is QForm.SPARSE and not sequence.greedy):
            continue
        matched = 0
        compared = min(len(block.token_ids), len(verdict.tokens))
        while matched < compared and block.token_ids[matched] == verdict.tokens[matched]:
            matched += 1
        controller.observe_shadow(
            sequence.sequence_id,
            block,
            greedy=sequence.greedy,
            compared=min(matched + 1, compared),
            matched=matched,
        )
