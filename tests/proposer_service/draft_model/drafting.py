"""A draft model proposer over the toy, whose cache notices every key that is not right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.coupling import gumbel
from proposer_service.draft_model.proposer import Budgets, DraftModelProposer
from proposer_service.proposers.batch import Drafted, TargetSampling, Wanted
from tests.toy import Toy
from tests.toy_engine import ToyEngine
from verifier_service.messages import Sampling

DRAFT = Toy.target().draft(sigma=0.5)


class Drafting:
    """A proposer with `toy`'s opinion, and what its engine was made to read."""

    def __init__(
        self,
        toy: Toy = DRAFT,
        *,
        num_blocks: int = 64,
        budgets: Budgets | None = None,
        sample_method: str | None = None,
    ) -> None:
        self.toy = toy
        self.engine = ToyEngine(toy, num_blocks=num_blocks)
        self.proposer = DraftModelProposer(
            self.engine, sample_method=sample_method, budgets=budgets
        )

    def open(self, number: int, ids: Sequence[int], target: TargetSampling | None = None) -> None:
        self.proposer.open(number, ids, len(ids), "")
        if target is not None:
            self.proposer.heed(number, target)

    def draft(self, *numbers: int, k: int = 4) -> list[tuple[int, ...]]:
        """What one step drafts for these sequences together."""
        pieces = self.proposer.propose_many([Wanted(number, k) for number in numbers])
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                return [draft.ids for draft in done.value]

    def look_ahead(self, *drafted: Drafted) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """By sequence the end that was prepared, and the draft behind it."""
        return {
            number: (outcome.ids, outcome.draft.ids)
            for found in self.proposer.prepare(drafted)
            for number, outcome in found
        }

    def catch_up(self) -> Iterator[None]:
        return self.proposer.catch_up()

    def read(self) -> list[int]:
        """How many ids each forward has read since this was last asked."""
        steps = [sum(len(chunk.ids) for chunk in step) for step in self.engine.steps]
        self.engine.steps.clear()
        return steps


def said(toy: Toy, ids: Sequence[int], k: int, sampling: Sampling | None = None) -> tuple[int, ...]:
    """The `k` tokens that a model says behind `ids`: its argmax, or with a request's noise."""
    text = list(ids)
    for _ in range(k):
        logits = toy.logits_after(text).numpy()
        if sampling is not None:
            logits = logits / sampling.temperature + gumbel(
                sampling.seed, len(text), range(toy.vocab_size)
            )
        text.append(int(logits.argmax()))
    return tuple(text[len(ids) :])
