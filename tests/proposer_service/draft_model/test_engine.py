"""The draft model on the real engine: as it runs on a CPU, and by the turns it takes on a card."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proposer_service.draft_model.proposer import Budgets, DraftModelProposer
from proposer_service.proposers.base import Draft
from proposer_service.proposers.batch import Drafted, TargetSampling, Wanted
from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_torch_engine import engine, llama
from verifier_service.engines.base import Chunk
from verifier_service.engines.graphs import GraphRunner
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

__all__ = ["llama"]

K = 3
COUNT = 4
COUPLED = TargetSampling(temperature=0.8, seed=9, coupled=True)


def drafts_of(proposer: DraftModelProposer, numbers: list[int]) -> list[tuple[int, ...]]:
    pieces = proposer.propose_many([Wanted(number, K) for number in numbers])
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return [draft.ids for draft in done.value]


def played(target: TorchEngine, *, lookahead: bool) -> list[list[tuple[int, ...]]]:
    """The drafts of a game of commits that depends on them, with sequences of every kind."""
    rng = random.Random(4)
    proposer = DraftModelProposer(target, budgets=Budgets(answer=40, piece=40))
    for number in range(COUNT):
        prompt = [rng.randrange(97) for _ in range(rng.randrange(2, 50))]
        proposer.open(number, prompt, len(prompt), "")
        proposer.heed(number, COUPLED if number % 2 else TargetSampling())
    found = []
    for _ in range(8):
        numbers = [n for n in range(COUNT) if rng.random() < 0.8] or [0]
        drafts = drafts_of(proposer, numbers)
        found.append(drafts)
        if lookahead:
            for _ in proposer.prepare(
                [Drafted(n, Draft(d), K) for n, d in zip(numbers, drafts, strict=True)]
            ):
                pass
        list(proposer.catch_up())
        for number, draft in zip(numbers, drafts, strict=True):
            accepted = rng.randrange(len(draft) + 1)
            own = draft[0] if draft and rng.random() < 0.5 else rng.randrange(97)
            proposer.extend(number, [*draft[:accepted], own])
    return found


@pytest.mark.parametrize("lookahead", [False, True])
def test_captured_steps_begun_ahead_say_what_plain_ones_say(
    llama: Path, monkeypatch: pytest.MonkeyPatch, lookahead: bool
) -> None:
    plain = played(engine(llama), lookahead=False)
    begun: list[bool] = []
    begin = GraphRunner.begin_blindly

    def counting(self: GraphRunner, *arguments: object) -> bool:
        begun.append(begin(self, *arguments))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(GraphRunner, "begin_blindly", counting)
    none = {"num_speculative_tokens": 0, "num_prediction_tokens": 0}
    captured = paged_engine(llama, monkeypatch, **none)
    monkeypatch.setattr(eager_steps_module(), "pack", None)
    assert played(captured, lookahead=lookahead) == plain
    assert sum(begun) > 6


def eager_steps_module() -> object:
    """Where eager steps are packed: without it every step must be a captured one."""
    from verifier_service.engines import eager_steps

    return eager_steps


def test_a_draft_is_what_plain_decoding_of_the_model_says(llama: Path) -> None:
    target = engine(llama)
    proposer = DraftModelProposer(engine(llama))
    for number, sampling in enumerate([COUPLED, TargetSampling()]):
        ids = [3, 1, 4, 1, 5]
        proposer.open(number, ids, 5, "")
        proposer.heed(number, sampling)
        (draft,) = drafts_of(proposer, [number])
        own = Sampling(temperature=sampling.temperature, seed=sampling.seed)
        chunk = Chunk([*ids, *draft], 0, [0], K, True, own)
        (verdict,) = target.run([chunk])
        assert verdict is not None
        assert (verdict.accepted, tuple(verdict.tokens[:K])) == (K, draft)
