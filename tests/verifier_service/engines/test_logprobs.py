"""Log-probabilities from raw logits: right numbers, ranks and order, and only what was asked."""

from __future__ import annotations

import math

import pytest
import torch

from verifier_service.engines import logprobs as module
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.logprobs import Question, prompt_rows, score, with_logprobs
from verifier_service.messages import Sampling, TokenLogprob


def brute_force(row: list[float], token_id: int, top: int) -> TokenLogprob:
    """By hand in float64: log-softmax, rank, and the top ids, lower ids first among equals."""
    largest = max(row)
    total = largest + math.log(sum(math.exp(x - largest) for x in row))
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return TokenLogprob(
        token_id,
        row[token_id] - total,
        order.index(token_id) + 1,
        tuple((i, row[i] - total) for i in order[:top]),
    )


def same(found: TokenLogprob, wanted: TokenLogprob) -> bool:
    return (
        (found.token_id, found.rank) == (wanted.token_id, wanted.rank)
        and [i for i, _ in found.top] == [i for i, _ in wanted.top]
        and math.isclose(found.logprob, wanted.logprob, abs_tol=2e-6)
        and all(
            math.isclose(a, b, abs_tol=2e-6)
            for (_, a), (_, b) in zip(found.top, wanted.top, strict=True)
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("top", [0, 1, 5, 20, 37])
def test_equals_brute_force(dtype: torch.dtype, top: int) -> None:
    logits = (torch.randn(9, 37, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    questions = [Question(row, (row * 11) % 37, top) for row in (8, 0, 3, 3, 5)]
    for question, found in zip(questions, score(logits, questions), strict=True):
        row = logits[question.row].to(torch.float32).tolist()
        assert same(found, brute_force(row, question.token_id, top))


def test_equal_logits_rank_by_id_whatever_stands_beside_them() -> None:
    row = torch.tensor([0.0, 2.0, -0.0, 2.0, -1.0, 2.0, -1.0, 0.0])
    (alone,) = score(row.unsqueeze(0), [Question(0, 5, 8)])
    assert [i for i, _ in alone.top] == [1, 3, 5, 0, 2, 7, 4, 6]
    assert alone.rank == 3
    batch = torch.cat((torch.randn(50, 8), row.unsqueeze(0)))
    for top in range(9):
        found = score(batch, [Question(50, 5, top), *(Question(i, 0, 3) for i in range(50))])[0]
        assert found == TokenLogprob(5, alone.logprob, 3, alone.top[:top])


def test_each_question_gets_its_own_number_of_top_tokens() -> None:
    answers = score(torch.randn(2, 6), [Question(0, 1, 0), Question(1, 2, 4), Question(0, 1, 2)])
    assert [len(answer.top) for answer in answers] == [0, 4, 2]
    assert answers[0].logprob == answers[2].logprob


def test_more_top_tokens_than_the_vocabulary_has_are_all_of_it() -> None:
    (answer,) = score(torch.randn(1, 4), [Question(0, 1, 20)])
    assert sorted(i for i, _ in answer.top) == [0, 1, 2, 3]


def test_an_impossible_token_is_minus_infinity() -> None:
    (answer,) = score(torch.tensor([[1.0, -torch.inf, 1.0]]), [Question(0, 1, 3)])
    assert (answer.logprob, answer.rank) == (-math.inf, 3)
    assert answer.top[2] == (1, -math.inf)


def test_rows_are_read_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(13, 10)
    questions = [Question(12 - i, i % 10, i % 4) for i in range(13)]
    whole = score(logits, questions)
    sizes: list[int] = []
    table = module._table

    def watched(logits: torch.Tensor, part: list[Question], width: int) -> torch.Tensor:
        sizes.append(len(part))
        return table(logits, part, width)

    monkeypatch.setattr(module, "_table", watched)
    monkeypatch.setattr(module, "_LOGITS_AT_ONCE", 45)
    assert score(logits, questions) == whole
    assert sizes == [4, 4, 4, 1]


def chunk(
    ids: list[int],
    start: int,
    *,
    prompt: list[int],
    drafts: int = 0,
    samples: bool = False,
    top: int = -1,
    prompt_top: int = -1,
) -> Chunk:
    return Chunk(
        ids,
        start,
        [0],
        drafts,
        samples,
        Sampling(logprobs=top, prompt_logprobs=prompt_top),
        sequence_ids=prompt,
        prompt_length=len(prompt),
        prompt_logprobs=prompt_top >= 0,
    )


def test_prompt_rows_are_those_that_predict_a_prompt_id() -> None:
    prompt = [5, 6, 7, 8]
    assert list(prompt_rows(chunk(prompt[:2], 0, prompt=prompt, prompt_top=0))) == [0, 1]
    assert list(prompt_rows(chunk(prompt[2:], 2, prompt=prompt, prompt_top=0))) == [0]
    assert list(prompt_rows(chunk(prompt, 0, prompt=prompt, prompt_top=0))) == [0, 1, 2]
    assert list(prompt_rows(chunk(prompt[3:], 3, prompt=prompt, prompt_top=0))) == []
    assert list(prompt_rows(chunk(prompt, 0, prompt=prompt))) == []


def test_rows_of_a_mixed_batch_reach_the_right_chunks() -> None:
    prompt = [3, 1, 4, 1, 5, 2, 6]
    chunks = [
        # Rows 0 to 2 choose; one of two drafts was accepted.
        chunk([0, 1, 2], 9, prompt=[0], drafts=2, samples=True, top=2),
        # No row of its own, prompt rows 5, 6: about ids at positions 1 and 2.
        chunk(prompt[:2], 0, prompt=prompt, prompt_top=1),
        # Row 3 chooses, nothing is asked.
        chunk([2], 4, prompt=[0], samples=True),
        # Row 4 chooses; prompt rows 7, 8, 9: about positions 4, 5 and 6.
        chunk(prompt[3:], 3, prompt=prompt, samples=True, top=0, prompt_top=3),
    ]
    logits = torch.randn(10, 7)
    verdicts = [Verdict(1, [1, 6]), None, Verdict(0, [4]), Verdict(0, [2])]
    first, second, third, fourth = with_logprobs(logits, chunks, verdicts)
    assert first is not None and second is not None and third is not None and fourth is not None
    assert first.logprobs == tuple(score(logits, [Question(0, 1, 2), Question(1, 6, 2)]))
    assert (first.accepted, first.tokens, first.prompt_logprobs) == (1, [1, 6], ())
    assert (second.tokens, second.logprobs) == ([], ())
    assert second.prompt_logprobs == tuple(score(logits, [Question(5, 1, 1), Question(6, 4, 1)]))
    assert third == Verdict(0, [4])
    assert fourth.logprobs == tuple(score(logits, [Question(4, 2, 0)]))
    wanted = [Question(7, 5, 3), Question(8, 2, 3), Question(9, 6, 3)]
    assert fourth.prompt_logprobs == tuple(score(logits, wanted))


def test_a_refusal_stays_one() -> None:
    prompt = [3, 1, 4]
    chunks = [
        chunk(prompt, 0, prompt=prompt, samples=True, top=0, prompt_top=0),
        chunk([2], 4, prompt=[0], samples=True, top=1),
    ]
    refused, other = with_logprobs(
        torch.randn(4, 7), chunks, [Verdict(0, [], refusal="nothing is allowed"), Verdict(0, [5])]
    )
    assert refused is not None and other is not None
    assert (refused.refusal, refused.logprobs) == ("nothing is allowed", ())
    assert other.logprobs[0].token_id == 5


def test_nothing_is_computed_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("log-probabilities were computed for nobody")

    monkeypatch.setattr(module, "score", never)
    chunks = [
        chunk([0, 1], 3, prompt=[0], drafts=1, samples=True),
        chunk([5, 6], 0, prompt=[5, 6, 7]),
    ]
    assert with_logprobs(torch.randn(2, 7), chunks, [Verdict(0, [2]), None]) == [
        Verdict(0, [2]),
        None,
    ]
