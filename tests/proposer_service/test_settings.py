"""Settings refuse what no proposer can do, by name."""

from __future__ import annotations

from typing import Any

import pytest

from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.server import make_proposer
from proposer_service.settings import ProposerSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "eagle"),
        ("max_draft_tokens", 0),
        ("prompt_lookup_min", 0),
        ("prompt_lookup_max", 4),
        ("max_sequences", 0),
        ("context_limit", -1),
        ("suffix_decoding_max_tree_depth", 0),
        ("suffix_decoding_max_cached_requests", -1),
        ("suffix_decoding_max_spec_factor", -0.1),
        ("suffix_decoding_min_token_prob", 1.1),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"listen": "unix:/x", "method": "ngram"} | {field: value}
    with pytest.raises(ValueError, match=f"{field}="):
        ProposerSettings(**fields)


def test_the_defaults_are_vllms() -> None:
    settings = ProposerSettings(listen="unix:/x", method="suffix")
    assert (settings.prompt_lookup_min, settings.prompt_lookup_max) == (5, 5)
    options = settings.suffix_options()
    assert options.max_tree_depth == 24
    assert options.max_cached_requests == 10_000
    assert options.max_spec_factor == 1.0
    assert options.min_token_prob == 0.1


def test_the_keys_reach_the_method() -> None:
    ngram = make_proposer(
        ProposerSettings(listen="unix:/x", method="ngram", prompt_lookup_min=2, prompt_lookup_max=2)
    )
    ngram.open(1, [1, 2, 3, 1, 2], 5, "")
    assert ngram.propose(1, 1).match_length == 2
    suffix = make_proposer(
        ProposerSettings(listen="unix:/x", method="suffix", suffix_decoding_max_spec_factor=2.0)
    )
    suffix.open(1, [1, 2, 3, 4, 1], 5, "")
    assert suffix.propose(1, 8).ids == (2, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("draft_sample_method", "sometimes"),
        ("max_model_len", 1),
        ("kv_cache_memory_bytes", 0),
    ],
)
def test_a_wrong_value_of_a_draft_model_is_refused_with_its_field(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"model": "m"} | {field: value}
    with pytest.raises(ValueError, match=f"{field}="):
        DraftModelSettings(**fields)


def test_a_draft_model_belongs_to_its_method_alone() -> None:
    model = DraftModelSettings("m")
    with pytest.raises(ValueError, match="not an option of method 'ngram'"):
        ProposerSettings(listen="unix:/x", method="ngram", draft_model=model)
    with pytest.raises(ValueError, match="required by method 'draft_model'"):
        ProposerSettings(listen="unix:/x", method="draft_model")


def test_a_verifier_may_compare_what_a_draft_model_runs_with() -> None:
    model = DraftModelSettings("m", max_model_len=99, draft_sample_method="greedy")
    settings = ProposerSettings(listen="unix:/x", method="draft_model", draft_model=model)
    assert settings.method_options() == {
        "max_model_len": 99,
        "quantization": "none",
        "enforce_eager": False,
        "draft_sample_method": "greedy",
    }
