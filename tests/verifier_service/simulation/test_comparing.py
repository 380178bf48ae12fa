"""How many drafts were right, told from what was emitted after them."""

from __future__ import annotations

from collections.abc import Sequence

from verifier_service.messages import DraftBlock, QForm
from verifier_service.simulation.comparing import Comparison, ObservedRound, ObservedStep
from verifier_service.simulation.recording import Offer, RecordedRound, RecordedStep

STEP = RecordedStep(0.02, 0.001, 0.0, 1, 10, 0, ())


def block(ids: Sequence[int], at: int, proposer: str = "ngram", **more: object) -> DraftBlock:
    return DraftBlock(proposer, at, tuple(ids), match_length=3, **more)  # type: ignore[arg-type]


def round_(
    at: int,
    tokens: Sequence[int],
    *blocks: DraftBlock,
    sequence: int = 1,
    greedy: bool = True,
    used: DraftBlock | None = None,
    accepted: int = 0,
    verified: int = 0,
) -> ObservedRound:
    part = RecordedRound(sequence, at, 8, 8, greedy, len(tokens), verified, accepted)
    return ObservedRound(part, blocks, used, tuple(tokens))


def step(*rounds: ObservedRound, ended: Sequence[int] = ()) -> ObservedStep:
    return ObservedStep(STEP, rounds, tuple(ended))


def offers(recorded: RecordedStep) -> list[tuple[int, int]]:
    return [(offer.offered, offer.right) for part in recorded.rounds for offer in part.offers]


def test_a_block_is_compared_with_the_tokens_of_later_rounds() -> None:
    comparison = Comparison()
    assert not list(comparison.take(step(round_(10, [5], block([5, 6, 7, 8], 10)))))
    assert not list(comparison.take(step(round_(11, [6]))))
    done = list(comparison.take(step(round_(12, [9]))))
    assert [offers(recorded) for recorded in done] == [[(4, 2)], [], []]


def test_a_block_that_is_wrong_at_once_holds_nothing_up() -> None:
    (recorded,) = Comparison().take(step(round_(10, [5], block([4, 6], 10))))
    assert recorded.rounds[0].offers == (Offer("ngram", 2, 3, 0),)


def test_all_drafts_of_all_blocks_that_were_emitted_in_one_round() -> None:
    first, second = block([5, 6, 7], 10), block([5, 9], 10, "suffix")
    seen = round_(10, [5, 6, 7, 8], first, second, used=first, verified=3, accepted=3)
    (recorded,) = Comparison().take(step(seen))
    assert offers(recorded) == [(3, 3), (2, 1)]
    assert recorded.rounds[0].used == 0


def test_the_end_of_a_sequence_cuts_what_was_never_answered() -> None:
    comparison = Comparison()
    assert not list(comparison.take(step(round_(10, [5], block([5, 6, 7], 10)))))
    done = list(comparison.take(step(round_(3, [1], sequence=2), ended=[1])))
    assert [offers(recorded) for recorded in done] == [[(1, 1)], []]


def test_what_is_left_at_the_end_is_cut_too() -> None:
    comparison = Comparison()
    assert not list(comparison.take(step(round_(10, [5], block([5, 6, 7], 10)))))
    (recorded,) = comparison.flush()
    assert offers(recorded) == [(1, 1)]


def test_steps_come_out_in_order_and_never_pile_up() -> None:
    comparison = Comparison()
    stalled = step(round_(10, [5], block([5] * 8, 10)))
    out = list(comparison.take(stalled))
    for _ in range(1500):
        out += comparison.take(step(round_(3, [1], block([1], 3), sequence=2)))
    assert len(out) >= 400
    assert offers(out[0]) == [(1, 1)]
    assert all(offers(recorded) == [(1, 1)] for recorded in out)


def test_a_sampled_block_with_sparse_q_is_known_as_far_as_it_was_verified() -> None:
    verified = block([5, 6, 7], 10, q_form=QForm.SPARSE)
    other = block([5, 6], 10, "other", q_form=QForm.SPARSE)
    seen = round_(
        10, [5, 6, 2], other, verified, greedy=False, used=verified, verified=2, accepted=2
    )
    (recorded,) = Comparison().take(step(seen))
    assert recorded.rounds[0].offers == (Offer("ngram", 2, 3, 2),)
    assert recorded.rounds[0].used == 0


def test_confidences_are_kept_for_the_drafts_that_are() -> None:
    comparison = Comparison()
    assert not list(
        comparison.take(step(round_(10, [5], block([5, 6], 10, confidences=(0.9, 0.4)))))
    )
    (recorded,) = comparison.flush()
    assert recorded.rounds[0].offers[0].confidences == (0.9,)
