"""Random games of two streams whose work alternates, in caches of every size: no draft is wrong.

What the engine must never see (keys of another text, blocks that two texts write) fails in the toy
engine itself.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from proposer_service.draft_model.proposer import Budgets
from proposer_service.proposers.base import Draft
from proposer_service.proposers.batch import Drafted, TargetSampling, Wanted
from tests.proposer_service.draft_model.drafting import Drafting, said
from verifier_service.messages import Sampling

MOVES = 120


@dataclass
class Stream:
    """One verifier's sequences, and the work of its last step as far as it came."""

    texts: dict[int, list[int]] = field(default_factory=dict)
    answering: Generator[None, None, list[Draft]] | None = None
    ahead: object = None
    wanted: list[Wanted] = field(default_factory=list)


class Game:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drafting = Drafting(
            num_blocks=self.rng.choice([6, 12, 24, 64]),
            budgets=Budgets(self.rng.choice([4, 8, 16, 64]), self.rng.choice([3, 8, 32])),
        )
        self.proposer = self.drafting.proposer
        self.streams = [Stream(), Stream()]
        self.samplings: dict[int, Sampling | None] = {}
        self.drafted = 0

    def play(self) -> None:
        moves = (self.open, self.close, self.step, self.step, self.catch_up, self.go_on, self.go_on)
        for _ in range(MOVES):
            self.rng.choice(moves)(self.rng.choice(self.streams))
        for stream in self.streams:
            for number in list(stream.texts):
                self.proposer.close(number, True)

    def open(self, stream: Stream) -> None:
        number = len(self.samplings) + 1
        ids = [self.rng.randrange(4) for _ in range(self.rng.randrange(1, 30))]
        noisy = self.rng.random() < 0.5
        target = TargetSampling(0.8, seed=7 - 3 * number, coupled=noisy, vocabulary_size=4)
        self.samplings[number] = Sampling(temperature=0.8, seed=target.seed) if noisy else None
        if len(stream.texts) < 4 and stream.answering is None:
            stream.texts[number] = ids
            self.drafting.open(number, ids, target)

    def close(self, stream: Stream) -> None:
        if stream.texts and self.rng.random() < 0.5:
            # With the stream, or between two steps.
            stream.answering = stream.ahead = None
            number = self.rng.choice(list(stream.texts))
            del stream.texts[number]
            self.proposer.close(number, self.rng.random() < 0.5)

    def step(self, stream: Stream) -> None:
        numbers = [number for number in stream.texts if self.rng.random() < 0.8]
        if stream.answering is not None or not numbers:
            return
        stream.ahead = None
        for number in numbers:
            chain = self.proposer._texts[number].chain
            new = chain[: self.rng.randrange(len(chain) + 1)]
            new += [self.rng.randrange(4)] * self.rng.randrange(2)
            if new and len(stream.texts[number]) + len(new) < 200:
                self.proposer.extend(number, new)
                stream.texts[number] += new
        most = self.rng.randrange(1, 6)
        stream.wanted = [Wanted(number, most) for number in numbers]
        stream.answering = self.proposer.propose_many(stream.wanted)

    def catch_up(self, stream: Stream) -> None:
        work = self.proposer.catch_up()
        for _ in range(self.rng.randrange(3)):
            next(work, None)

    def go_on(self, stream: Stream) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            if stream.answering is None:
                if stream.ahead is not None:
                    next(stream.ahead, None)  # type: ignore[call-overload]
                continue
            try:
                next(stream.answering)
            except StopIteration as done:
                self.check(stream, done.value)

    def check(self, stream: Stream, drafts: list[Draft]) -> None:
        found = list(zip(stream.wanted, drafts, strict=True))
        for (number, most), draft in found:
            true = said(self.drafting.toy, stream.texts[number], most, self.samplings[number])
            assert draft.ids == true[: len(draft.ids)]
            self.drafted += bool(draft.ids)
        stream.answering = None
        stream.ahead = self.proposer.prepare(
            [Drafted(number, draft, most) for (number, most), draft in found]
        )


def test_no_draft_is_wrong_and_nothing_is_left() -> None:
    drafted = evictions = 0
    for seed in range(80):
        game = Game(seed)
        game.play()
        drafted += game.drafted
        evictions += game.proposer.evictions
        assert game.proposer._blocks.num_free == game.drafting.engine.cache.num_blocks
        assert not game.proposer._waiting
    assert drafted > 300
    assert evictions > 20


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_prompts_that_do_not_fit_together_do_not_take_turns_for_ever(
    order: tuple[int, int],
) -> None:
    drafting = Drafting(num_blocks=6, budgets=Budgets(answer=4, piece=4))
    for _ in range(40):
        drafting.draft()
    texts = {number: [number] * 16 for number in (1, 2)}
    for number in order:
        drafting.open(number, texts[number])
    for _ in range(40):
        drafting.draft()
    assert len(list(drafting.catch_up())) < 20
    assert drafting.draft(1, k=2) == [said(drafting.toy, texts[1], 2)]
