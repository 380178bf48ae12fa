from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.engines.buckets import Bucket, Buckets, PromptBuckets


def test_sizes_are_powers_of_two_and_the_largest() -> None:
    buckets = Buckets(12, 5, 1024)
    assert {b.sequences for b in buckets} == {2, 4, 8, 12}
    assert {b.tokens // b.sequences for b in buckets} == {1, 2, 3, 5}
    assert len(buckets) == 16


def test_the_largest_comes_first() -> None:
    tokens = [b.tokens for b in Buckets(64, 9, 1024)]
    assert tokens == sorted(tokens, reverse=True)


def test_large_products_are_left_out_but_plain_decoding_never() -> None:
    buckets = Buckets(256, 9, 512)
    assert Bucket(256, 256, 1) in list(buckets)
    assert all(b.tokens <= 512 for b in buckets)
    assert buckets.find(256, 600) is None


def test_one_sequence_is_padded_to_two() -> None:
    buckets = Buckets(1, 5, 1024)
    assert buckets.find(1, 1) == Bucket(2, 2, 1)
    assert buckets.find(1, 5) == Bucket(2, 6, 5)


def test_without_drafts_every_sequence_has_one_token() -> None:
    buckets = Buckets(8, 5, 1024)
    assert buckets.find(3, 3) == Bucket(4, 4, 1)
    assert buckets.find(3, 4) == Bucket(4, 8, 5)


def test_too_many_sequences_find_none() -> None:
    assert Buckets(8, 5, 1024).find(9, 9) is None


@pytest.mark.parametrize(("sequences", "query"), [(0, 1), (1, 0)])
def test_nothing_to_hold_is_refused(sequences: int, query: int) -> None:
    with pytest.raises(ValueError, match="both must be 1 or more"):
        Buckets(sequences, query, 1024)


@pytest.mark.parametrize(("sequences", "tokens"), [(0, 0), (3, 2)])
def test_an_impossible_step_is_refused(sequences: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="a step of"):
        Buckets(8, 5, 1024).find(sequences, tokens)


@given(st.integers(1, 70), st.integers(1, 12), st.data())
def test_every_step_within_the_limits_fits_its_bucket(
    most: int, query: int, data: st.DataObject
) -> None:
    buckets = Buckets(most, query, 1 << 20)
    sequences = data.draw(st.integers(1, most))
    tokens = data.draw(st.integers(sequences, sequences * query))
    bucket = buckets.find(sequences, tokens)
    assert bucket is not None
    assert bucket in list(buckets)
    assert bucket.sequences >= sequences and bucket.tokens >= tokens
    assert (bucket.query == 1) == (tokens == sequences)


def test_prefill_has_a_bucket_for_every_number_of_tokens_up_to_the_largest() -> None:
    buckets = PromptBuckets(40, 4, 512)
    assert [b.tokens for b in buckets if b.sequences == 8] == [512, 384, 256, 192, 128, 64]
    assert len(buckets) == 18
    assert buckets.find(1, 2) == Bucket(8, 64, 64, 40, 4)
    assert buckets.find(8, 193) == Bucket(8, 256, 256, 40, 4)
    assert buckets.find(9, 193) == Bucket(32, 256, 256, 160, 4)
    assert buckets.find(33, 193) == Bucket(40, 256, 256, 200, 4)
    assert buckets.find(1, 512) == Bucket(8, 512, 512, 40, 4)
    assert buckets.find(1, 513) is None
    assert buckets.find(41, 100) is None


def test_a_step_of_prompts_has_room_for_the_rows_that_choose() -> None:
    buckets = PromptBuckets(128, 4, 512)
    assert buckets.find(8, 60, 41) == Bucket(32, 64, 64, 64, 4)
    assert buckets.find(32, 60, 65) == Bucket(32, 128, 128, 128, 4)
    assert buckets.find(60, 300, 256) == Bucket(128, 384, 384, 256, 4)
    assert buckets.find(60, 300, 257) is None
    assert all(b.sequences <= b.tokens and b.rows <= b.tokens for b in buckets)
    assert all(b.most_drafts == 4 for b in buckets)
    assert Bucket(4, 20, 5).most_drafts == 4


@pytest.mark.parametrize(
    ("most", "tokens"),
    [(0, []), (1, []), (40, [40]), (200, [200, 192, 128, 64]), (8192, [2048, 1792])],
)
def test_prefill_is_captured_up_to_what_is_asked_for(most: int, tokens: list[int]) -> None:
    assert [b.tokens for b in PromptBuckets(4, 2, most)][: len(tokens) or None] == tokens


def test_a_prompt_alone_may_fill_its_bucket_beside_a_sequence_of_padding() -> None:
    assert PromptBuckets(1, 0, 64).find(1, 64) == Bucket(2, 64, 64, 2)
    with pytest.raises(ValueError, match="a step of"):
        PromptBuckets(1, 0, 64).find(2, 1)
