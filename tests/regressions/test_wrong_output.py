"""Output that changed because speculation was on: here token for token what plain decoding says.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from tests.regressions.bench import Bench, greedy, plain, seeded
from tests.regressions.network import ProposerServer, Wire
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle, random_guess
from tests.verifier_service.grammar.toy_grammar import STOP, TOY, constraint, text
from verifier_service.messages import FinishReason, NoDrafts, RejectionRule, Sampling, SequenceView

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def mixed(count: int) -> dict[str, tuple[list[int], Sampling]]:
    """Requests of every temperature, seed, prompt and length, side by side."""
    rng = random.Random(count)
    temperatures = [0.0, 0.3, 0.7, 1.0, 1.5]
    return {
        f"r{i}": (
            [rng.randrange(4) for _ in range(rng.randrange(1, 12))],
            Sampling(
                temperature=temperatures[i % 5],
                seed=i // 3,
                top_k=i % 4,
                top_p=1.0 if i % 3 else 0.9,
                max_tokens=rng.randrange(1, 30),
            ),
        )
        for i in range(count)
    }


@pytest.mark.parametrize("count", [2, 16])
def test_tgi_1411_a_batch_says_what_each_request_says_alone(count: int) -> None:
    """Strange tokens appeared only with several requests in a batch."""
    wire = Wire(
        ProposerServer(NgramProposer(1, 3)), ProposerServer(SuffixProposer(), name="suffix")
    )
    bench = Bench(wire)
    requests = mixed(count)
    for name, (prompt, sampling) in requests.items():
        bench.add(name, prompt, sampling)
    bench.finish()
    for name, (prompt, sampling) in requests.items():
        assert bench.tokens(name) == plain(prompt, sampling), name
    assert any(bench.acceptance(name).num_accepted_draft_tokens for name in requests)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_tgi_2997_ngram_speculation_of_two(k: int, temperature: float) -> None:
    """`--speculate 2` answered nonsense."""
    sampling = replace(seeded(9, 60), temperature=temperature)
    bench = Bench(Wire(ProposerServer(NgramProposer(1, 2)), k=k), k=k)
    bench.add("a", PROMPT, sampling)
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, sampling)
    assert bench.acceptance("a").num_accepted_draft_tokens > 0


def test_vllm_10559_a_long_answer_does_not_turn_into_gibberish() -> None:
    """Some tokens in, gibberish: a long answer, across many blocks of the cache and lookups."""
    sampling = replace(seeded(5, 200), temperature=0.8)
    bench = Bench(Wire(ProposerServer(NgramProposer(2, 5))))
    bench.add("a", PROMPT, sampling)
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, sampling)


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_vllm_41758_no_token_is_duplicated_or_lost_between_blocks(name: str) -> None:
    """n-gram drafts duplicated a token at temperature 0: both sides hold the same ids, always."""
    method = NgramProposer(1, 4) if name == "ngram" else SuffixProposer()
    server = ProposerServer(method, name=name)
    bench = Bench(Wire(server))
    bench.add("a", PROMPT, greedy(60))
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, greedy(60))
    told: list[int] = []
    for step in server.steps:
        for update in step.updates:
            base = update.open.offset + update.commit.base_length
            assert base == len(told)
            told += [*update.open.token_ids, *update.commit.token_ids]
    answer = PROMPT + bench.tokens("a")
    assert told == answer[: len(told)]
    assert len(answer) - len(told) <= 5


def test_vllm_6285_each_token_is_judged_at_its_own_position() -> None:
    """Tokens differed from the run without drafts: right drafts, one place too early or late."""
    toy = Toy.target()

    def shifted(by: int) -> object:
        def guess(view: SequenceView, rng: random.Random) -> Sequence[int]:
            ahead = [*view.ids, *oracle(toy)(replace(view, max_draft_tokens=9), rng)]
            start = len(view.ids) + by
            return ahead[start : start + view.max_draft_tokens]

        return guess

    accepted = []
    for by in (-1, 0, 1):
        bench = Bench(ToySource(shifted(by)))  # type: ignore[arg-type]
        bench.add("a", PROMPT, greedy(40))
        bench.finish()
        assert bench.tokens("a") == plain(PROMPT, greedy(40))
        accepted.append(bench.acceptance("a").draft_acceptance_rate)
    assert accepted[1] == 1.0
    assert max(accepted[0], accepted[2]) < 1.0


def test_vllm_10863_seeded_and_unseeded_requests_in_one_batch() -> None:
    """A batch of both answered `I!!!!!!`: a seed fixes its own request and touches no other.

    The edge draws a seed where none was sent, so to the core all requests have one.
    """
    answers = []
    for other in (111, 222):
        bench = Bench(ToySource(random_guess))
        for i in range(4):
            bench.add(f"seeded{i}", PROMPT, seeded(i, 20))
            bench.add(f"drawn{i}", PROMPT, seeded(other + i, 20))
        bench.finish()
        answers.append(bench)
    for i in range(4):
        first, second = (bench.tokens(f"seeded{i}") for bench in answers)
        assert first == second == plain(PROMPT, seeded(i, 20))
        assert answers[0].tokens(f"drawn{i}") == plain(PROMPT, seeded(111 + i, 20))
        assert len(set(answers[0].tokens(f"drawn{i}"))) > 1
    assert answers[0].tokens("drawn0") != answers[1].tokens("drawn0")


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("length", [4, 7, 8, 21])
@pytest.mark.parametrize("sampling", [greedy(17), seeded(2, 17)], ids=["greedy", "sampled"])
def test_vllm_43559_prefix_cache_hits_with_drafts_scheduled(
    sampling: Sampling, length: int, neighbours: bool
) -> None:
    """Accuracy fell by a fifth with prefix caching and drafts together.

    Each answer becomes part of the next prompt, so what is found was computed in blocks of drafts.
    """
    bench = Bench(ToySource(random_guess), neighbours=neighbours)
    prompt = [(i * i + i // 3) % 4 for i in range(length)]
    for turn in range(4):
        name = f"turn{turn}"
        bench.add(name, prompt, sampling)
        bench.finish()
        assert bench.tokens(name) == plain(prompt, sampling)
        prompt = [*prompt, *bench.tokens(name), turn]
    assert bench.scheduler.prefix_cache_hits > 3 * length
    assert sum(bench.acceptance(name).num_draft_tokens for name in bench.outputs) > 0


def test_vllm_ascend_17338_rejected_drafts_are_never_found_in_the_cache() -> None:
    """Corrupt tokens while acceptance looked healthy: keys of rejected drafts were cached.

    The second prompt is what the first drafter wrongly guessed: nothing of it may be found.
    """
    toy = Toy.target()
    prompt = [1, 2, 3, 0]
    guesses: list[tuple[int, ...]] = []

    def wrong(view: SequenceView, rng: random.Random) -> Sequence[int]:
        right = int(toy.logits_after(view.ids).argmax())
        guesses.append((*view.ids, *[(right + 1) % 4] * view.max_draft_tokens))
        return guesses[-1][len(view.ids) :]

    bench = Bench(ToySource(wrong), k=8)
    bench.add("a", prompt, greedy(20))
    bench.finish()
    committed = [[*prompt, *bench.tokens("a")]]
    for i, guess in enumerate(guesses):
        name = f"guess{i}"
        bench.add(name, [*guess, 1], greedy(3), num_speculative_tokens=0)
        bench.finish()
        assert bench.tokens(name) == plain([*guess, 1], greedy(3))
        known = max(_common(guess, text) for text in committed)
        assert bench.outputs[name][0].cached_prompt_tokens <= known
        committed.append([*guess, 1, *bench.tokens(name)])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("rule", list(RejectionRule))
@pytest.mark.parametrize("place", range(9))
def test_openvino_4081_drafts_go_on_behind_the_stop_token(place: int, rule: RejectionRule) -> None:
    """Drafts continued past the stop token and an assertion failed: the answer ends at it."""
    reference = plain(PROMPT, greedy(40))
    stop = reference[place]
    end = reference.index(stop) + 1
    bench = Bench(ToySource(oracle(Toy.target())), k=8, rule=rule)
    bench.add("a", PROMPT, greedy(40, stop_token_ids=frozenset({stop})))
    bench.finish()
    assert bench.tokens("a") == reference[:end]
    assert bench.reason("a") is FinishReason.STOP
    assert bench.outputs["a"][-1].stop_token_id == stop
    assert sum(r.emitted for r in bench.rounds("a")) == end
    assert bench.scheduler.num_free_blocks == bench.num_blocks


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 9, 10, 11])
def test_openvino_4081_the_length_limit_inside_a_block(max_tokens: int) -> None:
    """No token more than was asked for, however many the drafter had right."""
    bench = Bench(ToySource(oracle(Toy.target())), k=8)
    bench.add("a", PROMPT, greedy(max_tokens))
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, greedy(40))[:max_tokens]
    assert bench.reason("a") is FinishReason.LENGTH
    # A draft that could not have been emitted is not even verified.
    assert all(r.emitted == r.accepted + 1 for r in bench.rounds("a"))


@pytest.mark.parametrize("sparse", [(0,), (15,), (0, 7, 8), tuple(range(1, 16, 2))])
def test_vllm_ngram_sparse_eligible_requests_get_their_own_drafts(sparse: tuple[int, ...]) -> None:
    """vLLM's n-gram buffer was filled by place in the list and read by request: others' drafts.

    Only some of 16 requests speculate, each with a drafter that is right for it alone.
    """
    toy = Toy.target()
    bench = Bench(ToySource(oracle(toy)))
    for i in range(16):
        k = None if i in sparse else 0
        bench.add(f"r{i}", [i // 4, i % 4], greedy(21), num_speculative_tokens=k)
    bench.finish()
    for i in range(16):
        name = f"r{i}"
        assert bench.tokens(name) == plain([i // 4, i % 4], greedy(21))
        total = bench.acceptance(name)
        assert (total.num_draft_tokens > 0) == (i in sparse)
        assert total.num_accepted_draft_tokens == total.num_draft_tokens


def test_vllm_7627_the_written_guarantee_holds_with_everything_at_once() -> None:
    """Users asked for a guarantee: 16 mixed requests, preempted, aborted beside, drafters failing.

    docs/exactness.md is the guarantee in words.
    """
    wire = Wire(
        ProposerServer(NgramProposer(1, 3)), ProposerServer(SuffixProposer(), name="suffix")
    )
    bench = Bench(wire, num_blocks=30, max_num_seqs=8, budget=24, neighbours=True)
    requests = mixed(16)
    for i, (name, (prompt, sampling)) in enumerate(requests.items()):
        bench.add(name, prompt, sampling)
        bench.add(f"gone{i}", prompt, greedy(30))
        for _ in range(i % 4):
            bench.step()
        bench.scheduler.abort(f"gone{i}")
        if i % 5 == 4:
            wire.network.break_streams("unix:proposer")
    bench.finish()
    for name, (prompt, sampling) in requests.items():
        assert bench.tokens(name) == plain(prompt, sampling), name
    assert bench.scheduler.num_free_blocks == 30


@pytest.mark.parametrize("k", [1, 4, 8])
def test_sglang_21723_structured_answers_end_with_drafts_from_real_sessions(k: int) -> None:
    """Grammar-terminated requests did not finish: each ends with its structure, drafted for."""
    pattern = "(ab,){2,6}1"
    answers = []
    for ceiling in (0, k):
        wire = Wire(ProposerServer(NgramProposer(1, 3)), k=k, vocabulary_size=TOY.vocab_size)
        bench = Bench(wire if ceiling else NoDrafts(), k=ceiling, toy=TOY)
        for i in range(6):
            # Without a stop token the structure alone can end it.
            sampling = seeded(i, 40, stop_token_ids=frozenset({STOP} if i % 3 else ()))
            structure = None if i % 3 == 2 else constraint(pattern)
            bench.add(f"r{i}", [0, 1, 8] * 3, sampling, constraint=structure)
        bench.finish()
        answers.append(bench)
    without, with_drafts = answers
    for i in range(6):
        name = f"r{i}"
        assert with_drafts.tokens(name) == without.tokens(name)
        assert with_drafts.reason(name) is without.reason(name)
        if i % 3 != 2:
            assert with_drafts.reason(name) is FinishReason.STOP
            assert re.fullmatch(pattern, text(with_drafts.tokens(name)))
            assert with_drafts.acceptance(name).num_accepted_draft_tokens > 0
    assert with_drafts.scheduler.num_free_blocks == with_drafts.num_blocks
