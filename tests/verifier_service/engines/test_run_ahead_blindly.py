"""Plain steps that are begun before the step in front of them has been read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_graphs import PROMPTS
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
from verifier_service.engines.run_ahead import expect_blindly, serving, with_tokens
from verifier_service.messages import Sampling

__all__ = ["fills", "llama"]


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step that might be begun blindly was."""
    begun: list[bool] = []
    begin = GraphRunner.begin_blindly

    def counting(self: GraphRunner, *arguments: object) -> bool:
        begun.append(begin(self, *arguments))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(GraphRunner, "begin_blindly", counting)
    return begun


@pytest.mark.parametrize("samplings", [[LONG], [LONG_RANDOM], [LONG, LONG_FILTERED, LONG_RANDOM]])
def test_steady_decoding_says_the_same(
    llama: Path,
    samplings: list[Sampling],
    monkeypatch: pytest.MonkeyPatch,
    fills: list[int],
    blind: list[bool],
) -> None:
    plain = Run(engine(llama), samplings)
    ahead = Run(paged_engine(llama, monkeypatch), samplings)
    fills.clear()
    for _ in range(40):
        plain.step(steady=False)
        ahead.step(steady=True, sure=True)
    assert ahead.ids == plain.ids
    assert fills == [len(samplings)]
    assert blind == [True] * 40


def test_those_that_are_left_are_served_when_one_ends(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int], blind: list[bool]
) -> None:
    plain = Run(engine(llama), [LONG] * 3)
    ahead = Run(paged_engine(llama, monkeypatch), [LONG] * 3)
    fills.clear()
    for rows in ([0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0, 2], [2]):
        plain.step(steady=False, rows=rows)
        ahead.step(steady=True, rows=rows, sure=True)
    assert ahead.ids == plain.ids
    # Where one has left the next step is filled anew, behind the one that was begun for all.
    assert blind == [True, True, False, True, True, False]
    assert fills == [3, 2, 1]


def test_other_sequences_or_another_order_are_noticed(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Run(engine(llama), [LONG] * 3)
    ahead = Run(paged_engine(llama, monkeypatch), [LONG] * 3)
    for rows in ([0, 1], [0, 1], [1, 0], [0, 1, 2], [2, 0], [1], [0, 1, 2]):
        plain.step(steady=False, rows=rows)
        ahead.step(steady=True, rows=rows, sure=True)
    assert ahead.ids == plain.ids


def test_the_blocks_of_one_that_ended_may_be_anothers(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for target, sure in ((engine(llama), False), (paged_engine(llama, monkeypatch), True)):
        run = Run(target, [LONG] * 2)
        for _ in range(3):
            run.step(steady=sure, sure=sure)
        # The first ends; its blocks go to a new one while the second decodes on.
        new = [*PROMPTS[0][::-1], 3, 1]
        prompt = Chunk(
            new, 0, run.blocks[0], 0, True, LONG, sequence_ids=new, prompt_length=len(new)
        )
        first, other = target.run([prompt, run.chunk(1)], goes_on=lambda _: True, sure=sure)
        assert first is not None
        assert other is not None
        run.ids[1] += other.tokens
        run.ids[0] = [*new, *first.tokens]
        for _ in range(6):
            chunks = [replace(run.chunk(0), prompt_length=len(new)), run.chunk(1)]
            for row, verdict in enumerate(target.run(chunks, goes_on=lambda _: True, sure=sure)):
                assert verdict is not None
                run.ids[row] += verdict.tokens
        answers.append(run.ids)
    assert answers[0] == answers[1]


def test_drafts_are_verified_behind_it(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for target, sure in ((engine(llama), False), (paged_engine(llama, monkeypatch), True)):
        run = Run(target, [LONG, LONG])
        run.step(steady=sure, sure=sure)
        run.step(steady=sure, sure=sure)
        answers.append(target.run([run.chunk(0, [5, 6]), run.chunk(1)], sure=sure))
        run.step(steady=sure, sure=sure)
        answers.append(run.ids)
    assert answers[:2] == answers[2:]


def test_nothing_goes_on_against_the_word_of_the_host(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    run = Run(paged_engine(llama, monkeypatch), [LONG])
    fills.clear()
    for _ in range(3):
        (verdict,) = run.target.run([run.chunk(0)], goes_on=lambda _: False, sure=True)
        assert verdict is not None
        run.ids[0] += verdict.tokens
    assert fills == [1, 1, 1]


CACHE = CacheShape(8, 16)


def chunk(start: int = 4, **changes: object) -> Chunk:
    ids = list(range(start + 1))
    given = Chunk([start], start, [0], 0, True, LONG, sequence_ids=ids, prompt_length=3)
    return replace(given, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (chunk(15), 1000),
        (chunk(8), 10),
        (chunk(ids=[4, 9], drafts=1), 1000),
    ],
    ids=["no room in its blocks", "no room in the model", "drafts"],
)
def test_what_has_no_room_or_may_be_longer_is_not_begun(given: Chunk, limit: int) -> None:
    assert expect_blindly([chunk(), given], CACHE, limit) is None
    assert expect_blindly([chunk()], CACHE, limit) is not None


def test_one_that_ends_keeps_no_other_waiting() -> None:
    last = chunk(sampling=replace(LONG, max_tokens=3))
    begun = expect_blindly([chunk(), last, chunk(6)], CACHE, 1000)
    assert begun is not None
    assert [one.start for one in begun] == [5, 5, 7]
    assert expect_blindly([last, last], CACHE, 1000) is None


def test_those_that_are_left_are_served(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    """The one that ends is told so by its number of tokens; its row was begun all the same."""
    short = replace(LONG, max_tokens=2)
    found = []
    for target in (engine(llama), paged_engine(llama, monkeypatch)):
        run = Run(target, [LONG, short, LONG_RANDOM])
        fills.clear()
        for rows in ([0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0, 2]):
            run.step(steady=True, rows=rows, sure=True)
        found.append(run.ids)
    assert found[0] == found[1]
    # Once at first, and once where the rows that are left are on their own.
    assert fills == [3, 2]


def test_rows_are_found_by_what_is_asked_for() -> None:
    before = [chunk(4), chunk(6), chunk(8)]
    expected = expect_blindly(before, CACHE, 1000)
    assert expected is not None
    told = with_tokens(expected, [Verdict(0, [token]) for token in (70, 71, 72)])
    after = [one.as_chunk() for one in told]
    found = serving(told, after)
    assert found is not None
    assert found.rows is None
    for rows in ((0, 2), (1,), (1, 2)):
        some = serving(told, [after[row] for row in rows])
        assert some is not None
        assert some.rows == rows
    assert serving(told, [after[1], after[0]]) is None
    assert serving(told, [replace(after[0], ids=[99])]) is None
    assert serving(expected, after) is None, "its tokens are not known yet"
