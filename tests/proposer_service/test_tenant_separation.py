"""Drafts of one tenant do not depend on what another one sent, in whatever order the two come."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from proposer_service.proposers.base import Ahead, Draft
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.sequences import SequenceLimits, SequenceTable, sequence_numbers
from tests.proposer_service.verifier import commit, opening

# Few ids, so that texts of the two meet all the time.
texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


def talk(
    proposer: SuffixProposer | NgramProposer, turns: Sequence[tuple[str, list[list[int]]]]
) -> list[tuple[str, Draft, list[Ahead]]]:
    """Sequences of (salt, prompt and commits), all open side by side; drafts after each message."""
    table = SequenceTable(proposer, sequence_numbers(), SequenceLimits(max_sequences=64))
    told: list[tuple[str, Draft, list[Ahead]]] = []
    lengths = [0] * len(turns)
    for round_ in range(max(len(pieces) for _, pieces in turns)):
        for index, (salt, pieces) in enumerate(turns):
            if round_ >= len(pieces):
                continue
            ids = pieces[round_]
            update = (
                commit(index, lengths[index], ids) if round_ else opening(index, ids, salt=salt)
            )
            number = table.apply(update).number
            lengths[index] += len(ids)
            proposer.settle()
            draft = proposer.propose(number, 6)
            told.append((salt, draft, list(proposer.lookahead(number, draft, 6))))
            if round_ == len(pieces) - 1:
                table.close(index, finished=True)
    return told


@settings(deadline=None, max_examples=150)
@given(
    mine=st.lists(texts, min_size=1, max_size=3),
    theirs=st.lists(texts, min_size=1, max_size=3),
    interleave=st.booleans(),
)
def test_what_another_tenant_sends_changes_no_draft(
    mine: list[list[list[int]]], theirs: list[list[list[int]]], interleave: bool
) -> None:
    alone: list[tuple[str, list[list[int]]]] = [("mine", pieces) for pieces in mine]
    others: list[tuple[str, list[list[int]]]] = [("theirs", pieces) for pieces in theirs]
    if interleave:
        together = [turn for pair in zip(others, alone, strict=False) for turn in pair]
        together += others[len(alone) :] + alone[len(others) :]
    else:
        together = [*others, *alone]
    for make in (SuffixProposer, NgramProposer):
        seen = [entry for entry in talk(make(), together) if entry[0] == "mine"]
        assert seen == talk(make(), alone)


def test_the_same_tenants_text_does_change_them() -> None:
    """Else the test above would hold for a proposer that remembers nothing."""
    before = ("mine", [[9], [1, 2, 3, 1, 2, 3]])
    now = ("mine", [[9], [1], [2]])
    proposer = SuffixProposer()
    talk(proposer, [before])
    (*_, last) = talk(proposer, [now])
    (*_, alone) = talk(SuffixProposer(), [now])
    assert last[1].ids and not alone[1].ids
