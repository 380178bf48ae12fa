"""What is learnt of acceptance, and for whom."""

import numpy as np
import pytest

from verifier_service.estimates import AcceptanceEstimates
from verifier_service.messages import DraftBlock, QForm

K = 6


def block(proposer: str = "ngram", **more: object) -> DraftBlock:
    return DraftBlock(proposer, 9, tuple(range(K)), **more)  # type: ignore[arg-type]


def survival(
    estimates: AcceptanceEstimates,
    drafts: DraftBlock,
    sequence_id: int = 1,
    *,
    length: int = K,
    greedy: bool = True,
) -> list[float]:
    key = (drafts.proposer, greedy)
    mean = estimates.survivals([drafts], [length], [sequence_id], [key]).mean
    return [float(value) for value in mean[0]]


def rounds(
    estimates: AcceptanceEstimates,
    drafts: DraftBlock,
    acceptance: float,
    times: int,
    *,
    sequence_id: int = 1,
    greedy: bool = True,
    seed: int = 0,
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(times):
        right = rng.random(K) < acceptance
        accepted = K if right.all() else int(right.argmin())
        estimates.begin_step()
        estimates.observe(sequence_id, drafts, greedy=greedy, drafted=K, accepted=accepted)


def test_survival_is_a_falling_product_that_ends_with_the_block() -> None:
    estimates = AcceptanceEstimates(K)
    chances = survival(estimates, block(), length=4)
    assert chances[:4] == sorted(chances[:4], reverse=True)
    assert chances[0] > 0.4
    assert len(chances) == 4


@pytest.mark.parametrize("acceptance", [0.05, 0.4, 0.8, 0.95])
def test_rates_are_learnt(acceptance: float) -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(), acceptance, 300)
    assert survival(estimates, block(), 99)[0] == pytest.approx(acceptance, abs=0.15)


def test_failing_drafts_soon_count_for_little() -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(), 0.0, 25)
    assert survival(estimates, block())[0] < 0.05


def test_drafts_behind_the_first_wrong_one_teach_nothing() -> None:
    estimates = AcceptanceEstimates(2)
    pair = DraftBlock("ngram", 9, (1, 2))
    for _ in range(40):
        estimates.observe(1, pair, greedy=True, drafted=2, accepted=2)
    for _ in range(10):
        estimates.observe(1, pair, greedy=True, drafted=2, accepted=0)
    first, second = estimates.rates()["ngram/greedy"]
    assert second > 0.9 > first


def test_positions_are_told_apart() -> None:
    estimates = AcceptanceEstimates(K)
    for _ in range(60):
        estimates.observe(1, block(), greedy=True, drafted=K, accepted=2)
    rates = estimates.rates()["ngram/greedy"]
    assert rates[0] > 0.9
    assert rates[1] > 0.9
    assert rates[2] < 0.2


def test_longer_matches_are_told_from_short_ones() -> None:
    estimates = AcceptanceEstimates(K)
    for seed in range(40):
        for match_length, acceptance in ((2, 0.1), (12, 0.9)):
            drafts = block(match_length=match_length)
            survival(estimates, drafts)
            rounds(estimates, drafts, acceptance, 2, seed=seed)
    short = survival(estimates, block(match_length=2), 50)[0]
    long = survival(estimates, block(match_length=12), 50)[0]
    assert short < 0.35
    assert long > 0.7


def test_a_match_length_never_seen_falls_back_to_the_position() -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(match_length=2), 0.9, 100)
    assert survival(estimates, block(match_length=30), 50)[0] == pytest.approx(0.9, abs=0.1)


def test_confidences_are_calibrated() -> None:
    estimates = AcceptanceEstimates(K)
    for seed in range(40):
        rounds(estimates, block(confidences=(0.97,) * K), 0.9, 2, seed=seed)
        rounds(estimates, block(confidences=(0.4,) * K), 0.1, 2, seed=seed)
    sure = survival(estimates, block(confidences=(0.97,) * K), 50)[0]
    unsure = survival(estimates, block(confidences=(0.4,) * K), 50)[0]
    assert sure > 0.7
    assert unsure < 0.35


def test_confidences_of_sampled_drafts_are_not_read() -> None:
    estimates = AcceptanceEstimates(K)
    for seed in range(40):
        rounds(estimates, block(confidences=(0.97,) * K), 0.9, 2, seed=seed)
        rounds(estimates, block(confidences=(0.1,) * K), 0.1, 2, seed=seed)
    high = block(confidences=(0.97,) * K, q_form=QForm.SPARSE)
    low = block(confidences=(0.1,) * K, q_form=QForm.SPARSE)
    assert survival(estimates, high, 50) == survival(estimates, low, 50)


def test_proposers_and_temperatures_are_told_apart() -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block("good"), 0.9, 60, sequence_id=1)
    rounds(estimates, block("bad"), 0.05, 60, sequence_id=2)
    rounds(estimates, block("good"), 0.3, 200, sequence_id=3, greedy=False)
    assert survival(estimates, block("good"), 9)[0] > 0.8
    assert survival(estimates, block("bad"), 9)[0] < 0.15
    assert survival(estimates, block("good"), 9, greedy=False)[0] < 0.6


def test_a_proposers_other_temperature_is_the_first_guess() -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(), 0.02, 80)
    assert survival(estimates, block(), 9, greedy=False)[0] < 0.3
    assert survival(estimates, block("new"), 9, greedy=False)[0] > 0.4


def test_a_sequence_may_differ_from_the_rest() -> None:
    estimates = AcceptanceEstimates(K)
    for seed in range(60):
        for sequence_id in range(4):
            acceptance = 0.9 if sequence_id else 0.05
            rounds(estimates, block(), acceptance, 1, sequence_id=sequence_id, seed=7 * seed)
    assert survival(estimates, block(), 0)[0] < 0.3
    assert survival(estimates, block(), 1)[0] > 0.75


def test_a_forgotten_sequence_starts_from_the_average() -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(), 0.7, 60, sequence_id=1)
    rounds(estimates, block(), 0.0, 8, sequence_id=2)
    failing = survival(estimates, block(), 2)[0]
    estimates.forget(2)
    assert survival(estimates, block(), 2) == survival(estimates, block(), 777)
    assert survival(estimates, block(), 2)[0] > failing


@pytest.mark.parametrize("before", [0.0, 0.05])
def test_comes_back_within_few_successes(before: float) -> None:
    estimates = AcceptanceEstimates(K)
    rounds(estimates, block(), before, 200)
    assert survival(estimates, block())[0] < 0.1
    rounds(estimates, block(), 1.0, 3)
    assert survival(estimates, block())[0] > 0.5


def test_an_unlucky_position_that_is_not_tried_any_more_is_given_another_chance() -> None:
    estimates = AcceptanceEstimates(2)
    pair = DraftBlock("ngram", 9, (1, 2))
    for _ in range(20):
        estimates.observe(1, pair, greedy=True, drafted=2, accepted=1)
    unlucky = estimates.rates()["ngram/greedy"][1]
    for _ in range(200):
        estimates.begin_step()
        estimates.observe(1, pair, greedy=True, drafted=1, accepted=1)
    assert unlucky < 0.3
    assert estimates.rates()["ngram/greedy"][1] > 0.6


def test_optimism_shrinks_with_evidence() -> None:
    estimates = AcceptanceEstimates(K)

    def margin() -> float:
        both = estimates.survivals([block()], [K], [1], [("ngram", True)], optimistic=True)
        return both.optimistic[0][0] - both.mean[0][0]

    at_first = margin()
    rounds(estimates, block(), 0.6, 100)
    assert 0.0 < margin() < 0.6 * at_first


def test_a_round_without_drafts_is_no_evidence() -> None:
    estimates = AcceptanceEstimates(K)
    before = survival(estimates, block())
    estimates.observe(1, block(), greedy=True, drafted=0, accepted=0)
    assert survival(estimates, block()) == before


def test_no_blocks_no_rows() -> None:
    assert AcceptanceEstimates(K).survivals([], [], [], []).mean == []
