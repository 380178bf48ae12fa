"""A row in which nothing is allowed any more: that request ends, refused, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.regressions.bench import Bench, plain
from tests.toy import Toy
from tests.toy_engine import ToySource, random_guess
from verifier_service.accounting import Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.engines.base import Chunk
from verifier_service.engines.choosing import NOTHING_ALLOWED, Chooser
from verifier_service.engines.layout import pack_choices
from verifier_service.messages import Output, RejectionRule, Sampling
from verifier_service.request_error import RequestError

# After 1 only 2 is left, and 1 2 3, 1 2 0, ... are bad words: 1 2 is a dead end.
DEAD_END = tuple((1, 2, last) for last in range(4))
V = 4


def chunk(
    ids: Sequence[int],
    drafts: Sequence[int],
    sampling: Sampling,
    mask: npt.NDArray[np.int32] | None = None,
) -> Chunk:
    return Chunk(
        ids=[ids[-1], *drafts],
        start=len(ids) - 1,
        blocks=[0],
        drafts=len(drafts),
        samples=True,
        sampling=sampling,
        sequence_ids=list(ids),
        prompt_length=1,
        mask=mask,
    )


@pytest.fixture(params=list(RejectionRule), ids=lambda rule: rule.value)
def rule(request: pytest.FixtureRequest) -> RejectionRule:
    chosen: RejectionRule = request.param
    return chosen


def choose(
    rule: RejectionRule, chunks: list[Chunk], favourite: int = 2
) -> list[tuple[int, list[int], str]]:
    rows = sum(part.drafts + 1 for part in chunks)
    logits = torch.zeros(rows, V)
    logits[:, favourite] = 60.0
    choices = pack_choices(chunks, torch.device("cpu"))
    verdicts = Chooser(rule, V, "cpu").verdicts(logits, choices, chunks)
    return [(v.accepted, v.tokens, v.refusal) for v in verdicts]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_that_begins_there_is_refused(rule: RejectionRule, temperature: float) -> None:
    dead = Sampling(temperature=temperature, bad_words=DEAD_END)
    assert choose(rule, [chunk([0, 1, 2], [], dead)]) == [(0, [], NOTHING_ALLOWED)]
    assert choose(rule, [chunk([0, 1, 2], [2, 2], dead)]) == [(0, [], NOTHING_ALLOWED)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_that_comes_there_ends_before_it(rule: RejectionRule, temperature: float) -> None:
    """What was accepted on the way is emitted, as plain decoding would have."""
    dead = Sampling(temperature=temperature, bad_words=DEAD_END)
    assert choose(rule, [chunk([0, 1], [2, 2, 2], dead)]) == [(0, [2], "")]
    assert choose(rule, [chunk([0, 3], [2, 2, 2], dead)]) == [(3, [2, 2, 2, 2], "")]
    free = [chunk([0, 2], [1, 2, 3], Sampling(temperature=temperature, bad_words=DEAD_END))]
    (accepted, tokens, refusal) = choose(rule, free, favourite=1)[0]
    assert (accepted, tokens, refusal) == (1, [1, 1], "")


def test_other_sequences_of_the_step_do_not_notice(rule: RejectionRule) -> None:
    ordinary = [Sampling(seed=3), Sampling(temperature=0.0), Sampling(frequency_penalty=1.0)]
    beside = [chunk([0, 1], [2, 3], sampling) for sampling in ordinary]
    dead = chunk([0, 1, 2], [2, 2], Sampling(bad_words=DEAD_END))
    alone = choose(rule, beside)
    together = choose(rule, [beside[0], dead, *beside[1:]])
    assert together[1] == (0, [], NOTHING_ALLOWED)
    assert [together[0], *together[2:]] == alone


def test_a_grammar_that_allows_nothing_counts_too(rule: RejectionRule) -> None:
    mask = np.array([[0b0100], [0], [0b1111]], dtype=np.int32)
    assert choose(rule, [chunk([0, 1], [2, 2], Sampling(), mask)]) == [(0, [2], "")]


@pytest.mark.parametrize("k", [0, 4])
def test_the_request_ends_refused_and_its_neighbours_as_ever(k: int) -> None:
    """With drafts and without, the same tokens come before the refusal."""
    toy = Toy.target()
    bench = Bench(ToySource(random_guess), k=k, toy=toy)
    good = {f"good{i}": Sampling(seed=i, max_tokens=30) for i in range(3)}
    bad = Sampling(
        seed=8,
        max_tokens=40,
        bad_words=tuple((a, b, c) for a in (1, 2) for b in (1, 2) for c in range(4)),
    )
    for name, sampling in good.items():
        bench.add(name, [1, 2, 3], sampling)
    bench.add("bad", [1, 2, 3], bad)
    bench.finish()
    last = bench.outputs["bad"][-1]
    assert (last.refusal, last.finish_reason, last.error) == (NOTHING_ALLOWED, None, "")
    said = bench.tokens("bad")
    assert len(said) >= 2
    assert set(said[-2:]) <= {1, 2}
    assert bench.scheduler.num_free_blocks == bench.num_blocks
    for name, sampling in good.items():
        assert bench.tokens(name) == plain([1, 2, 3], sampling)
    alone = Bench(k=0, toy=toy)
    alone.add("bad", [1, 2, 3], bad)
    alone.finish()
    assert alone.tokens("bad") == said


def test_the_client_reads_that_its_own_rules_are_at_fault() -> None:
    async def read() -> RequestError:
        answer = Answer(
            AnswerOptions("r", 1),
            Ledger(4).open(3, detailed=False),
            detokenizer=None,
            matcher=None,
            abort=lambda: None,
        )
        answer.take_output(Output(refusal=NOTHING_ALLOWED))
        with pytest.raises(RequestError) as caught:
            while await answer.next_message() is not None:
                pass
        return caught.value

    error = asyncio.run(read())
    assert error.message == NOTHING_ALLOWED
    assert error.status.name == "INVALID_ARGUMENT"
