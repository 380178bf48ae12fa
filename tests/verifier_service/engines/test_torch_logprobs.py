"""Log-probabilities of the torch engine on tiny random models, against transformers themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.verifier_service.engines.test_torch_engine import GREEDY, PROMPT, _save, engine
from verifier_service.engines.base import Chunk
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling, TokenLogprob

# The lean decoder and transformers' modules.
KINDS = ["llama", "gpt2"]
LONG = [(7 * i * i + 3 * i) % 97 for i in range(70)]


@pytest.fixture(scope="session", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(request.param, tmp_path_factory)


def wanted(folder: Path, ids: list[int], first: int, top: int) -> list[TokenLogprob]:
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    answers = []
    for i in range(first, len(ids)):
        row = logprobs[i - 1].tolist()
        order = sorted(range(len(row)), key=lambda token: -row[token])
        best = tuple((token, row[token]) for token in order[:top])
        answers.append(TokenLogprob(ids[i], row[ids[i]], order.index(ids[i]) + 1, best))
    return answers


def check(found: list[TokenLogprob], expected: list[TokenLogprob]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.token_id, mine.rank) == (theirs.token_id, theirs.rank)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
        assert mine.logprob == pytest.approx(theirs.logprob, abs=2e-4)
        for (_, a), (_, b) in zip(mine.top, theirs.top, strict=True):
            assert a == pytest.approx(b, abs=2e-4)


def decode(
    target: TorchEngine, count: int, drafts: list[int], sampling: Sampling
) -> tuple[list[int], list[TokenLogprob]]:
    (verdict,) = target.run([Chunk(PROMPT, 0, [0], 0, True, sampling, sequence_ids=PROMPT)])
    assert verdict is not None
    out, told = list(verdict.tokens), list(verdict.logprobs)
    while len(out) < count:
        draft = drafts[len(out) : len(out) + 3]
        start = len(PROMPT) + len(out) - 1
        chunk = Chunk(
            [out[-1], *draft],
            start,
            [0],
            len(draft),
            True,
            sampling,
            sequence_ids=[*PROMPT, *out],
            prompt_length=len(PROMPT),
        )
        (verdict,) = target.run([chunk])
        assert verdict is not None
        assert len(verdict.logprobs) == len(verdict.tokens)
        out += verdict.tokens
        told += verdict.logprobs
    return out, told


def test_with_and_without_drafts_as_transformers_has_them(model: Path) -> None:
    target = engine(model)
    sampling = replace(GREEDY, logprobs=3)
    plain, told = decode(target, 12, [], sampling)
    check(told, wanted(model, [*PROMPT, *plain], len(PROMPT), 3))
    wrong = [(token + 1) % 97 for token in plain]
    half = [a if i % 3 else b for i, (a, b) in enumerate(zip(plain, wrong, strict=True))]
    for drafts in (plain, wrong, half):
        tokens, speculated = decode(target, 12, drafts, sampling)
        assert tokens[:12] == plain
        check(speculated[:12], told)


def test_sampling_is_not_in_them(model: Path) -> None:
    hot = Sampling(
        temperature=1.7,
        seed=3,
        top_k=9,
        logit_bias=((5, 4.0),),
        presence_penalty=1.5,
        repetition_penalty=1.4,
        logprobs=2,
    )
    tokens, told = decode(engine(model), 8, [60, 5, 9, 33, 12, 60, 9, 5], hot)
    check(told, wanted(model, [*PROMPT, *tokens], len(PROMPT), 2))


def test_prompts_in_chunks_beside_a_sequence_that_decodes(model: Path) -> None:
    target = engine(model)
    scored = replace(GREEDY, logprobs=0, prompt_logprobs=2)
    target.run([Chunk(PROMPT, 0, [5], 0, True, GREEDY)])
    told: list[TokenLogprob] = []
    cuts = [0, 13, 14, 40, len(LONG)]
    for start, end in pairwise(cuts):
        verdicts = target.run(
            [
                Chunk([11, 12], len(PROMPT), [5], 1, True, GREEDY),
                Chunk(
                    LONG[start:end],
                    start,
                    [0, 1, 2],
                    0,
                    end == len(LONG),
                    scored,
                    sequence_ids=LONG,
                    prompt_length=len(LONG),
                    prompt_logprobs=True,
                ),
            ]
        )
        assert verdicts[0] is not None and verdicts[1] is not None
        assert not verdicts[0].logprobs
        assert bool(verdicts[1].tokens) == bool(verdicts[1].logprobs) == (end == len(LONG))
        told += verdicts[1].prompt_logprobs
    check(told, wanted(model, LONG, 1, 2))
