"""The advisor's central claim: it counts what the verifier would have counted, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider.advise.methods import Method, ngram, replay_all, suffix
from outrider.advise.replay import Tally
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.outrider.advise.recording import Measured, record, spool
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer

TEXTS = (
    "the cat sat on the mat. the cat sat",
    "a dog and a cat STOP stopping",
    "12, 34; {} [] the cat sat on the mat",
    '"a": true the cat',
    "a dog and a cat and a dog and a cat and",
    "mat. a dog and a cat STOP",
)
METHODS: dict[str, Callable[[], Method]] = {
    "ngram 2-5": lambda: ngram(2, 5),
    "ngram 1": lambda: ngram(1, 1),
    "suffix": lambda: suffix(SuffixOptions()),
    "suffix that forgets": lambda: suffix(SuffixOptions(max_cached_requests=2)),
    "suffix without memory": lambda: suffix(SuffixOptions(max_cached_requests=0)),
    "suffix that drafts long": lambda: suffix(SuffixOptions(max_spec_factor=4.0)),
}


def prompts() -> list[list[int]]:
    return [list(byte_level_tokenizer().encode(text)) for text in TEXTS]


def predict(method: Method, ks: list[int], measured: Measured) -> tuple[Tally, ...]:
    with spool(measured.traffic) as traffic:
        return replay_all([method], ks, traffic, lambda done, total: None)[0].tallies


def assert_same(tally: Tally, measured: Measured) -> None:
    assert tally.acceptance == measured.acceptance
    assert (tally.rounds, tally.emitted) == (measured.rounds, measured.emitted)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.8), (3, 0.0), (8, 0.8)])
@pytest.mark.parametrize("name", METHODS)
def test_every_count_is_the_verifiers(name: str, k: int, temperature: float) -> None:
    method = METHODS[name]()
    measured = record(method.make(), k, prompts(), temperature=temperature)
    (tally,) = predict(method, [k], measured)
    assert measured.acceptance.num_draft_tokens, "nothing was drafted: nothing would be proved"
    assert_same(tally, measured)


@pytest.mark.parametrize("name", METHODS)
def test_one_recording_predicts_every_other_k(name: str) -> None:
    method = METHODS[name]()
    recorded = record(method.make(), 8, prompts(), temperature=0.8)
    tallies = predict(method, [2, 5], recorded)
    for tally in tallies:
        assert_same(tally, record(method.make(), tally.k, prompts(), temperature=0.8))


@pytest.mark.parametrize("name", METHODS)
def test_a_recording_of_plain_decoding_predicts_speculation(name: str) -> None:
    method = METHODS[name]()
    plain = record(method.make(), 0, prompts())
    assert plain.acceptance.num_spec_steps == 0
    (tally,) = predict(method, [4], plain)
    assert_same(tally, record(method.make(), 4, prompts()))


def test_salts_keep_memories_apart_as_in_the_verifier() -> None:
    method = suffix(SuffixOptions())
    twice = prompts() + prompts()
    apart = record(method.make(), 4, twice, salts=("a", "b", "c"))
    shared = record(method.make(), 4, twice)
    assert apart.acceptance != shared.acceptance, "memory made no difference: nothing is proved"
    assert_same(predict(method, [4], apart)[0], apart)
    assert_same(predict(method, [4], shared)[0], shared)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["ngram 1", "suffix"])
def test_limits_bound_the_drafts_as_in_the_verifier(name: str, max_tokens: int) -> None:
    method = METHODS[name]()
    measured = record(method.make(), 4, prompts(), max_tokens=max_tokens)
    assert_same(predict(method, [4], measured)[0], measured)


def test_a_prompt_of_one_id_begins_with_a_round_of_its_own() -> None:
    method = suffix(SuffixOptions(max_spec_factor=4.0))
    single = [prompt[-1:] for prompt in prompts()] * 2
    measured = record(method.make(), 4, single)
    assert measured.emitted == sum(len(request.output_ids) for request in measured.traffic)
    assert_same(predict(method, [4], measured)[0], measured)


def test_a_prompt_that_was_cached_begins_with_a_round_of_its_own() -> None:
    method = suffix(SuffixOptions())
    prompt = list(byte_level_tokenizer().encode(TEXTS[2]))[:9]
    measured = record(method.make(), 4, [prompt, prompt])
    assert [request.cached for request in measured.traffic] == [False, True]
    assert_same(predict(method, [4], measured)[0], measured)
