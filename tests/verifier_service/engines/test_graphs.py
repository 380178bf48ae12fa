"""Captured steps against the engine that captures nothing: same tokens, whatever stands beside."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_torch_engine import (
    GREEDY,
    any_model,
    engine,
    llama,
    reference,
)
from verifier_service.engines import eager_steps, torch_engine
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.captured_choice import Choosing, choosing_of, verdict_rows
from verifier_service.engines.eager_steps import EagerSteps
from verifier_service.engines.step_inputs import StepInputs
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import RejectionRule, Sampling

__all__ = ["any_model", "llama"]

PROMPTS = [[5, 17, 23, 41], [7, 7, 8], [90, 3, 61, 12, 30, 44], [11], [2, 4, 8, 16, 32]]
RANDOM = Sampling(temperature=0.9, seed=77)


def table(row: int) -> list[int]:
    return [2 * row, 2 * row + 1]


def prefill(target: TorchEngine, count: int) -> None:
    """All but the last id of the first prompts is in the cache."""
    chunks = [
        Chunk(ids[:-1], 0, table(row), 0, False, GREEDY)
        for row, ids in enumerate(PROMPTS[:count])
        if len(ids) > 1
    ]
    if chunks:
        target.run(chunks)


def verify(row: int, ids: list[int], drafts: list[int], sampling: Sampling) -> Chunk:
    return Chunk(
        [ids[-1], *drafts],
        len(ids) - 1,
        table(row),
        len(drafts),
        True,
        sampling,
        sequence_ids=ids,
        prompt_length=len(ids),
    )


def drafts_for(target: TorchEngine, row: int, sampling: Sampling) -> list[int]:
    """What the target chooses behind a prompt, with the third id spoilt."""
    ids = list(PROMPTS[row])
    chosen: list[int] = []
    for _ in range(4):
        (verdict,) = target.run([verify(row, ids + chosen, [], sampling)])
        assert verdict is not None
        chosen += verdict.tokens
    return [*chosen[:2], (chosen[2] + 1) % 97, chosen[3]]


def rounds(target: TorchEngine, samplings: list[Sampling], lengths: list[int]) -> list[Verdict]:
    prefill(target, len(samplings))
    drafts = [drafts_for(target, row, sampling) for row, sampling in enumerate(samplings)]
    chunks = [
        verify(row, PROMPTS[row], drafts[row][: lengths[row]], sampling)
        for row, sampling in enumerate(samplings)
    ]
    return [verdict for verdict in target.run(chunks) if verdict is not None]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
def test_every_architecture_is_replayed_as_it_runs(
    any_model: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = rounds(engine(any_model), [sampling] * 3, [4, 0, 2])
    replayed = rounds(paged_engine(any_model, monkeypatch), [sampling] * 3, [4, 0, 2])
    assert replayed == plain
    assert [verdict.accepted for verdict in replayed] == [2, 0, 2]


def test_greedy_decoding_is_transformers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = paged_engine(llama, monkeypatch)
    prefill(target, 1)
    ids = list(PROMPTS[0])
    for _ in range(8):
        (verdict,) = target.run([verify(0, ids, [], GREEDY)])
        assert verdict is not None
        ids += verdict.tokens
    assert ids[4:] == reference(llama, PROMPTS[0], 8)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_sequence_gets_the_same_beside_any_number_of_others(
    llama: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = rounds(paged_engine(llama, monkeypatch), [RANDOM], [3])
    beside = rounds(paged_engine(llama, monkeypatch), [RANDOM] * count, [3, 4, 0, 1, 2][:count])
    assert beside[0] == alone[0]


def test_a_step_is_replayed_only_where_it_was_captured(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = paged_engine(llama, monkeypatch)
    prefill(target, 2)
    packed: list[int] = []
    pack = eager_steps.pack
    monkeypatch.setattr(
        eager_steps,
        "pack",
        lambda chunks, *rest: packed.append(len(chunks)) or pack(chunks, *rest),
    )
    target.run([verify(0, PROMPTS[0], [1, 2], GREEDY), verify(1, PROMPTS[1], [], GREEDY)])
    assert packed == []
    target.run([verify(0, PROMPTS[0], [1, 2, 3, 4, 5], GREEDY)])
    assert packed == [1], "more drafts than K are no captured step"


def test_drafts_of_predictions_are_replayed_where_nothing_else_speculates(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"num_speculative_tokens": 0, "num_prediction_tokens": 2, "max_num_seqs": 2}
    target = paged_engine(llama, monkeypatch, **changes)
    prefill(target, 1)
    monkeypatch.setattr(eager_steps, "pack", None)
    drafts = drafts_for(target, 0, GREEDY)[:2]
    (verdict,) = target.run([verify(0, PROMPTS[0], drafts, GREEDY)])
    assert verdict is not None and verdict.tokens[:2] == drafts


def test_prefill_beside_verification_is_split_and_put_together_again(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [
        verify(0, PROMPTS[0], [1, 2], GREEDY),
        Chunk(PROMPTS[2], 0, table(2), 0, True, GREEDY),
        Chunk(PROMPTS[4][:3], 0, table(4), 0, False, GREEDY),
        verify(1, PROMPTS[1], [], RANDOM),
    ]
    answers = []
    for target in (engine(llama), paged_engine(llama, monkeypatch)):
        prefill(target, 2)
        answers.append(target.run(chunks))
    assert answers[0] == answers[1]
    assert answers[1][2] is None


FILTERED = [
    Sampling(temperature=1.1, seed=5, top_k=4),
    Sampling(temperature=1.1, seed=5, top_p=0.5),
    Sampling(temperature=1.1, seed=5, min_p=0.2),
    Sampling(temperature=0.7, seed=-5, top_k=20, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("filtered", FILTERED)
def test_filters_are_part_of_the_captured_step(
    llama: Path, filtered: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplings = [filtered, RANDOM, GREEDY, filtered]
    plain = rounds(engine(llama), samplings, [4, 1, 2, 0])
    target = paged_engine(llama, monkeypatch)
    monkeypatch.setattr(EagerSteps, "choose_on", None)
    assert rounds(target, samplings, [4, 1, 2, 0]) == plain


SPECIAL = [
    Sampling(temperature=0.8, seed=5, logit_bias=((9, 4.0),)),
    Sampling(temperature=0.8, seed=5, logprobs=2),
    Sampling(temperature=0.8, seed=5, presence_penalty=1.5),
]


@pytest.mark.parametrize("special", SPECIAL)
def test_what_the_captured_choice_cannot_do_is_done_on_its_logits(
    llama: Path, special: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choosing_of(special) is Choosing.OUTSIDE
    samplings = [special, RANDOM, special]
    plain = rounds(engine(llama), samplings, [4, 1, 0])
    replayed = rounds(paged_engine(llama, monkeypatch), samplings, [4, 1, 0])
    assert [v.tokens for v in replayed] == [v.tokens for v in plain]
    for mine, theirs in zip(replayed, plain, strict=True):
        for a, b in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert (a.token_id, a.rank) == (b.token_id, b.rank)
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_other_rules_choose_on_the_replayed_logits(
    llama: Path, rule: RejectionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplings = [RANDOM, GREEDY]
    plain = rounds(engine(llama, rejection_rule=rule), samplings, [3, 3])
    replayed = rounds(paged_engine(llama, monkeypatch, rejection_rule=rule), samplings, [3, 3])
    assert replayed == plain


def test_eager_mode_captures_nothing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[object] = []
    target = paged_engine(llama, monkeypatch)
    monkeypatch.setattr(torch_engine, "cuda_capture", lambda: captured.append)
    eager = paged_engine(llama, monkeypatch, enforce_eager=True)
    prefill(target, 1)
    prefill(eager, 1)
    chunk = verify(0, PROMPTS[0], [], GREEDY)
    assert eager.run([chunk]) == target.run([chunk])


def test_a_context_of_many_pages(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(3)
    ids = [source.randrange(97) for _ in range(80)]
    answers = []
    for target in (engine(llama), paged_engine(llama, monkeypatch)):
        blocks = [4, 1, 0, 3, 2]
        target.run([Chunk(ids[:-1], 0, blocks, 0, False, GREEDY)])
        answers.append(target.run([Chunk([ids[-1], 5, 6], len(ids) - 1, blocks, 2, True, GREEDY)]))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(20))
def test_verdict_rows_accept_the_right_prefix(seed: int) -> None:
    source = random.Random(seed)
    width, sequences, tokens = 4, 4, 16
    lengths = [source.randint(0, width) for _ in range(3)]
    ids = torch.tensor([source.randrange(3) for _ in range(tokens)])
    chosen = torch.tensor([source.randrange(3) for _ in range(tokens)])
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length + 1)
    cu_query = torch.tensor([*bounds, bounds[-1]], dtype=torch.int32)
    none = torch.zeros(0)
    values = dict.fromkeys((field.name for field in fields(StepInputs)), none)
    drafts = torch.tensor([*lengths, 0])
    inputs = StepInputs(**values | {"ids": ids, "drafts": drafts, "cu_query": cu_query})
    result = verdict_rows(chosen, inputs, width)
    assert result.shape == (sequences, width + 2)
    for row, length in enumerate(lengths):
        told = ids[bounds[row] + 1 : bounds[row] + 1 + length].tolist()
        target = chosen[bounds[row] : bounds[row] + length + 1].tolist()
        accepted = 0
        while accepted < length and told[accepted] == target[accepted]:
            accepted += 1
        assert result[row, 0] == accepted
        assert result[row, 1 : accepted + 2].tolist() == target[: accepted + 1]
