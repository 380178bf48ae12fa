"""Acceptance as servers tell it, in each of their ways."""

from __future__ import annotations

import pytest

from outrider.acceptance import Acceptance, Round, speculative_decoding_metrics
from outrider.bench.drafts import DraftCounts, from_exposition, from_response, total


def told(*steps: tuple[int, int], detailed: bool = False) -> object:
    acceptance = Acceptance(4, keep_steps=True)
    for drafted, accepted in steps:
        acceptance.add(Round(0, drafted, drafted, accepted, accepted + 1))
    return {
        "speculative_decoding": speculative_decoding_metrics(
            acceptance.to_proto(), detailed=detailed
        )
    }


def test_a_response_s_figures() -> None:
    counts = from_response(told((4, 2), (2, 2), (3, 0)))
    assert counts == DraftCounts(3, 9, 4, (2, 2, 0, 0))
    assert counts.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert counts.draft_acceptance_rate == pytest.approx(4 / 9)
    assert counts.rates_of_all_steps() == pytest.approx([2 / 3, 2 / 3, 0, 0])
    assert counts.rates_of_reached() is None


def test_single_steps_tell_what_was_proposed_where() -> None:
    counts = from_response(told((4, 2), (2, 2), (3, 0), detailed=True))
    assert counts is not None
    assert counts.proposed_per_position == (3, 3, 2, 1)
    assert counts.rates_of_reached() == pytest.approx([2 / 3, 2 / 3, 0, 0])


def test_a_response_without_steps_tells_zeros() -> None:
    counts = from_response(told())
    assert counts == DraftCounts(0, 0, 0, (0, 0, 0, 0))
    assert counts.mean_acceptance_length == 1.0


@pytest.mark.parametrize(
    "metrics",
    [None, {}, [], {"speculative_decoding": None}, {"speculative_decoding": {"num_spec_steps": 1}}],
)
def test_where_nothing_is_told_nothing_is_known(metrics: object) -> None:
    assert from_response(metrics) is None


def test_sums_of_different_lengths() -> None:
    one, other = DraftCounts(1, 2, 1, (1, 0)), DraftCounts(2, 6, 4, (2, 1, 1))
    assert total([one, other]) == DraftCounts(3, 8, 5, (3, 1, 1))
    assert total([]) == DraftCounts()


def test_what_one_part_does_not_know_the_sum_does_not_know() -> None:
    known = DraftCounts(1, 2, 1, (1, 0), (1, 1))
    assert total([known, known]).proposed_per_position == (2, 2)
    assert total([known, DraftCounts(1, 2, 1, (1, 0))]).proposed_per_position == ()
    # A request without a step says nothing of steps and takes nothing away.
    assert total([known, DraftCounts()]).proposed_per_position == (1, 1)


PAGE = """# HELP vllm:spec_decode_num_drafts_total x
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="other"} 90.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 1.0
"""


def test_counters_are_summed_over_engines_of_the_model() -> None:
    assert from_exposition(PAGE, "m") == DraftCounts(5, 12, 5, (4, 1))
    assert from_exposition(PAGE, "nobody") is None
    assert from_exposition("", "m") is None


def test_a_page_that_is_none_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        from_exposition("{{{", "m")


def test_what_counters_grew_by() -> None:
    before, after = DraftCounts(1, 4, 2, (1, 1)), DraftCounts(3, 12, 5, (3, 1, 1))
    assert after.since(before) == DraftCounts(2, 8, 3, (2, 0, 1))
