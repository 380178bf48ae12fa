"""Drafts that are drawn from a q, and the q that is told of them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import exp, log

import pytest
from speculation.v1 import types_pb2

from outrider.sparse_q import TOTAL_MASS
from proposer_service.draft_model.drawing import ENTRIES, Drawing
from proposer_service.proposers.batch import Drafted, TargetSampling, Wanted
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from tests.proposer_service.draft_model.drafting import DRAFT, Drafting, said
from tests.proposer_service.draft_model.test_session import sampled
from tests.proposer_service.verifier import commit, opening, step
from verifier_service.draft_checks import check_block
from verifier_service.messages import QForm

TOP = [(i, log(p)) for i, p in enumerate([0.5, 0.25, 0.125, 0.125])]
TEXT = [1, 2, 3, 1, 2]
SAMPLED = TargetSampling(temperature=1.0, seed=5, takes_q=True, vocabulary_size=4)


def shares(drawing: Drawing) -> dict[int, float]:
    drawn = drawing.draw(TOP, 7, 0)
    assert drawn is not None
    token, q = drawn
    assert token in q.token_ids
    assert sum(q.masses) == TOTAL_MASS
    return {i: mass / TOTAL_MASS for i, mass in zip(q.token_ids, q.masses, strict=True)}


@pytest.mark.parametrize(
    ("drawing", "wanted"),
    [
        (Drawing(1.0, 0, 1.0, 1, 0), [0.5, 0.25, 0.125, 0.125]),
        (Drawing(0.5, 0, 1.0, 1, 0), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (Drawing(1.0, 2, 1.0, 1, 0), [2 / 3, 1 / 3]),
        (Drawing(1.0, 0, 0.6, 1, 0), [2 / 3, 1 / 3]),
        (Drawing(1.0, 0, 0.1, 1, 0), [1.0]),
        (Drawing(1.0, 0, 1.0, 1, 3), [4 / 7, 2 / 7, 1 / 7]),
    ],
)
def test_q_is_what_the_request_asks_for(drawing: Drawing, wanted: list[float]) -> None:
    assert shares(drawing) == pytest.approx(dict(enumerate(wanted)), abs=1e-6)


def test_a_token_comes_as_often_as_its_q_says() -> None:
    counts: Counter[int] = Counter()
    for seed in range(4000):
        drawn = Drawing(1.0, 0, 1.0, seed, 0).draw(TOP, 7, 1)
        assert drawn is not None
        counts[drawn[0]] += 1
    for token, value in TOP:
        assert counts[token] / 4000 == pytest.approx(exp(value), abs=0.025)


def test_each_place_of_each_block_is_drawn_for_itself() -> None:
    drawing = Drawing(1.0, 0, 1.0, 3, 0)
    drawn = [drawing.draw(TOP, base, offset) for base in range(12) for offset in range(3)]
    again = [drawing.draw(TOP, base, offset) for base in range(12) for offset in range(3)]
    assert drawn == again
    assert len({token for token, _ in filter(None, drawn)}) == 4
    assert any(a != b for a, b in pairwise(drawn))


def test_no_q_is_longer_than_what_is_sent() -> None:
    top = [(i, -float(i) / 100) for i in range(3 * ENTRIES)]
    drawn = Drawing(1.0, 0, 1.0, 1, 0).draw(top, 1, 0)
    assert drawn is not None
    assert len(drawn[1].token_ids) == ENTRIES


def test_where_nothing_is_the_targets_nothing_is_drawn() -> None:
    assert Drawing(1.0, 0, 1.0, 1, 2).draw([(2, -0.1), (3, -0.2)], 1, 0) is None


def test_a_draft_follows_its_own_draws_and_is_drawn_anew_behind_each_commit() -> None:
    drafting = Drafting(sample_method="probabilistic")
    drafting.open(1, TEXT, SAMPLED)
    draft = drafting.proposer.propose(1, 6)
    assert len(draft.q) == len(draft.ids) == 6
    assert drafting.proposer.propose(1, 6) == draft
    assert not drafting.look_ahead(Drafted(1, draft, 6))
    drafting.read()
    drafting.proposer.extend(1, draft.ids[:3])
    again = drafting.proposer.propose(1, 6)
    assert drafting.read() == [1] * 6, "what came true is not read again"
    assert again.ids[:3] != draft.ids[3:] or again.q != draft.q
    fresh = Drafting(sample_method="probabilistic")
    fresh.open(1, [*TEXT, *draft.ids[:3]], SAMPLED)
    assert fresh.proposer.propose(1, 6) == again


def test_only_sampled_requests_under_other_rules_have_a_q() -> None:
    drafting = Drafting(sample_method="probabilistic")
    drafting.open(1, TEXT, SAMPLED._replace(temperature=0.0))
    drafting.open(2, TEXT, SAMPLED._replace(coupled=True))
    drafting.open(3, TEXT, SAMPLED)
    drafting.open(4, TEXT, SAMPLED._replace(takes_q=False))
    pieces = drafting.proposer.propose_many([Wanted(n, 2) for n in (1, 2, 3, 4)])
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            drafts = done.value
            break
    assert [bool(draft.q) for draft in drafts] == [False, False, True, False]
    assert drafts[0].ids == drafts[3].ids == said(DRAFT, TEXT, 2)
    plain = Drafting()
    plain.open(1, TEXT, SAMPLED)
    assert plain.draft(1, k=2) == [said(DRAFT, TEXT, 2)]


def test_what_is_sent_is_a_q_that_verifiers_take() -> None:
    drafting = Drafting(sample_method="probabilistic")
    limits = SequenceLimits(8, 0, 4, "v", takes_q=True)
    session = Session(drafting.proposer, sequence_numbers(), limits, 8, "v")
    first = session.answer(step(1, sampled(opening(1, TEXT, k=3), 1.0, 5))).drafts
    second = session.answer(step(2, commit(1, len(TEXT), [0], k=3))).drafts
    for drafts in (first, second):
        (block,) = drafts.blocks
        taken = check_block(
            block,
            proposer="p",
            max_draft_tokens=3,
            vocabulary_size=4,
            q_forms={types_pb2.Q_FORM_SPARSE: QForm.SPARSE},
        )
        assert len(taken.q) == len(taken.token_ids) == 3
