"""What of an answer waits for its reader."""

from __future__ import annotations

from speculation.v1 import verifier_pb2

from outrider.acceptance import Round
from verifier_service.messages import TokenLogprob
from verifier_service.undelivered import MAX_TOKENS_PER_DELTA, Undelivered

ROUND = Round(base=0, offered=2, drafted=2, accepted=1, emitted=2, proposer="ngram")
LOGPROB = TokenLogprob(7, -0.5, 1, top=((7, -0.5), (8, -1.0), (9, -2.0)))


def taken(undelivered: Undelivered) -> verifier_pb2.Delta:
    delta = verifier_pb2.Delta()
    undelivered.take(delta)
    return delta


def words(logprobs: object) -> list[verifier_pb2.TokenLogprob]:
    assert isinstance(logprobs, tuple)
    return [verifier_pb2.TokenLogprob(token_id=entry.token_id) for entry in logprobs]


def test_what_waits_becomes_one_message_in_its_order() -> None:
    undelivered = Undelivered(rounds=True, logprobs=None)
    assert not undelivered
    undelivered.add("ab", (1, 2), ROUND)
    undelivered.add("c", (3,))
    assert undelivered
    assert undelivered.waiting == 3
    delta = taken(undelivered)
    assert (delta.text, list(delta.token_ids)) == ("abc", [1, 2, 3])
    assert [round_.proposer for round_ in delta.rounds] == ["ngram"]
    assert not undelivered
    assert undelivered.waiting == 0


def test_rounds_and_logprobs_are_told_to_those_who_asked() -> None:
    quiet = Undelivered(rounds=False, logprobs=None)
    quiet.add("a", (7,), ROUND, (LOGPROB,))
    delta = taken(quiet)
    assert not delta.rounds
    assert not delta.logprobs
    told = Undelivered(rounds=False, logprobs=words)
    told.add("a", (7,), ROUND, (LOGPROB,))
    assert [entry.token_id for entry in taken(told).logprobs] == [7]


def test_no_message_is_longer_than_one_may_be() -> None:
    undelivered = Undelivered(rounds=False, logprobs=None)
    for _ in range(2 * MAX_TOKENS_PER_DELTA + 1):
        undelivered.add("x", (5,))
    lengths = []
    while undelivered:
        lengths.append(len(taken(undelivered).token_ids))
    assert lengths == [MAX_TOKENS_PER_DELTA, MAX_TOKENS_PER_DELTA, 1]


def test_logprobs_count_for_a_messages_size() -> None:
    undelivered = Undelivered(rounds=False, logprobs=words)
    undelivered.add("a", (7,), None, (LOGPROB,))
    assert undelivered.waiting == 1 + 4 / 16
    taken(undelivered)
    assert undelivered.waiting == 0


def test_what_is_cleared_is_not_told() -> None:
    undelivered = Undelivered(rounds=False, logprobs=None)
    undelivered.add("a", (1,))
    undelivered.clear()
    assert not undelivered
    assert undelivered.waiting == 0
