"""Captured prefill against the engine that captures nothing: same tokens, same cache behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_graphs import GREEDY, PROMPTS, RANDOM, table, verify
from tests.verifier_service.engines.test_torch_engine import any_model, engine, llama
from verifier_service.engines import eager_steps, graphs, prefill_graphs
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.buckets import Bucket
from verifier_service.engines.graphs import GraphRunner, Launched
from verifier_service.engines.step_buffers import StepBuffers
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import RejectionRule, Sampling

__all__ = ["any_model", "llama"]

FILTERED = replace(RANDOM, top_p=0.7, top_k=30)
SAMPLINGS = [GREEDY, RANDOM, FILTERED, GREEDY, FILTERED]
SMALL = {"max_captured_prefill_tokens": 64, "max_num_seqs": 3, "num_speculative_tokens": 2}

Step = Callable[[TorchEngine], list[Verdict | None]]


def read(row: int, ids: list[int], sampling: Sampling, begin: int = 0, end: int = 0) -> Chunk:
    """A part of a prompt; one that reaches its end chooses."""
    end = end or len(ids)
    return Chunk(
        ids[begin:end],
        begin,
        table(row),
        0,
        end == len(ids),
        sampling,
        sequence_ids=ids,
        prompt_length=len(ids),
    )


def replays_only(target: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> TorchEngine:
    """An engine that fails where it would run a step uncaptured."""
    monkeypatch.setattr(eager_steps, "pack", None)
    return target


def alike(folder: Path, steps: list[list[Chunk]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines say the same in each of the steps, one without leaving its graphs."""
    plain = engine(folder)
    wanted = [plain.run(chunks) for chunks in steps]
    target = replays_only(paged_engine(folder, monkeypatch, **SMALL), monkeypatch)
    assert [target.run(chunks) for chunks in steps] == wanted


def test_every_architecture_reads_prompts_as_it_does_uncaptured(
    any_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [read(row, ids, SAMPLINGS[row]) for row, ids in enumerate(PROMPTS[:3])]
    alike(any_model, [prompts[:1], prompts[1:]], monkeypatch)


def test_a_prompt_in_parts_is_one_prompt(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(5)
    ids = [source.randrange(97) for _ in range(60)]
    cuts = [(0, 7), (7, 8), (8, 41), (41, 60)]
    parts = [[read(0, ids, FILTERED, begin, end)] for begin, end in cuts]
    whole = [read(0, ids, FILTERED)]
    alike(llama, [*parts, whole], monkeypatch)


def test_prompts_and_rounds_are_replayed_side_by_side(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [read(row, PROMPTS[row][:-1], GREEDY) for row in range(2)]
    mixed = [
        verify(0, PROMPTS[0], [3, 4], RANDOM),
        read(2, PROMPTS[2], FILTERED),
        verify(1, PROMPTS[1], [], GREEDY),
        read(4, PROMPTS[4], GREEDY, 0, 3),
    ]
    last = [read(4, PROMPTS[4], RANDOM, 3), verify(2, PROMPTS[2], [8], FILTERED)]
    alike(llama, [first, mixed, last], monkeypatch)


def test_a_part_of_a_prompt_chooses_nothing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = paged_engine(llama, monkeypatch, **SMALL)
    monkeypatch.setattr(graphs._Captured, "choose", None)
    assert target.run([read(0, PROMPTS[0], RANDOM, 0, 3), read(1, PROMPTS[1], GREEDY, 0, 2)]) == [
        None,
        None,
    ]


def right_drafts(target: TorchEngine, sampling: Sampling) -> list[int]:
    """What the target says behind the first prompt, token by token."""
    ids = list(PROMPTS[0])
    target.run([read(0, ids[:-1], GREEDY)])
    for _ in range(2):
        (verdict,) = target.run([verify(0, ids, [], sampling)])
        assert verdict is not None
        ids += verdict.tokens
    return ids[4:]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, FILTERED])
def test_rounds_beside_a_prompt_accept_their_drafts_in_its_forward(
    llama: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = right_drafts(engine(llama), sampling)
    first = [read(0, PROMPTS[0][:-1], GREEDY)]
    mixed = [read(2, PROMPTS[2], FILTERED), verify(0, PROMPTS[0], drafts, sampling)]
    alike(llama, [first, mixed], monkeypatch)
    target = paged_engine(llama, monkeypatch, **SMALL)
    target.run(first)
    monkeypatch.setattr(target._graphs, "launch", None)
    told: list[str] = []
    verdict = target.run(mixed, meanwhile=lambda: told.append("meanwhile"))[1]
    assert verdict is not None
    assert (verdict.accepted, verdict.tokens[:2]) == (2, drafts)
    assert told == ["meanwhile"]


def test_rounds_over_long_contexts_have_a_forward_of_their_own(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of a prompt's forward reads keys more often than that of a round's."""
    wanted = engine(llama)
    target = paged_engine(llama, monkeypatch, **SMALL)
    monkeypatch.setattr(prefill_graphs, "_MOST_SHARED_KEYS", 2)
    launched: list[int] = []
    launch = GraphRunner.launch

    def counting(self: GraphRunner, chunks: list[Chunk], bucket: Bucket) -> Launched:
        launched.append(len(chunks))
        return launch(self, chunks, bucket)

    monkeypatch.setattr(GraphRunner, "launch", counting)
    first = [read(0, PROMPTS[0][:-1], GREEDY)]
    mixed = [read(2, PROMPTS[2], FILTERED), verify(0, PROMPTS[0], [3], RANDOM)]
    told: list[str] = []
    for chunks in (first, mixed):
        found = target.run(chunks, meanwhile=lambda: told.append("meanwhile"))
        assert found == wanted.run(chunks)
    assert told == ["meanwhile"] * 2
    assert launched == [1, 1, 1]


def test_more_drafts_than_are_captured_are_verified_uncaptured(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [read(0, PROMPTS[0][:-1], GREEDY)]
    mixed = [read(2, PROMPTS[2], FILTERED), verify(0, PROMPTS[0], [3, 4, 5], GREEDY)]
    plain = engine(llama)
    wanted = [plain.run(chunks) for chunks in (first, mixed)]
    target = paged_engine(llama, monkeypatch, **SMALL)
    assert [target.run(chunks) for chunks in (first, mixed)] == wanted


@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_other_rules_choose_on_the_replayed_logits(
    llama: Path, rule: RejectionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [read(row, ids, SAMPLINGS[row]) for row, ids in enumerate(PROMPTS[:3])]
    chunks[1] = read(1, PROMPTS[1], RANDOM, 0, 2)
    wanted = engine(llama, rejection_rule=rule).run(chunks)
    target = paged_engine(llama, monkeypatch, rejection_rule=rule, **SMALL)
    assert replays_only(target, monkeypatch).run(chunks) == wanted


def test_edits_and_log_probabilities_read_the_right_rows(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = replace(GREEDY, logprobs=2)
    biased = replace(RANDOM, logit_bias=((9, 50.0),))
    chunks = [
        read(0, PROMPTS[0], GREEDY, 0, 2),
        read(1, PROMPTS[1], biased),
        read(2, PROMPTS[2], asking),
    ]
    wanted = engine(llama).run(chunks)
    target = replays_only(paged_engine(llama, monkeypatch, **SMALL), monkeypatch)
    found = target.run(chunks)
    assert found[:2] == wanted[:2]
    assert found[0] is None and found[1] is not None and found[1].tokens == [9]
    mine, theirs = found[2], wanted[2]
    assert mine is not None and theirs is not None and mine.tokens == theirs.tokens
    told, expected = mine.logprobs[0], theirs.logprobs[0]
    assert (told.token_id, told.rank) == (expected.token_id, expected.rank)
    assert told.logprob == pytest.approx(expected.logprob, abs=1e-4)


@pytest.mark.parametrize("most", [64, 0])
def test_what_is_not_captured_runs_as_it_did(
    llama: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tokens or sequences than captured, log-probabilities of a prompt, or no graphs."""
    target = paged_engine(llama, monkeypatch, **SMALL | {"max_captured_prefill_tokens": most})
    long = Chunk(list(range(65)), 0, [0, 1, 2, 3, 4], 0, True, GREEDY)
    telling = replace(read(0, PROMPTS[0], replace(GREEDY, prompt_logprobs=0)), prompt_logprobs=True)
    many = [read(row, [7, 9], GREEDY) for row in range(4)]
    steps = [[long], [telling], many]
    plain = engine(llama)
    wanted = [plain.run(chunks) for chunks in steps]
    packed: list[int] = []
    pack = eager_steps.pack

    def counting(chunks: list[Chunk], *rest: object) -> object:
        packed.append(len(chunks))
        return pack(chunks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(eager_steps, "pack", counting)
    for chunks, said in zip(steps, wanted, strict=True):
        assert [v and v.tokens for v in target.run(chunks)] == [v and v.tokens for v in said]
    assert packed == [1, 1, 4]
    target.run([read(0, PROMPTS[0], GREEDY)])
    assert len(packed) == (3 if most else 4)


def test_rounds_begun_ahead_do_not_see_the_prompts_between(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replayed prefill has inputs of its own: the step in flight goes on from its tokens."""
    going = replace(GREEDY, max_tokens=100)
    told: list[list[object]] = []
    for target in (engine(llama), paged_engine(llama, monkeypatch, **SMALL)):
        ids = list(PROMPTS[0])
        target.run([read(0, ids[:-1], GREEDY)])
        told.append([ids])
        for turn in range(6):
            chunks = [replace(verify(0, ids, [], going), prompt_length=4)]
            if turn == 3:
                chunks.insert(0, read(4, PROMPTS[4], RANDOM))
            *others, verdict = target.run(chunks, goes_on=lambda _: True)
            assert verdict is not None
            ids += verdict.tokens
            told[-1] += others
            if turn == 1:
                told[-1] += target.run([read(2, PROMPTS[2], RANDOM)])
    assert told[0] == told[1]


@pytest.mark.parametrize("captured", [0, 64])
def test_the_round_behind_a_prompts_end_is_begun_at_once(
    captured: int, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = replace(GREEDY, max_tokens=100)
    changes = SMALL | {"max_captured_prefill_tokens": captured}
    launched: list[int] = []
    launch = GraphRunner.launch

    def counting(self: GraphRunner, chunks: list[Chunk], bucket: Bucket) -> Launched:
        if not bucket.rows and not self.has_begun(chunks):
            launched.append(len(chunks))
        return launch(self, chunks, bucket)

    monkeypatch.setattr(GraphRunner, "launch", counting)
    told: list[list[object]] = []
    for target in (engine(llama), paged_engine(llama, monkeypatch, **changes)):
        ids, new = list(PROMPTS[0]), list(PROMPTS[1])
        target.run([read(0, ids[:-1], GREEDY)])
        launched.clear()
        parts = [replace(verify(0, ids, [], going), prompt_length=4), read(1, new, going)]
        first, other = target.run(parts, goes_on=lambda _: True)
        assert first is not None
        assert other is not None
        ids += first.tokens
        new += other.tokens
        begun = list(launched)
        both = [
            replace(verify(0, ids, [], going), prompt_length=4),
            replace(verify(1, new, [], going), prompt_length=len(PROMPTS[1])),
        ]
        told.append([first, other, *target.run(both)])
        # The second step has nothing left to launch.
        assert launched == begun
    assert told[0] == told[1]
    assert launched[-1] == 2


def test_behind_a_part_of_a_prompt_nothing_is_begun(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = paged_engine(llama, monkeypatch, **SMALL)
    asked: list[int] = []
    target.run(
        [read(0, PROMPTS[0], GREEDY, 0, 2)], goes_on=lambda told: bool(asked.append(len(told)))
    )
    assert asked == []


def test_rounds_begun_ahead_are_not_verified_again_beside_a_prompt(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = replace(GREEDY, max_tokens=100)
    target = paged_engine(llama, monkeypatch, **SMALL)
    ids = list(PROMPTS[0])
    target.run([read(0, ids[:-1], GREEDY)])
    (verdict,) = target.run([verify(0, ids, [], going)], goes_on=lambda _: True)
    assert verdict is not None
    ids += verdict.tokens
    filled: list[int] = []
    fill = StepBuffers.fill

    def counting(self: StepBuffers, chunks: list[Chunk], bucket: Bucket) -> None:
        filled.append(len(chunks))
        fill(self, chunks, bucket)

    monkeypatch.setattr(StepBuffers, "fill", counting)
    target.run([read(2, PROMPTS[2], GREEDY), verify(0, ids, [], going)])
    assert filled == [1], "the prompt's"
    target.run([read(1, PROMPTS[1], GREEDY), verify(0, [*ids, 5], [], going)])
    assert filled == [1, 2], "nothing was begun"
