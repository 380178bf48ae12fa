"""No step reads a sequence from its beginning: what it costs must not grow with the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex

import pytest

from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import CacheShape, Verdict
from verifier_service.messages import DraftBlock, Output, Request, Sampling
from verifier_service.scheduler import Scheduler, StepTimes
from verifier_service.sequences import Sequence

BLOCK, K = 16, 3


class ReadInParts(list[int]):
    """Ids that may be read one by one, or a block at a time."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all ids of a sequence were read")

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            length = len(range(*index.indices(len(self))))
            assert length <= BLOCK, f"{length} ids of a sequence were copied"
        return super().__getitem__(index)


def make(*, prefix_caching: bool) -> Scheduler:
    return Scheduler(
        CacheShape(64, BLOCK),
        Controller(K, CostTable.from_profile({1: 0.01, 33: 0.0101}), adaptive=False),
        num_speculative_tokens=K,
        max_num_seqs=2,
        max_num_batched_tokens=512,
        max_waiting=4,
        prefix_caching=prefix_caching,
    )


def step(scheduler: Scheduler, *, drafts: int) -> list[Output]:
    """A step in which every draft is right."""
    scheduler.admit()
    views, _ = scheduler.views()
    blocks = {
        view.sequence_id: [DraftBlock("toy", len(view.ids), (1,) * drafts)]
        for view in views
        if drafts and view.max_draft_tokens
    }
    planned = scheduler.plan(blocks)
    verdicts: list[Verdict | None] = [
        Verdict(part.chunk.drafts, [1] * (part.chunk.drafts + 1)) for part in planned
    ]
    return [output for _, output in scheduler.apply(planned, verdicts, StepTimes(0, 10))]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("drafts", [0, K])
def test_a_decoding_step_reads_only_what_is_new(drafts: int, prefix_caching: bool) -> None:
    scheduler = make(prefix_caching=prefix_caching)
    sampling = Sampling(temperature=0.0, max_tokens=400)
    scheduler.add(Request("one", list(range(100, 300)), sampling), lambda output: None)
    step(scheduler, drafts=0)
    sequence = find(scheduler, "one")
    assert sequence.decoding
    sequence.ids = ReadInParts(sequence.ids)
    emitted = 0
    for _ in range(3 * BLOCK):
        emitted += sum(len(output.token_ids) for output in step(scheduler, drafts=drafts))
    assert emitted == 3 * BLOCK * (drafts + 1)
    assert len(sequence.ids) == 201 + emitted


def find(scheduler: Scheduler, request_id: str) -> Sequence:
    sequence = scheduler._queues.find(request_id)
    assert sequence is not None
    return sequence
