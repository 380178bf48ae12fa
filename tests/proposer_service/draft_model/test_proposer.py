"""Drafts of a toy model: what it says itself, and how little is read to know it."""

from __future__ import annotations

import random

import pytest

from proposer_service.draft_model.blocks import IDLE_ROUNDS
from proposer_service.draft_model.proposer import Budgets
from proposer_service.proposers.base import Draft
from proposer_service.proposers.batch import Drafted, TargetSampling, Wanted
from tests.proposer_service.draft_model.drafting import DRAFT, Drafting, said
from verifier_service.messages import Sampling

TEXT = [1, 2, 3, 1, 2]
COUPLED = TargetSampling(temperature=0.8, seed=-5, coupled=True, vocabulary_size=4)
SAMPLING = Sampling(temperature=0.8, seed=-5)


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4) for _ in range(count)]


def test_a_draft_is_what_the_model_would_say() -> None:
    drafting = Drafting()
    drafting.open(1, TEXT)
    assert drafting.draft(1) == [said(DRAFT, TEXT, 4)]
    assert drafting.read() == [5, 1, 1, 1]
    assert drafting.proposer.propose(1, 2) == Draft(said(DRAFT, TEXT, 2))


def test_under_coupled_a_draft_has_the_targets_noise() -> None:
    noisy, greedy = said(DRAFT, TEXT, 8, SAMPLING), said(DRAFT, TEXT, 8)
    assert noisy != greedy
    drafting = Drafting()
    drafting.open(1, TEXT, COUPLED)
    drafting.open(2, TEXT, COUPLED._replace(coupled=False))
    drafting.open(3, TEXT, COUPLED._replace(temperature=0.0))
    assert drafting.draft(1, 2, 3, k=8) == [noisy, greedy, greedy]
    stubborn = Drafting(sample_method="greedy")
    stubborn.open(1, TEXT, COUPLED)
    assert stubborn.draft(1, k=8) == [greedy]


def test_drawn_drafts_need_a_verifier_that_takes_their_q() -> None:
    insisting = Drafting(sample_method="probabilistic").proposer
    assert not insisting.refusal(coupled=True, takes_q=False)
    assert not insisting.refusal(coupled=False, takes_q=True)
    assert "'probabilistic'" in insisting.refusal(coupled=False, takes_q=False)
    assert not Drafting().proposer.refusal(coupled=False, takes_q=False)


def test_nothing_that_is_right_is_read_twice() -> None:
    drafting = Drafting()
    drafting.open(1, TEXT)
    (draft,) = drafting.draft(1)
    drafting.read()
    # Two accepted, then another token: it and nothing else is new.
    own = (draft[2] + 1) % 4
    drafting.proposer.extend(1, [*draft[:2], own])
    assert drafting.draft(1) == [said(DRAFT, [*TEXT, *draft[:2], own], 4)]
    assert drafting.read() == [1, 1, 1, 1]
    # All accepted: the last draft was never read.
    (draft,) = drafting.draft(1)
    drafting.proposer.extend(1, [*draft, 0])
    drafting.draft(1)
    assert drafting.read() == [2, 1, 1, 1]


def test_what_is_known_already_needs_no_forward() -> None:
    drafting = Drafting()
    drafting.open(1, TEXT)
    (draft,) = drafting.draft(1, k=6)
    drafting.read()
    assert drafting.draft(1, k=4) == [draft[:4]]
    drafting.proposer.extend(1, draft[:2])
    assert drafting.draft(1, k=4) == [draft[2:6]]
    assert drafting.read() == []
    assert drafting.draft(1, k=5) == [said(DRAFT, [*TEXT, *draft[:2]], 5)]
    assert drafting.read() == [1]


def test_all_sequences_share_the_forwards_whatever_each_wants() -> None:
    drafting = Drafting()
    for number in range(5):
        drafting.open(number, ids(3 + number, number), COUPLED if number % 2 else None)
    found = drafting.draft(*range(5), k=3)
    assert drafting.read() == [3 + 4 + 5 + 6 + 7, 5, 5]
    for number, draft in enumerate(found):
        sampling = SAMPLING if number % 2 else None
        assert draft == said(DRAFT, ids(3 + number, number), 3, sampling)


def test_look_ahead_prepares_the_round_in_which_all_are_accepted() -> None:
    drafting = Drafting()
    drafting.open(1, TEXT)
    drafting.open(2, TEXT[1:], COUPLED)
    first, second = drafting.draft(1, 2, k=3)
    drafting.read()
    ahead = drafting.look_ahead(Drafted(1, Draft(first), 3), Drafted(2, Draft(second), 3))
    assert drafting.read() == [2, 2, 2, 2]
    chain = said(DRAFT, TEXT, 7)
    assert ahead[1] == (chain[:4], chain[4:])
    chain = said(DRAFT, TEXT[1:], 7, SAMPLING)
    assert ahead[2] == (chain[:4], chain[4:])
    # That is how it ended for one; for the other one draft was accepted.
    drafting.proposer.extend(1, ahead[1][0])
    drafting.proposer.extend(2, [chain[0], (chain[1] + 1) % 4])
    after = [*TEXT[1:], chain[0], (chain[1] + 1) % 4]
    assert drafting.draft(1, 2, k=3) == [ahead[1][1], said(DRAFT, after, 3, SAMPLING)]
    assert drafting.read() == [1, 1, 1]


def test_look_ahead_may_be_left_at_any_piece() -> None:
    for pieces in range(6):
        drafting = Drafting()
        drafting.open(1, TEXT)
        (draft,) = drafting.draft(1, k=3)
        work = drafting.proposer.prepare([Drafted(1, Draft(draft), 3)])
        for _ in range(pieces):
            next(work, None)
        own = (said(DRAFT, TEXT, 4)[3] + 1) % 4
        drafting.proposer.extend(1, [*draft, own])
        assert drafting.draft(1, k=3) == [said(DRAFT, [*TEXT, *draft, own], 3)]


def test_a_long_prompt_makes_nobody_wait() -> None:
    drafting = Drafting(budgets=Budgets(answer=8, piece=6))
    long = ids(20)
    drafting.open(1, long)
    drafting.open(2, TEXT)
    assert drafting.draft(1, 2, k=2) == [(), said(DRAFT, TEXT, 2)]
    assert drafting.read() == [5, 1]
    work = drafting.catch_up()
    next(work)
    next(work)
    assert drafting.read() == [6, 6]
    # What is left now fits in an answer.
    assert drafting.draft(1, k=2) == [said(DRAFT, long, 2)]
    assert drafting.read() == [8, 1]
    assert list(work) == []
    assert drafting.read() == []


def test_prompts_are_read_to_their_ends_in_the_order_in_which_they_came() -> None:
    drafting = Drafting(budgets=Budgets(answer=8, piece=16))
    first, second = ids(20, 1), ids(15, 2)
    drafting.open(1, first)
    drafting.open(2, second)
    assert len(list(drafting.catch_up())) == 3
    steps = [[(len(c.ids), c.start, c.samples) for c in step] for step in drafting.engine.steps]
    assert steps == [[(16, 0, False)], [(4, 16, True), (12, 0, False)], [(3, 12, True)]]
    drafting.read()
    assert drafting.draft(1, 2, k=1) == [said(DRAFT, first, 1), said(DRAFT, second, 1)]
    assert drafting.read() == []


def test_more_short_prompts_than_an_answer_has_time_for() -> None:
    drafting = Drafting(budgets=Budgets(answer=8, piece=8))
    for number in (1, 2, 3):
        drafting.open(number, ids(4 + number, number))
    assert drafting.draft(1, 2, 3, k=1) == [said(DRAFT, ids(5, 1), 1), (), ()]
    list(drafting.catch_up())
    assert drafting.draft(2, 3, k=1) == [said(DRAFT, ids(6, 2), 1), said(DRAFT, ids(7, 3), 1)]


def test_a_text_that_comes_in_chunks_is_read_as_it_comes() -> None:
    drafting = Drafting(budgets=Budgets(answer=4, piece=8))
    text = ids(20)
    drafting.open(1, text[:10])
    list(drafting.catch_up())
    drafting.proposer.extend(1, text[10:])
    list(drafting.catch_up())
    assert sum(drafting.read()) == 20
    assert drafting.draft(1, k=2) == [said(DRAFT, text, 2)]


def test_a_full_cache_takes_from_who_was_not_asked_about_and_reads_again() -> None:
    drafting = Drafting(num_blocks=4)  # 16 ids.
    drafting.open(1, ids(10, 1))
    drafting.draft(1, k=2)
    drafting.open(2, ids(10, 2))
    # The first may still be asked about: the second waits, for at most so many rounds.
    for _ in range(IDLE_ROUNDS - 1):
        assert drafting.draft(2, k=2) == [()]
    assert drafting.draft(2, k=2) == [said(DRAFT, ids(10, 2), 2)]
    assert drafting.proposer.evictions == 1
    drafting.proposer.close(2, True)
    drafting.proposer.extend(1, [0])
    drafting.read()
    assert drafting.draft(1, k=2) == [said(DRAFT, [*ids(10, 1), 0], 2)]
    assert drafting.read() == [11, 1]


def test_where_not_all_fit_the_first_go_on_and_nobody_reads_again_and_again() -> None:
    drafting = Drafting(num_blocks=8)  # 32 ids.
    texts = {number: ids(6, number) for number in range(4)}
    for number, text in texts.items():
        drafting.open(number, text)
    served = []
    for _ in range(4):
        found = drafting.draft(*texts, k=2)
        served.append([bool(draft) for draft in found])
        for number, draft in zip(texts, found, strict=True):
            assert draft in ((), said(DRAFT, texts[number], 2))
            texts[number] += draft or (0, 0)
            drafting.proposer.extend(number, draft or (0, 0))
    assert served[0] == [True] * 4
    assert served[-1] == [True, True, False, False]
    assert max(drafting.read()[2:]) <= 4
    drafting.proposer.close(0, True)
    drafting.proposer.close(1, True)
    assert drafting.draft(2, 3, k=1) == [said(DRAFT, texts[n], 1) for n in (2, 3)]


def test_a_closed_text_leaves_nothing() -> None:
    drafting = Drafting(num_blocks=4, budgets=Budgets(answer=8, piece=6))
    for number in range(50):
        drafting.open(number, ids(12, number))
        next(drafting.catch_up())
        drafting.proposer.close(number, False)
    assert list(drafting.catch_up()) == []
    drafting.open(99, ids(12))
    list(drafting.catch_up())
    assert drafting.draft(99, k=2) == [said(DRAFT, ids(12), 2)]


def test_no_id_lies_beyond_the_models_context() -> None:
    drafting = Drafting()
    limit = drafting.engine.model.max_model_len
    text = ids(limit - 3)
    drafting.open(1, text)
    (draft,) = drafting.draft(1, k=8)
    assert draft == said(DRAFT, text, 3)
    assert not drafting.look_ahead(Drafted(1, Draft(draft), 8))
    drafting.proposer.extend(1, draft)
    drafting.read()
    assert drafting.draft(1, k=8) == [()]
    assert drafting.read() == []


@pytest.mark.parametrize("strange", [4, 1000, -1])
def test_an_id_that_the_model_cannot_read_costs_its_own_text_only(strange: int) -> None:
    drafting = Drafting()
    drafting.open(1, [1, strange])
    drafting.open(2, TEXT)
    drafting.open(3, TEXT)
    drafting.draft(3)
    drafting.proposer.extend(3, [strange])
    assert drafting.draft(1, 2, 3, k=2) == [(), said(DRAFT, TEXT, 2), ()]
    drafting.proposer.extend(1, [1])
    assert drafting.draft(1) == [()]


def test_an_id_that_the_target_lacks_is_not_drafted() -> None:
    chain = said(DRAFT, TEXT, 8)
    highest = max(chain)
    place = chain.index(highest)
    drafting = Drafting()
    drafting.open(1, TEXT, TargetSampling(vocabulary_size=highest))
    assert drafting.draft(1, k=8) == [chain[:place]]
    assert not drafting.look_ahead(Drafted(1, Draft(chain[:place]), 8))
    other = (highest + 1) % 4
    drafting.proposer.extend(1, [*chain[:place], other])
    (draft,) = drafting.draft(1, k=1)
    assert draft == said(DRAFT, [*TEXT, *chain[:place], other], 1) or draft == ()


def test_an_engine_that_fails_again_and_again_is_dead() -> None:
    told: list[str] = []
    drafting = Drafting()
    drafting.proposer.on_death = told.append
    drafting.open(1, TEXT)
    for failures in (2, 2, 3):
        for _ in range(failures):
            drafting.engine.fail_at = len(drafting.engine.steps)
            assert told == []
            with pytest.raises(RuntimeError):
                drafting.draft(1)
        drafting.engine.fail_at = None
        drafting.draft(1, k=1)
        drafting.proposer.extend(1, [0])
    assert told == ["RuntimeError: the toy engine was told to fail"]


def test_streams_alternate_between_the_pieces() -> None:
    drafting = Drafting(num_blocks=16)
    drafting.open(1, TEXT)
    drafting.open(2, TEXT[1:])
    one = drafting.proposer.propose_many([Wanted(1, 4)])
    other = drafting.proposer.propose_many([Wanted(2, 4)])
    next(one)
    next(other)
    # The other stream ends in the middle of its own answer.
    drafting.proposer.close(2, False)
    with pytest.raises((StopIteration, KeyError)):
        while True:
            next(other)
    while True:
        try:
            next(one)
        except StopIteration as done:
            assert [draft.ids for draft in done.value] == [said(DRAFT, TEXT, 4)]
            break
