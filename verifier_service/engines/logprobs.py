"""Log-probabilities of tokens under the target's own distribution, from a step's raw logits.

Knows rows of logits and chunks; does not know the model, nor what sampling made of the logits:
temperature, penalties and masks never touch what is told here (vLLM's `raw_logprobs`). Only rows
that somebody asks about are read, each by itself, so a token's figures do not depend on what
stands beside it or on how many drafts were verified with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verifier_service.engines.base import Chunk, Verdict
from verifier_service.messages import TokenLogprob

# Logits handled at once: bounds the copies of a batch's rows (64 MiB float32, 128 MiB int64).
_LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True)
class Question:
    """One token asked about: its id, the row of logits that predicts it, how many top tokens."""

    row: int
    token_id: int
    top: int


def prompt_rows(chunk: Chunk) -> range:
    """Offsets into `chunk.ids` of the tokens that predict a prompt id and were asked to.

    A chunk's last id predicts the first id of the chunk behind it; the prompt's last id predicts
    no prompt id. Empty where nobody asks.
    """
    if not chunk.prompt_logprobs:
        return range(0)
    return range(min(len(chunk.ids), chunk.prompt_length - 1 - chunk.start))


def with_logprobs(
    logits: Tensor, chunks: Sequence[Chunk], verdicts: Sequence[Verdict | None]
) -> list[Verdict | None]:
    """The verdicts with every log-probability that their chunks ask for.

    `logits` [R, V] are the model's own; rows as `layout.pack` orders them: those that choose of
    all chunks, then the prompt's of all chunks. A chunk that only asks about the prompt gets a
    verdict without tokens. Where nobody asks, nothing is computed.
    """
    emitted: list[list[Question]] = []
    prompts: list[list[Question]] = []
    row = 0
    for chunk, verdict in zip(chunks, verdicts, strict=True):
        asked: list[Question] = []
        if verdict is not None:
            top = chunk.sampling.logprobs
            if top >= 0:
                asked = [Question(row + i, token, top) for i, token in enumerate(verdict.tokens)]
            row += chunk.drafts + 1
        emitted.append(asked)
    for chunk in chunks:
        first = chunk.start + 1
        top = chunk.sampling.prompt_logprobs
        prompts.append(
            [
                Question(row + i, chunk.sequence_ids[first + offset], top)
                for i, offset in enumerate(prompt_rows(chunk))
            ]
        )
        row += len(prompts[-1])
    questions = [question for part in (*emitted, *prompts) for question in part]
    if not questions:
        return list(verdicts)
    told = iter(score(logits, questions))
    for_emitted = [tuple(next(told) for _ in part) for part in emitted]
    for_prompts = [tuple(next(told) for _ in part) for part in prompts]
    return [
        _merged(verdict, mine, prompt)
        for verdict, mine, prompt in zip(verdicts, for_emitted, for_prompts, strict=True)
    ]


def score(logits: Tensor, questions: Sequence[Question]) -> list[TokenLogprob]:
    """The answers in order: float32 log-softmax of each row; one copy to the host.

    Of equal logits, the lower id ranks first.
    """
    vocab_size = logits.shape[1]
    width = min(max(question.top for question in questions), vocab_size)
    share = max(_LOGITS_AT_ONCE // vocab_size, 1)
    tables = [
        _table(logits, questions[start : start + share], width)
        for start in range(0, len(questions), share)
    ]
    answers = []
    for question, row in zip(questions, torch.cat(tables).tolist(), strict=True):
        count = min(question.top, width)
        ids, values = row[2 : 2 + count], row[2 + width : 2 + width + count]
        top = tuple((int(i), value) for i, value in zip(ids, values, strict=True))
        answers.append(TokenLogprob(question.token_id, row[0], int(row[1]), top))
    return answers


def _table(logits: Tensor, questions: Sequence[Question], width: int) -> Tensor:
    """Own log-probability, rank, top ids, their log-probabilities: [n, 2 + 2 * width] float64.

    float64 holds float32 numbers and ids exactly, so that one tensor carries all.
    """
    device = logits.device
    rows = torch.tensor([question.row for question in questions]).to(device)
    own = torch.tensor([[question.token_id] for question in questions]).to(device)
    # Adding zero turns -0.0 into 0.0: they are equal, and must rank as equals.
    scores = logits[rows].to(torch.float32) + 0.0
    logprobs = scores.log_softmax(dim=-1)
    ids = torch.arange(scores.shape[1], device=device)
    mine = scores.gather(1, own)
    before = (scores > mine) | ((scores == mine) & (ids < own))
    columns = [logprobs.gather(1, own), before.sum(dim=1, keepdim=True) + 1]
    if width:
        best = _ordered(scores, ids).topk(width, dim=1).indices
        columns += [best, logprobs.gather(1, best)]
    return torch.cat([column.to(torch.float64) for column in columns], dim=1)


def _ordered(scores: Tensor, ids: Tensor) -> Tensor:
    """Distinct int64 keys that order like `scores` (float32), lower ids first among equals.

    topk alone says nothing about equal values, and chooses among them as the batch's shape has it.
    """
    bits = scores.view(torch.int32)
    # Below zero, a float's magnitude bits count the wrong way round.
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (order.to(torch.int64) << 32) | (scores.shape[1] - 1 - ids)


def _merged(
    verdict: Verdict | None,
    logprobs: tuple[TokenLogprob, ...],
    prompt_logprobs: tuple[TokenLogprob, ...],
) -> Verdict | None:
    if verdict is None and not prompt_logprobs:
        return None
    if verdict is None:
        return Verdict(0, [], prompt_logprobs=prompt_logprobs)
    return replace(verdict, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
