"""What proposers offer along a trace, where a round began and where none did."""

from __future__ import annotations

from verifier_service.simulation.recording import Offer, RecordedRound, RecordedStep
from verifier_service.simulation.traces import Trace, traces_of


def part(at: int, emitted: int = 1, *offers: Offer, **more: int) -> RecordedRound:
    values = {"sequence": 1, "limit": 8, "ask": 8} | more
    return RecordedRound(
        values["sequence"], at, values["limit"], values["ask"], True, emitted, offers=offers
    )


def trace(*parts: RecordedRound) -> Trace:
    (found,) = traces_of([RecordedStep(0.02, 0.0, 0.0, 1, 1, 0, parts)], 8)
    return found


def test_a_trace_runs_from_its_first_round_to_its_last_token() -> None:
    found = trace(part(40, 3), part(43, 2))
    assert (found.start, found.end) == (40, 45)


def test_sequences_are_told_apart_in_the_order_of_their_first_round() -> None:
    step = RecordedStep(0.02, 0.0, 0.0, 2, 1, 0, (part(5, sequence=9), part(7, sequence=2)))
    assert [t.sequence for t in traces_of([step], 8)] == [9, 2]


def test_what_was_offered_at_a_position_is_offered_there() -> None:
    offer = Offer("ngram", 4, 3, 2)
    assert trace(part(40, 1, offer)).offers_at(40) == (offer,)


def test_a_block_goes_on_as_far_as_it_was_right() -> None:
    found = trace(part(40, 3, Offer("ngram", 5, 3, 3, (0.9, 0.8, 0.7, 0.6, 0.5))), part(43))
    assert found.offers_at(41) == (Offer("ngram", 4, 4, 2, (0.8, 0.7, 0.6, 0.5)),)
    assert found.offers_at(42) == (Offer("ngram", 3, 5, 1, (0.7, 0.6, 0.5)),)
    # A round began there, and nothing was offered.
    assert found.offers_at(43) == ()


def test_a_block_that_was_wrong_before_there_is_not_offered() -> None:
    found = trace(part(40, 1, Offer("ngram", 5, 3, 1), Offer("suffix", 5, 0, 4)))
    assert found.offers_at(42) == (Offer("suffix", 3, 0, 2),)
    assert found.offers_at(45) == ()
    assert found.offers_at(39) == ()


def test_nothing_is_known_where_nobody_was_asked() -> None:
    found = trace(part(40, 1, Offer("ngram", 5, 3, 3)), part(41, ask=0))
    assert found.offers_at(41) == (Offer("ngram", 4, 4, 2),)


def test_the_limit_falls_towards_max_tokens() -> None:
    found = trace(part(40), part(60, limit=3), part(61, limit=2))
    assert [found.limit_at(at, 8) for at in (40, 58, 61, 63, 64)] == [8, 5, 2, 0, 0]
    assert trace(part(40)).limit_at(40, 8) == 8
