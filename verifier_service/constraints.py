"""What a request's constraint means to its rounds: drafts cut, rows masked, the output ended.

Knows sequences, blocks and `Constraint`s; does not know what a constraint is made of. Costs nothing
for a sequence without one. Whatever goes wrong inside a constraint is its request's failure alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from verifier_service.controller import Decision
from verifier_service.messages import DraftBlock, FinishReason, QForm
from verifier_service.sequences import Sequence

_REFUSED = Decision(None, 0, "the output's structure refuses the drafts offered")

# Tokens to emit, why the request ends there, the stop id.
Ending = tuple[list[int], FinishReason | None, int | None]


class ConstraintFailure(Exception):
    """A constraint cannot go on: its request must be failed, no other."""


def admissible(sequence: Sequence, blocks: list[DraftBlock]) -> list[DraftBlock]:
    """The blocks, cut before the first draft that the constraint refuses.

    Drafts sampled from a q that is sent with them are left as they are: to drop one because of
    what it is would change the proposal's distribution, and with it the output's. The rule refuses
    it, since its p is 0. Raises ConstraintFailure.
    """
    constraint = sequence.request.constraint
    if constraint is None:
        return blocks
    cut = []
    for block in blocks:
        if block.q_form is QForm.SPARSE and not sequence.greedy:
            cut.append(block)
            continue
        with _guarded():
            count = constraint.admitted(block.token_ids)
        if count:
            cut.append(_cut(block, count))
    return cut


def explained(decision: Decision, *, refused: bool) -> Decision:
    """The decision, with the true reason where there was nothing left to decide on."""
    return _REFUSED if refused and decision.block is None else decision


def masks(sequence: Sequence, drafts: Seq[int]) -> npt.NDArray[np.int32] | None:
    """Bit masks of the rows behind the sequence and each draft; None without a constraint.

    Raises ConstraintFailure.
    """
    constraint = sequence.request.constraint
    if constraint is None:
        return None
    with _guarded():
        return constraint.masks(drafts)


def commit(sequence: Sequence, ending: Ending) -> Ending:
    """Advance the constraint by what a round emits, cut where the constraint ends.

    Raises ConstraintFailure where it refuses a token that it had allowed.
    """
    constraint = sequence.request.constraint
    if constraint is None:
        return ending
    tokens, reason, stop = ending
    with _guarded():
        for count, token in enumerate(tokens, start=1):
            constraint.advance((token,))
            if constraint.ended:
                return tokens[:count], FinishReason.STOP, token
    return tokens, reason, stop


def satisfied(sequence: Sequence) -> bool:
    """Whether there is a constraint and the output so far is all that it asks for."""
    constraint = sequence.request.constraint
    return constraint is not None and constraint.complete


def _cut(block: DraftBlock, count: int) -> DraftBlock:
    if count == len(block.token_ids):
        return block
    return replace(
        block,
        token_ids=block.token_ids[:count],
        q=block.q[:count],
        confidences=block.confidences[:count],
        refused=len(block.token_ids) - count,
    )


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise ConstraintFailure(f"structured output: {error}") from error
