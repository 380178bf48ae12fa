"""What the measurement of look-ahead counts, on texts whose rounds are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.lookahead_cover import cover
from proposer_service.proposers.base import Complete, Draft, Outcome
from proposer_service.proposers.ngram import NgramProposer


def test_asks_are_hits_or_ruled_out_and_no_draft_is_lost() -> None:
    prompt = [1, 2, 3, 4, 9, 1]
    # Nothing, then 3, 4, 9 are drafted and accepted up to the 4.
    found = cover(NgramProposer(2, 3), iter([(prompt, [2, 3, 4, 7, 8, 5, 6])]), 3, 1)
    assert found["shares"] == {"hit": 0.3333, "none": 0.6667}
    assert found["accepted"] == {"ahead": 2, "asked": 2}
    assert found["left_out_by_match"] == {}


class Silent(NgramProposer):
    """Claims that there will be nothing, and drafts all the same."""

    def lookahead(
        self, sequence_id: int, draft: Draft, max_draft_tokens: int
    ) -> Iterable[Outcome | Complete]:
        return [Complete()]


class Cautious(NgramProposer):
    """Claims nothing."""

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        return ()


def test_what_is_left_out_is_counted_by_its_match() -> None:
    texts = [([1, 2, 3, 4, 9, 1], [2, 3, 4, 7, 8, 5, 6])]
    found = cover(Silent(2, 3), iter(texts), 3, 1)
    assert found["accepted"] == {"asked": 2}
    assert found["left_out_by_match"] == {2: 2}


def test_without_a_claim_every_ask_is_waited_for() -> None:
    texts = [([1, 2, 3, 4, 9, 1], [2, 3, 4, 7, 8, 5, 6])] * 3
    found = cover(Cautious(2, 3), iter(texts), 3, 2)
    assert found["shares"] == {"waited for": 1.0}
    assert found["accepted"] == {"ahead": 6, "asked": 6}
