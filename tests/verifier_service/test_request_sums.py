from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance import Acceptance, Round, total
from verifier_service.accounting import Ledger
from verifier_service.request_sums import RequestSums

K = 4
NAMES = ("ngram", "suffix", "prediction")


def made(drafted: int, accepted: int, proposer: str, hit: bool = False, reason: str = "") -> Round:
    return Round(
        base=0,
        offered=drafted,
        drafted=drafted,
        accepted=accepted,
        emitted=accepted + 1,
        proposer=proposer if drafted else "",
        off_reason="" if drafted else reason,
        draft_wait_ns=10,
        verify_ns=100,
        lookahead_hit=hit and drafted > 0,
    )


ROUNDS = st.integers(0, K).flatmap(
    lambda drafted: st.builds(
        made,
        st.just(drafted),
        st.integers(0, drafted),
        st.sampled_from(NAMES),
        st.booleans(),
        st.sampled_from(["late: 3 ms", "late: 4 ms", "prefill", ""]),
    )
)


@given(st.lists(st.tuples(ROUNDS, st.integers(1, K + 1)), max_size=30))
def test_proposers_add_up_to_the_account_whatever_was_cut(events: list[tuple[Round, int]]) -> None:
    account = Ledger(K).open(3, traced_rounds=0)
    for round_, keep in events:
        cut = round_.cut(keep)
        account.add(cut.emitted, cut)
    sums = account.traced
    assert sums is not None
    by_proposer = sums.by_proposer()
    assert total((p.acceptance for p in by_proposer.values()), K) == account.acceptance
    for name, part in by_proposer.items():
        own = Acceptance(K)
        for round_, keep in events:
            if round_.proposer == name:
                own.add(round_.cut(keep))
        assert part.acceptance == own
    assert sums.num_rounds == len(events)
    assert sums.draft_wait_ns == 10 * len(events)
    assert sums.verify_ns == 100 * len(events)
    hits = sum(p.lookahead_hits for p in by_proposer.values())
    assert hits == sum(round_.lookahead_hit for round_, _ in events)
    assert sum(sums.off_rounds.values()) == sum(bool(round_.off_reason) for round_, _ in events)
    assert set(sums.off_rounds) <= {"late", "prefill"}
    assert sums.rounds == []


def test_an_account_that_is_not_traced_has_no_such_sums() -> None:
    assert Ledger(K).open(3).traced is None


def test_the_first_rounds_are_kept_with_their_time_and_ids() -> None:
    moments = iter(range(100, 200))
    sums = RequestSums(K, keep=2, now_ns=lambda: next(moments))
    rounds = [replace(made(2, 1, "ngram"), base=i) for i in range(5)]
    for round_ in rounds:
        sums.add(round_, (7, 8))
    assert [kept.round for kept in sums.rounds] == rounds[:2]
    assert [kept.at_ns for kept in sums.rounds] == [100, 101]
    assert [kept.token_ids for kept in sums.rounds] == [(7, 8)] * 2
    assert sums.num_rounds == 5
