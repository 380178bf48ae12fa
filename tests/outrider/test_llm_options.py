"""The keywords of `LLM`: checked before a model is loaded, and what becomes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from outrider.draft_models import Placement
from outrider.errors import InputError
from outrider.llm_options import (
    check_options,
    check_speculation,
    draft_placement,
    verifier_settings,
)
from outrider.model_folders import Model
from verifier_service.messages import RejectionRule
from verifier_service.settings import VerifierSettings

MODEL = Model(Path("/models/mine"), "mine")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def settings(speculative_config: object = None, **options: Any) -> VerifierSettings:
    checked = check_options(options)
    return verifier_settings(MODEL, checked, check_speculation(speculative_config, checked))


def test_the_defaults_are_a_plain_verifier_of_the_same_defaults() -> None:
    assert settings() == VerifierSettings(
        model="/models/mine",
        listen="",
        served_model_name="mine",
        num_prediction_tokens=0,
        trust_request_chat_template=True,
    )


# Option, value, the field of the settings that it becomes, the field's value.
OPTIONS: list[tuple[str, Any, str, Any]] = [
    ("dtype", "float32", "dtype", "float32"),
    ("device", "cpu", "device", "cpu"),
    ("quantization", "int8", "quantization", "int8"),
    ("batch_invariant", True, "batch_invariant", True),
    ("max_model_len", 99, "max_model_len", 99),
    ("max_num_seqs", 3, "max_num_seqs", 3),
    ("max_num_batched_tokens", 77, "max_num_batched_tokens", 77),
    ("max_logprobs", -1, "max_logprobs", -1),
    ("enable_prefix_caching", False, "enable_prefix_caching", False),
    ("enforce_eager", True, "enforce_eager", True),
    ("enforce_eager", True, "compile", False),
    ("kv_cache_memory_bytes", 10**6, "kv_cache_bytes", 10**6),
    ("threads", 2, "threads", 2),
    ("prefill_stall_ms", 5, "prefill_stall_ms", 5.0),
    ("plain_share", 0.25, "plain_share", 0.25),
    ("served_model_name", "x", "served_model_name", "x"),
    ("draft_deadline_ms", 2.5, "draft_deadline_ms", 2.5),
]
# Fields that mean nothing here, or are set by the model and by speculation.
NO_OPTIONS = {
    *("model", "listen", "engine", "log_level", "drain_seconds", "log_stats_interval_s"),
    *("record_rounds", "trace", "credentials", "engine_process"),
    "max_captured_prefill_tokens",
    *("max_waiting_requests", "num_prediction_tokens", "trust_request_chat_template"),
    *("proposers", "expected_proposers", "num_speculative_tokens", "rejection_rule", "adaptive"),
    "num_speculative_tokens_per_batch_size",
}


def test_every_setting_can_be_set_or_has_a_reason_why_not() -> None:
    fields = {field.name for field in dataclasses.fields(VerifierSettings)}
    assert {field for _, _, field, _ in OPTIONS} | NO_OPTIONS == fields


@pytest.mark.parametrize(("option", "value", "field", "expected"), OPTIONS)
def test_an_option_reaches_the_settings(
    option: str, value: object, field: str, expected: object
) -> None:
    assert getattr(settings(**{option: value}), field) == expected
    assert getattr(settings(), field) != expected


def test_a_draft_model_runs_where_and_as_the_target_does() -> None:
    drafting = {"model": "org/x", "num_speculative_tokens": 3}
    options = check_options({"device": "cuda", "dtype": "float32"})
    assert draft_placement(options) == Placement("cuda", "float32", 2 << 30)
    given = {"draft_device": "cuda:1", "draft_kv_cache_memory_bytes": 10**6}
    options = check_options({"device": "cuda", **given})
    assert draft_placement(options) == Placement("cuda:1", "auto", 10**6)
    assert check_speculation(drafting, options).configs
    for config in (None, {"method": "suffix"}):
        with pytest.raises(InputError, match=r"^draft_device: 'cuda:1': nothing drafts with a mod"):
            check_speculation(config, options)


def test_a_speculative_config_sets_ceiling_rule_and_schedule() -> None:
    shared = {
        "rejection_sample_method": "standard",
        "enable_adaptive_verification": False,
        "num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 9, 0]],
    }
    got = settings([NGRAM | shared, {"method": "suffix", "num_speculative_tokens": 6} | shared])
    assert got.num_speculative_tokens == 6
    assert got.rejection_rule is RejectionRule.STANDARD
    assert got.adaptive is False
    schedule = got.num_speculative_tokens_per_batch_size
    assert schedule is not None and schedule.ranges == ((1, 2, 4), (3, 9, 0))
    assert settings(NGRAM).rejection_rule is RejectionRule.COUPLED and settings(NGRAM).adaptive


def test_running_proposers_are_attached_with_options_of_their_own() -> None:
    addresses = ["unix:/tmp/p.sock", "127.0.0.1:50052"]
    got = settings(proposers=addresses)
    assert got.proposers == tuple(addresses)
    assert (got.num_speculative_tokens, got.adaptive) == (8, True)
    got = settings(
        proposers=addresses,
        num_speculative_tokens=3,
        rejection_sample_method="block",
        enable_adaptive_verification=False,
    )
    assert got.rejection_rule is RejectionRule.BLOCK
    assert (got.num_speculative_tokens, got.adaptive) == (3, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "awq"}, "quantization: 'awq'"),
        ({"dtype": "int4"}, "dtype: 'int4': input should be 'auto'"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0: input should be greater than or equal to 1"),
        ({"max_num_seqs": 600}, r"max_num_batched_tokens: 512 is less than max_num_seqs \(600\)"),
        ({"max_model_len": "99"}, "max_model_len: '99': input should be a valid integer"),
        ({"seed": 1.5}, r"seed: 1\.5"),
        ({"proposers": ["nowhere"]}, "proposers: 'nowhere'"),
        ({"proposers": ["unix:/p", "unix:/p"]}, "proposers: 'unix:/p' is given twice"),
        ({"proposers": "unix:/tmp/p.sock"}, "proposers: "),
        (
            {"max_num_seq": 3},
            "max_num_seq: outrider.LLM has no such option; did you mean max_num_s",
        ),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: 2 is not supported; leave it out"),
        ({"trust_remote_code": True}, "trust_remote_code: True is not supported"),
        ({"gpu_memory_utilization": 0.9}, "use kv_cache_memory_bytes"),
        ({"per_request_spec_decode_metrics": "all"}, "per_request_spec_decode_metrics: 'all'"),
        ({"num_speculative_tokens": 4}, "num_speculative_tokens: belongs into speculative_config"),
        ({"enable_adaptive_verification": False}, "enable_adaptive_verification: belongs into"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(**options)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "ngram"}, "speculative_config: .*num_speculative_tokens"),
        ({"method": "ngarm", "num_speculative_tokens": 1}, "did you mean ngram"),
        (NGRAM | {"top_p": 0.5}, "top_p is a sampling parameter"),
        ([NGRAM, NGRAM | {"rejection_sample_method": "block"}], "must be the same"),
        ('{"method": "ngram"}', "speculative_config: "),
        ([], "speculative_config: is empty; leave it out"),
        ({}, "speculative_config: is empty; leave it out"),
    ],
)
def test_a_bad_speculative_config_is_refused(config: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(config)


def test_a_config_and_running_proposers_exclude_each_other() -> None:
    with pytest.raises(InputError, match="proposers: cannot be combined"):
        settings(NGRAM, proposers=["unix:/tmp/p.sock"])
    with pytest.raises(InputError, match="num_speculative_tokens: belongs into"):
        settings(NGRAM, num_speculative_tokens=3)


def test_vllms_arguments_may_ask_for_what_is_so_anyway() -> None:
    same = settings(tensor_parallel_size=1, trust_remote_code=False, quantization=None)
    assert same == settings()
