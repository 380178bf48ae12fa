"""The traffic's temporary file: what goes in comes out, as often as it is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.advise.replay import Cursor, Tally
from outrider.advise.spool import Spool, TrafficRequest

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
REQUESTS = st.builds(
    TrafficRequest,
    IDS,
    IDS,
    st.one_of(st.none(), st.integers(1, 2**31 - 1)),
    st.text(max_size=4),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUESTS, max_size=5))
def test_requests_come_back_as_they_were_as_often_as_they_are_read(
    requests: list[TrafficRequest],
) -> None:
    with Spool() as spool:
        for request in requests:
            spool.add(request)
        assert len(spool) == len(requests)
        for _ in range(3):
            assert list(spool) == requests
        assert spool.prompt_tokens == sum(len(r.prompt_ids) for r in requests)
        assert spool.output_tokens == sum(len(r.output_ids) for r in requests)


def test_a_salt_of_broken_text_survives() -> None:
    with Spool() as spool:
        spool.add(TrafficRequest([1], [2], salt="\ud800"))
        assert next(iter(spool)).salt == "\ud800"


def test_an_id_that_is_no_32_bit_number_is_refused() -> None:
    with Spool() as spool, pytest.raises(OverflowError):
        spool.add(TrafficRequest([2**31], [1]))


@pytest.mark.parametrize(
    ("draft", "accepted", "emitted"),
    [
        ((), 0, 1),
        ((9,), 0, 1),
        ((2,), 1, 2),
        ((2, 9), 1, 2),
        ((2, 3), 2, 3),
        ((2, 3, 4), 3, 3),
        ((2, 3, 4, 5, 6), 3, 3),
    ],
)
def test_a_round_emits_what_matches_and_one_more_up_to_the_end(
    draft: tuple[int, ...], accepted: int, emitted: int
) -> None:
    tally = Tally(5)
    cursor = Cursor(TrafficRequest([0, 0], [1, 2, 3, 4]), tally)
    assert cursor.live and cursor.wanted == 5
    cursor.verify(draft)
    assert tally.acceptance.num_draft_tokens == len(draft)
    assert tally.acceptance.num_accepted_draft_tokens == accepted
    assert (tally.emitted, cursor.position) == (emitted, 1 + emitted)
    assert cursor.live is (emitted < 3)


@pytest.mark.parametrize(("limit", "wanted"), [(None, 5), (9, 5), (7, 5), (6, 4), (2, 0), (1, 0)])
def test_a_limit_leaves_room_for_the_token_behind_the_drafts(
    limit: int | None, wanted: int
) -> None:
    assert Cursor(TrafficRequest([0, 0], [1, 2], limit), Tally(5)).wanted == wanted
