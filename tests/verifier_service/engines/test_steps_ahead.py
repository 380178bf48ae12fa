"""Steps that are begun with prompts in them, beside rounds whose tokens the host has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_graphs import table
from tests.verifier_service.engines.test_run_ahead import (
    LONG,
    LONG_FILTERED,
    LONG_RANDOM,
    Run,
    fills,
)
from tests.verifier_service.engines.test_torch_engine import engine, llama
from verifier_service.engines.base import CacheShape, Chunk, Verdict
from verifier_service.engines.graphs import GraphRunner
from verifier_service.engines.run_ahead import Joined, expect_blindly, joined, serving, with_tokens
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

__all__ = ["fills", "llama"]

NEW = {3: [9, 4, 9, 4, 60, 2], 4: [33, 8, 1]}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each step that was to be begun behind unread rounds: its chunks, and whether it was."""
    told: list[tuple[int, bool]] = []
    begin = GraphRunner.begin_behind

    def counting(self: GraphRunner, expected: Sequence[object], launched: object) -> bool:
        told.append((len(expected), begin(self, expected, launched)))  # type: ignore[arg-type]
        return told[-1][1]

    monkeypatch.setattr(GraphRunner, "begin_behind", counting)
    return told


class Arriving(Run):
    """A run whose rows may be joined by the prompts of `NEW`, read whole or in two parts."""

    def __init__(self, target: TorchEngine, samplings: list[Sampling]) -> None:
        super().__init__(target, samplings)
        for row in (3, 4):
            self.ids += [[] for _ in range(row + 1 - len(self.ids))]
            self.ids[row] = list(NEW[row])
            self.blocks += [table(at) for at in range(len(self.blocks), row + 1)]
        self.samplings += [LONG] * (5 - len(self.samplings))

    def prompt(self, row: int, **changes: object) -> Chunk:
        ids = self.ids[row]
        given = Chunk(
            list(ids),
            0,
            self.blocks[row],
            0,
            True,
            self.samplings[row],
            sequence_ids=ids,
            prompt_length=len(ids),
        )
        return replace(given, **changes)  # type: ignore[arg-type]

    def chunk(self, row: int, drafts: list[int] | None = None) -> Chunk:
        given = super().chunk(row, drafts)
        return replace(given, prompt_length=len(NEW[row])) if row in NEW else given

    def go(
        self,
        rows: list[int],
        prompts: Sequence[Chunk] = (),
        joining: Sequence[Chunk] = (),
        *,
        sure: bool = True,
    ) -> list[Verdict | None]:
        """A step of these rounds and prompts, behind which others join."""
        chunks = [*(self.chunk(row) for row in rows), *prompts]
        told = self.target.run(
            chunks, goes_on=lambda _: True, sure=sure, joining=lambda: list(joining)
        )
        for chunk, verdict in zip(chunks, told, strict=True):
            if verdict is not None:
                row = next(at for at, ids in enumerate(self.ids) if ids is chunk.sequence_ids)
                self.ids[row] += verdict.tokens
        return told


def both(
    llama: Path, monkeypatch: pytest.MonkeyPatch, samplings: list[Sampling]
) -> tuple[Arriving, Arriving]:
    return (
        Arriving(engine(llama), [*samplings]),
        Arriving(paged_engine(llama, monkeypatch), [*samplings]),
    )


@pytest.mark.parametrize("sure", [True, False], ids=["blindly", "after a look"])
@pytest.mark.parametrize(
    "samplings", [[LONG] * 3, [LONG_RANDOM] * 3, [LONG, LONG_FILTERED, LONG_RANDOM]]
)
def test_prompts_join_rounds_one_after_the_other(
    llama: Path,
    samplings: list[Sampling],
    sure: bool,
    monkeypatch: pytest.MonkeyPatch,
    fills: list[int],
    begun: list[tuple[int, bool]],
) -> None:
    plain, ahead = both(llama, monkeypatch, samplings)
    filled = []
    for run in (plain, ahead):
        fills.clear()
        begun.clear()
        run.go([0, 1, 2], sure=sure)
        first = run.prompt(3)
        run.go([0, 1, 2], joining=[first], sure=sure)
        second = run.prompt(4)
        run.go([0, 1, 2], [first], joining=[second], sure=sure)
        run.go([0, 1, 2, 3], [second], sure=sure)
        for _ in range(5):
            run.go([0, 1, 2, 3, 4], sure=sure)
        filled.append([*fills])
    assert ahead.ids == plain.ids
    # The first step, both with a prompt, and the one behind them: as often as others come.
    assert filled == [[], [3, 4, 5, 5]]
    assert begun == ([(4, True), (5, True), (5, True)] if sure else [])


def test_those_that_ended_leave_the_others_their_tokens(
    llama: Path, monkeypatch: pytest.MonkeyPatch, begun: list[tuple[int, bool]]
) -> None:
    plain, ahead = both(llama, monkeypatch, [LONG, LONG_RANDOM, LONG])
    for run in (plain, ahead):
        begun.clear()
        run.go([0, 1, 2])
        # The second is not asked for any more: of what was begun rows 0 and 2 are read.
        new = run.prompt(3)
        run.go([0, 2], joining=[new])
        run.go([0, 2], [new])
        run.go([0, 2, 3])
        run.go([2, 3])
        run.go([2, 3])
    assert ahead.ids == plain.ids
    assert begun[0] == (3, True)
    assert all(begins for _, begins in begun)


def test_a_prompt_that_is_taken_back_is_not_missed(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    plain, ahead = both(llama, monkeypatch, [LONG, LONG_RANDOM])
    for run in (plain, ahead):
        run.go([0, 1])
        run.go([0, 1], joining=[run.prompt(3)])
        fills.clear()
        run.go([0, 1])
        run.go([0, 1])
        # Its blocks may be another's by then.
        run.blocks[4] = run.blocks[3]
        run.go([0, 1], [run.prompt(4)])
        run.go([0, 1, 4])
    assert ahead.ids == plain.ids


def test_a_part_of_a_prompt_joins_and_its_end_is_planned(
    llama: Path, monkeypatch: pytest.MonkeyPatch, begun: list[tuple[int, bool]]
) -> None:
    plain, ahead = both(llama, monkeypatch, [LONG, LONG_RANDOM])
    for run in (plain, ahead):
        begun.clear()
        run.go([0, 1])
        whole = run.prompt(3)
        part = replace(whole, ids=whole.ids[:4], samples=False)
        rest = replace(whole, ids=whole.ids[4:], start=4)
        run.go([0, 1], joining=[part])
        told = run.go([0, 1], [part])
        assert told[2] is None
        run.go([0, 1], [rest])
        run.go([0, 1, 3])
    assert ahead.ids == plain.ids
    # Behind the part nothing was begun: the rest of the prompt was to be read.
    assert begun == [(3, True), (3, True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": replace(LONG, logprobs=2)},
        {"sampling": replace(LONG, logit_bias=((5, 9.0),))},
        {"sampling": replace(LONG, prompt_logprobs=1), "prompt_logprobs": True},
        {"ids": [5] * 70, "sequence_ids": [5] * 70, "prompt_length": 70},
    ],
    ids=["log-probabilities", "edits", "the prompt's log-probabilities", "more than is captured"],
)
def test_what_no_capture_serves_waits_for_its_own_step(
    llama: Path,
    changes: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    begun: list[tuple[int, bool]],
) -> None:
    plain, ahead = both(llama, monkeypatch, [LONG, LONG_RANDOM])
    answers = []
    for run in (plain, ahead):
        begun.clear()
        run.go([0, 1])
        new = run.prompt(3, **changes)
        run.blocks[3][:] = range(6, 9)
        run.samplings[3] = new.sampling
        if "sequence_ids" in changes:
            run.ids[3] = new.sequence_ids  # type: ignore[assignment]
        run.go([0, 1], joining=[new])
        told = run.go([0, 1], [new])
        run.go([0, 1])
        answers.append([verdict.tokens for verdict in told if verdict is not None])
    assert ahead.ids == plain.ids
    assert answers[0] == answers[1]
    assert not any(begins and count == 3 for count, begins in begun)


CACHE = CacheShape(8, 16)


def chunk(start: int = 4, **changes: object) -> Chunk:
    ids = list(range(start + 1))
    given = Chunk([start], start, [0], 0, True, LONG, sequence_ids=ids, prompt_length=3)
    return replace(given, **changes)  # type: ignore[arg-type]


def test_what_follows_a_prompt_is_known_but_for_its_token() -> None:
    prompt = chunk(ids=[0, 1, 2, 3, 4], start=0)
    begun = expect_blindly([chunk(6), prompt], CACHE, 1000)
    assert begun is not None
    assert [one.start for one in begun] == [7, 5]
    part = replace(prompt, samples=False)
    assert expect_blindly([chunk(6), part], CACHE, 1000) is None


def test_a_prompt_is_met_only_by_itself() -> None:
    prompt = chunk(ids=[0, 1, 2, 3, 4], start=0)
    (new,) = joined([prompt]) or []
    assert isinstance(new, Joined)
    assert new.is_met_by(replace(prompt, blocks=[0, 3]))
    for changes in (
        {"ids": [0, 1, 2]},
        {"start": 1},
        {"samples": False},
        {"sequence_ids": list(prompt.sequence_ids)},
        {"sampling": replace(LONG)},
        {"blocks": [1]},
        {"mask": object()},
        {"prompt_logprobs": True},
    ):
        assert not new.is_met_by(replace(prompt, **changes))  # type: ignore[arg-type]


def test_rows_are_told_their_tokens_and_those_that_joined_are_not() -> None:
    before = [chunk(4), chunk(6)]
    begun = expect_blindly(before, CACHE, 1000)
    prompt = chunk(ids=[7, 8], start=0)
    new = joined([prompt])
    assert begun is not None
    assert new is not None
    told = with_tokens([*begun, *new], [Verdict(0, [70]), Verdict(0, [71])])
    after = [one.as_chunk() for one in told]
    assert [one.ids for one in after] == [[70], [71], [7, 8]]
    found = serving(told, after)
    assert found is not None
    assert found.rows is None
    some = serving(told, [after[1], after[2]])
    assert some is not None
    assert some.rows == (1, 2)


@pytest.mark.parametrize("sure", [True, False], ids=["blindly", "after a look"])
def test_what_the_host_chooses_is_not_begun(
    llama: Path, monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """One that ends with its prompt leaves a row in front of one that wants log-probabilities."""
    plain, ahead = both(llama, monkeypatch, [LONG])
    told = []
    for run in (plain, ahead):
        run.samplings[4] = replace(LONG, logprobs=1)
        run.go([], [run.prompt(3), run.prompt(4)], sure=sure)
        told.append([run.go([4], sure=sure) for _ in range(3)])
        new = run.prompt(3)
        run.go([4], joining=[new], sure=sure)
        run.go([4], [new], sure=sure)
        run.go([4, 3], sure=sure)
    assert ahead.ids == plain.ids
    assert [[v.tokens for v in step if v] for step in told[0]] == [
        [v.tokens for v in step if v] for step in told[1]
    ]
