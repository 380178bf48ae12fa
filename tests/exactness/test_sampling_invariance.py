"""Coupled output with any sampling parameters is plain decoding's, token for token.

Whole generations through the scheduler, the real proposers and the engine's own sampling code:
prompts that repeat themselves, so that n-gram and suffix drafts exist, and an adversary that
guesses at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.inprocess_source import InprocessSource
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from tests.regressions.bench import Bench
from tests.toy import Toy
from tests.toy_engine import ToySource
from verifier_service.messages import DraftSource, Sampling, SequenceView

pytestmark = pytest.mark.usefixtures("one_thread")

V = 10
TOY = Toy.target(vocab_size=V, seed=5, sharpness=2.0)
EXAMPLE_PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [4, 4, 4, 4, 7], [0])

PARAMETERS = {
    "presence": Sampling(presence_penalty=0.8),
    "frequency": Sampling(frequency_penalty=0.5),
    "negative penalties": Sampling(presence_penalty=-0.7, frequency_penalty=-0.4),
    "repetition": Sampling(repetition_penalty=1.4),
    "bias": Sampling(logit_bias=((3, 2.0), (8, -100.0), (1, 0.5))),
    "bad words": Sampling(bad_words=((6,), (1, 2), (2, 3, 1), (4, 4, 4))),
    "allowed": Sampling(allowed_token_ids=(1, 2, 3, 4, 9)),
    "min_tokens": Sampling(min_tokens=12, stop_token_ids=frozenset({0, 2, 7})),
    "min_p": Sampling(min_p=0.12),
    "everything": Sampling(
        top_k=7,
        top_p=0.95,
        min_p=0.02,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.15,
        logit_bias=((5, 1.5), (2, -1.0)),
        bad_words=((0,), (1, 2), (3, 1, 4)),
        allowed_token_ids=(0, 1, 2, 3, 4, 5, 7, 9),
        min_tokens=9,
        stop_token_ids=frozenset({7, 9}),
    ),
}


def ngram() -> DraftSource:
    return InprocessSource({"ngram": NgramProposer(1, 3)})


def suffix() -> DraftSource:
    return InprocessSource({"suffix": SuffixProposer()})


def adversary() -> DraftSource:
    def guess(view: SequenceView, rng: random.Random) -> list[int]:
        return [rng.randrange(V) for _ in range(rng.randrange(view.max_draft_tokens + 1))]

    return ToySource(guess)


SOURCES: dict[str, Callable[[], DraftSource]] = {
    "ngram": ngram,
    "suffix": suffix,
    "adversary": adversary,
}


@cache
def plain(prompt: tuple[int, ...], sampling: Sampling) -> list[int]:
    bench = Bench(k=0, toy=TOY)
    bench.add("plain", prompt, sampling)
    bench.finish()
    return bench.tokens("plain")


def variants(sampling: Sampling) -> list[tuple[list[int], Sampling]]:
    """Every prompt, greedy and random, with seeds of their own."""
    made = []
    for number, prompt in enumerate(EXAMPLE_PROMPTS):
        for temperature in (0.0, 0.7, 1.0):
            own = replace(sampling, temperature=temperature, seed=31 * number - 7, max_tokens=24)
            made.append((prompt, own))
    return made


def check(bench: Bench, requests: list[tuple[list[int], Sampling]]) -> None:
    for number, (prompt, sampling) in enumerate(requests):
        bench.add(str(number), prompt, sampling)
    bench.finish()
    for number, (prompt, sampling) in enumerate(requests):
        assert bench.tokens(str(number)) == plain(tuple(prompt), sampling), (prompt, sampling)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_no_parameter_makes_speculation_visible(name: str, source: str, k: int) -> None:
    bench = Bench(SOURCES[source](), k=k, toy=TOY)
    check(bench, variants(PARAMETERS[name]))
    rounds = [round_ for number in bench.outputs for round_ in bench.rounds(number)]
    assert sum(round_.drafted for round_ in rounds) > 0
    assert sum(round_.accepted for round_ in rounds) > 0


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("source", SOURCES)
def test_batches_that_mix_all_parameters(source: str, k: int) -> None:
    """Greedy and random, with seeds alike and not, in batches that change as requests end."""
    requests = [pair for sampling in PARAMETERS.values() for pair in variants(sampling)]
    requests += variants(Sampling())
    random.Random(k).shuffle(requests)
    check(Bench(SOURCES[source](), k=k, toy=TOY, max_num_seqs=9), requests[:45])


@pytest.mark.parametrize("source", SOURCES)
def test_preempted_sequences_keep_their_counts(source: str) -> None:
    """A cache too small for the batch: sequences are computed again, their penalties are not."""
    sampling = replace(PARAMETERS["everything"], min_tokens=24)
    bench = Bench(SOURCES[source](), k=4, toy=TOY, num_blocks=24)
    requests = variants(sampling)
    check(bench, requests)
    prefills = sum(chunk.samples and len(chunk.ids) > chunk.drafts + 1 for chunk in bench.chunks)
    assert prefills > sum(len(prompt) > 1 for prompt, _ in requests), "nothing was preempted"


def test_every_parameter_changes_what_is_said() -> None:
    """A check of the check: each of them is at work in these generations."""
    for name, sampling in PARAMETERS.items():
        bare = Sampling(stop_token_ids=sampling.stop_token_ids)
        same = [
            plain(tuple(prompt), own) == plain(tuple(prompt), other)
            for (prompt, own), (_, other) in zip(variants(sampling), variants(bare), strict=True)
        ]
        assert not all(same), name
