from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance import Round, total
from verifier_service.accounting import Account, Ledger, ProposerSums

K = 4


def made(drafted: int, accepted: int, *, base: int = 0, off_reason: str = "") -> Round:
    return Round(
        base=base,
        offered=drafted,
        drafted=drafted,
        accepted=accepted,
        emitted=accepted + 1,
        off_reason=off_reason,
    )


ROUNDS = st.integers(0, K).flatmap(
    lambda drafted: st.builds(made, st.just(drafted), st.integers(0, drafted))
)


@given(st.lists(st.tuples(st.integers(0, 3), ROUNDS, st.integers(1, K + 1)), max_size=30))
def test_totals_are_the_sum_over_accounts_whatever_was_cut(
    events: list[tuple[int, Round, int]],
) -> None:
    ledger = Ledger(K)
    accounts = [ledger.open(10 + i) for i in range(4)]
    for which, round_, keep in events:
        cut = round_.cut(min(keep, round_.emitted))
        accounts[which].add(cut.emitted, cut)
    used = {which for which, _, _ in events}
    assert ledger.acceptance == total((a.acceptance for a in accounts), K)
    assert ledger.generation_tokens == sum(a.completion_tokens for a in accounts)
    assert ledger.prompt_tokens == sum(accounts[i].prompt_tokens for i in used)


def test_a_round_without_drafts_is_counted_by_its_reason() -> None:
    ledger = Ledger(K)
    account = ledger.open(3)
    account.add(1, made(0, 0, off_reason="late"))
    account.add(1, made(0, 0, off_reason="late"))
    account.add(1, made(1, 0))
    assert dict(ledger.off_rounds) == {"late": 2}
    assert ledger.acceptance.num_spec_steps == 1


def test_figures_in_reasons_are_no_keys() -> None:
    ledger = Ledger(4)
    account = ledger.open(3)
    for milliseconds in (1.5, 2.5, 3.5):
        account.add(1, made(0, 0, off_reason=f"verifying does not pay: costs {milliseconds} ms"))
    assert dict(ledger.off_rounds) == {"verifying does not pay": 3}


def test_steps_are_kept_only_when_asked_and_never_in_the_totals() -> None:
    ledger = Ledger(K)
    plain, detailed = ledger.open(1), ledger.open(1, detailed=True)
    for account in (plain, detailed):
        account.add(3, made(4, 2))
    assert detailed.acceptance.per_step_accepted == [2]
    assert detailed.acceptance.per_step_drafted == [4]
    assert plain.acceptance.per_step_accepted == ledger.acceptance.per_step_accepted == []


def test_the_prompt_counts_with_the_first_output_and_once() -> None:
    ledger = Ledger(K)
    account = ledger.open(7)
    assert ledger.prompt_tokens == 0
    account.add(1, made(0, 0))
    account.add(1, made(0, 0))
    assert ledger.prompt_tokens == 7


def test_only_the_first_ending_counts() -> None:
    ledger = Ledger(K)
    account = ledger.open(1)
    account.close("stop")
    account.close("abort")
    assert dict(ledger.finished) == {"stop": 1}
    with pytest.raises(ValueError, match="closed"):
        account.add(1, None)


@pytest.mark.parametrize(
    ("tokens", "round_"),
    [
        (2, made(1, 0)),
        (6, made(5, 5)),
        (3, Round(base=0, offered=1, drafted=1, accepted=2, emitted=3)),
    ],
)
def test_a_round_that_contradicts_itself_is_not_counted_at_all(tokens: int, round_: Round) -> None:
    ledger = Ledger(K)
    account: Account = ledger.open(5)
    with pytest.raises(ValueError, match="round"):
        account.add(tokens, round_)
    assert account.completion_tokens == ledger.generation_tokens == ledger.prompt_tokens == 0
    assert ledger.acceptance == total((), K)


def test_a_verifier_without_speculation_counts_tokens() -> None:
    ledger = Ledger(0)
    ledger.open(2).add(1, made(0, 0, off_reason="no proposer attached"))
    assert ledger.generation_tokens == 1
    assert ledger.acceptance.histogram == [0]


def test_drafts_are_counted_by_whose_they_were() -> None:
    ledger = Ledger(K)
    account = ledger.open(3)
    for name, drafted, accepted in (("a", 3, 2), ("b", 1, 0), ("a", 2, 2), ("", 0, 0)):
        account.add(accepted + 1, replace(made(drafted, accepted), proposer=name))
    assert ledger.by_proposer == {"a": ProposerSums(2, 5, 4), "b": ProposerSums(1, 1, 0)}


def test_a_request_may_have_a_ceiling_of_its_own() -> None:
    ledger = Ledger(K)
    plain = ledger.open(3, num_spec_tokens=0)
    assert plain.acceptance.to_proto().acceptance_histogram == [0]
    plain.add(1, made(0, 0))
    with pytest.raises(ValueError, match="the ceiling is 0"):
        plain.add(2, made(1, 1))
    predicted = ledger.open(3, num_spec_tokens=K)
    predicted.add(3, made(2, 2))
    assert ledger.acceptance.num_draft_tokens == 2
