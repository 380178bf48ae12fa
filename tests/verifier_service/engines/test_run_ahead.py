"""Steps that are begun before they are asked for: used where they fit, forgotten where not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_graphs import GREEDY, PROMPTS, RANDOM, prefill, table
from tests.verifier_service.engines.test_torch_engine import engine, llama
from verifier_service.engines import graphs
from verifier_service.engines.base import CacheShape, Chunk, Verdict
from verifier_service.engines.run_ahead import Expected, Served, expect, serving
from verifier_service.engines.step_buffers import StepBuffers
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

__all__ = ["llama"]

LONG = replace(GREEDY, max_tokens=100)
LONG_RANDOM = replace(RANDOM, max_tokens=100)
LONG_FILTERED = replace(LONG_RANDOM, top_p=0.8)


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each step whose inputs the host wrote."""
    counts: list[int] = []
    fill = StepBuffers.fill

    def counting(self: StepBuffers, chunks: list[Chunk], bucket: object) -> None:
        counts.append(len(chunks))
        fill(self, chunks, bucket)  # type: ignore[arg-type]

    monkeypatch.setattr(StepBuffers, "fill", counting)
    return counts


class Run:
    """Sequences decoded plainly on one engine, as a scheduler would."""

    def __init__(self, target: TorchEngine, samplings: list[Sampling]) -> None:
        self.target = target
        self.samplings = samplings
        self.ids = [list(ids) for ids in PROMPTS[: len(samplings)]]
        self.blocks = [table(row) for row in range(len(samplings))]
        prefill(target, len(samplings))

    def chunk(self, row: int, drafts: list[int] | None = None) -> Chunk:
        ids = self.ids[row]
        return Chunk(
            [ids[-1], *(drafts or [])],
            len(ids) - 1,
            self.blocks[row],
            len(drafts or []),
            True,
            self.samplings[row],
            sequence_ids=ids,
            prompt_length=len(PROMPTS[row]),
        )

    def step(self, *, steady: bool, rows: list[int] | None = None, sure: bool = False) -> None:
        rows = list(range(len(self.ids))) if rows is None else rows
        goes_on = (lambda _: True) if steady else None
        chunks = [self.chunk(row) for row in rows]
        verdicts = self.target.run(chunks, goes_on=goes_on, sure=sure)
        for row, verdict in zip(rows, verdicts, strict=True):
            assert verdict is not None
            self.ids[row] += verdict.tokens


@pytest.mark.parametrize("samplings", [[LONG], [LONG_RANDOM], [LONG, LONG_FILTERED, LONG_RANDOM]])
def test_steady_decoding_fills_once_and_says_the_same(
    llama: Path, samplings: list[Sampling], monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    plain = Run(engine(llama), samplings)
    ahead = Run(paged_engine(llama, monkeypatch), samplings)
    fills.clear()
    for _ in range(40):
        plain.step(steady=False)
        ahead.step(steady=True)
    assert ahead.ids == plain.ids
    assert fills == [len(samplings)]


def test_a_sequence_that_leaves_or_joins_is_noticed(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    plain = Run(engine(llama), [LONG] * 3)
    ahead = Run(paged_engine(llama, monkeypatch), [LONG] * 3)
    fills.clear()
    for rows in ([0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [2, 0], [0, 1, 2], [1]):
        plain.step(steady=False, rows=rows)
        ahead.step(steady=True, rows=rows)
    assert ahead.ids == plain.ids
    assert fills == [3, 2, 2, 3, 1]


def test_what_was_begun_is_compared_once_with_what_is_asked_for(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []

    def counting(expected: list[Expected], chunks: list[Chunk]) -> Served | None:
        compared.append(chunks)
        return serving(expected, chunks)

    monkeypatch.setattr(graphs, "serving", counting)
    run = Run(paged_engine(llama, monkeypatch), [LONG, LONG])
    compared.clear()
    for _ in range(4):
        run.step(steady=True)
    assert len(compared) == 3


def test_drafts_after_a_steady_step_are_verified(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for target in (engine(llama), paged_engine(llama, monkeypatch)):
        run = Run(target, [LONG, LONG])
        run.step(steady=True)
        run.step(steady=True)
        answers.append(target.run([run.chunk(0, [5, 6]), run.chunk(1)]))
        run.step(steady=True)
        answers.append(run.ids)
    assert answers[:2] == answers[2:]


def test_a_plain_step_is_begun_behind_drafts(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    plain, ahead = Run(engine(llama), [LONG] * 2), Run(paged_engine(llama, monkeypatch), [LONG] * 2)
    for _ in range(8):
        plain.step(steady=False)
    right = plain.ids[0][len(PROMPTS[0]) :]
    fills.clear()
    for drafts in ([right[0], right[1]], [right[3], -1], []):
        drafts = [token if token >= 0 else (right[4] + 1) % 32 for token in drafts]
        chunks = [ahead.chunk(0, drafts), ahead.chunk(1)]
        verdicts = ahead.target.run(chunks, goes_on=lambda _: True)
        for row, verdict in enumerate(verdicts):
            assert verdict is not None
            ahead.ids[row] += verdict.tokens
    # Three tokens, two (one draft was wrong), one: what the last step needs was filled ahead.
    assert len(ahead.ids[0]) == len(PROMPTS[0]) + 6
    assert fills == [2, 2, 2, 2]
    for _ in range(4):
        ahead.step(steady=True)
    assert fills == [2, 2, 2, 2]
    for row in range(2):
        shorter = min(len(ahead.ids[row]), len(plain.ids[row]))
        assert ahead.ids[row][:shorter] == plain.ids[row][:shorter]


def test_nothing_is_begun_against_the_word_of_the_host(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    run = Run(paged_engine(llama, monkeypatch), [LONG])
    fills.clear()
    told = []
    for _ in range(2):
        (verdict,) = run.target.run([run.chunk(0)], goes_on=lambda seen: bool(told.append(seen)))
        assert verdict is not None
        assert told[-1] == [verdict]
        run.ids[0] += verdict.tokens
    assert fills == [1, 1]


def test_a_block_table_that_was_taken_away_is_noticed(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    run = Run(paged_engine(llama, monkeypatch), [LONG])
    run.step(steady=True)
    run.target.copy_blocks([(0, 8), (1, 9)])
    run.blocks[0] = [8, 9]
    fills.clear()
    run.step(steady=True)
    assert fills == [1]
    plain = Run(engine(llama), [LONG])
    plain.step(steady=False)
    plain.step(steady=False)
    assert run.ids == plain.ids


def test_a_block_that_came_later_is_sent_to_the_device_first(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    plain, ahead = Run(engine(llama), [LONG]), Run(paged_engine(llama, monkeypatch), [LONG])
    ahead.blocks[0] = [6]
    ahead.target.copy_blocks([(0, 6)])
    fills.clear()
    for _ in range(40):
        if len(ahead.ids[0]) == 32:
            ahead.blocks[0].append(9)
        plain.step(steady=False)
        ahead.step(steady=True)
    assert ahead.ids == plain.ids
    assert fills == [1, 1]


def test_requests_that_need_more_than_the_captured_choice_never_run_ahead(
    llama: Path, monkeypatch: pytest.MonkeyPatch, fills: list[int]
) -> None:
    run = Run(paged_engine(llama, monkeypatch), [replace(LONG_RANDOM, logprobs=0)])
    fills.clear()
    for _ in range(3):
        run.step(steady=True)
    assert fills == [1, 1, 1]


CACHE = CacheShape(8, 4)


def chunk(start: int, blocks: list[int], sampling: Sampling = LONG, drafts: int = 0) -> Chunk:
    ids = [3] * (drafts + 1)
    return Chunk(ids, start, blocks, drafts, True, sampling, prompt_length=2)


def test_what_is_expected_lies_behind_the_accepted_drafts() -> None:
    asked = chunk(4, [7, 6, 1], drafts=3)
    (expected,) = expect([asked], [Verdict(2, [3, 3, 9])], CACHE, 32) or []
    assert (expected.token, expected.start, expected.blocks) == (9, 7, (7, 6))
    assert expected.is_met_by(expected.as_chunk())
    stopping = replace(asked, sampling=replace(LONG, stop_token_ids=frozenset({3})))
    assert expect([stopping], [Verdict(2, [3, 3, 9])], CACHE, 32) is None
    short = replace(asked, blocks=[7, 6])
    assert expect([short], [Verdict(3, [3, 3, 3, 9])], CACHE, 32) is None


def test_what_is_expected_is_one_position_on() -> None:
    asked = chunk(5, [7, 6, 1])
    (expected,) = expect([asked], [Verdict(0, [9])], CACHE, 32) or []
    assert (expected.token, expected.start, expected.blocks) == (9, 6, (7, 6))
    following = replace(asked, ids=[9], start=6)
    assert expected.is_met_by(following)
    for other in (
        replace(following, ids=[8]),
        replace(following, ids=[9, 9]),
        replace(following, start=7),
        replace(following, blocks=[7, 5, 1]),
        replace(following, sampling=replace(LONG)),
        replace(following, sequence_ids=[1]),
    ):
        assert not expected.is_met_by(other)


@pytest.mark.parametrize(
    ("asked", "token"),
    [
        (chunk(7, [0, 1]), 9),
        (chunk(5, [0, 1], replace(LONG, max_tokens=5)), 9),
        (chunk(5, [0, 1], replace(LONG, stop_token_ids=frozenset({9}))), 9),
        (chunk(15, [0, 1, 2, 3, 4]), 9),
    ],
    ids=["no block", "max_tokens", "stop", "context"],
)
def test_nothing_is_expected_where_the_sequence_cannot_go_on(asked: Chunk, token: int) -> None:
    assert expect([asked], [Verdict(0, [token])], CACHE, 16) is None
