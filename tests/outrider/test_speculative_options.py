"""Speculative configs as they are written: defaults, lists, shortcuts, the words of refusals.

Values of keys are test_speculative_table.py's.
"""

from __future__ import annotations

import json

import pytest

from outrider import speculative_names as names
from outrider.config import DEFAULT_SPECULATION, SpeculativeConfig
from outrider.errors import InputError
from outrider.speculative_options import (
    parse_speculative_config,
    parse_speculative_json,
    resolve_speculation,
)

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix"}


def one(**keys: object) -> SpeculativeConfig:
    (config,) = parse_speculative_config(keys)
    return config


def refusal(value: object) -> str:
    with pytest.raises(InputError) as caught:
        parse_speculative_config(value)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 3}, 3, 3),
        ({"prompt_lookup_min": 7}, 7, 7),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 5}, 2, 5),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 2}, 2, 2),
    ],
)
def test_lookup_window_defaults(given: dict[str, object], low: int, high: int) -> None:
    config = one(**NGRAM, **given)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (low, high)


def test_lookup_window_must_not_be_empty() -> None:
    text = refusal({**NGRAM, "prompt_lookup_min": 6, "prompt_lookup_max": 5})
    assert "prompt_lookup_min 6 is greater than prompt_lookup_max 5" in text


def test_suffix_defaults() -> None:
    config = one(**SUFFIX)
    assert config.num_speculative_tokens == 24
    assert config.suffix_decoding_max_tree_depth == 24
    assert config.suffix_decoding_max_cached_requests == 10_000
    assert config.suffix_decoding_max_spec_factor == 1.0
    assert config.suffix_decoding_min_token_prob == 0.1
    assert config.rejection_sample_method == "coupled"


def test_suffix_length_follows_the_tree_depth() -> None:
    assert one(**SUFFIX, suffix_decoding_max_tree_depth=12).num_speculative_tokens == 12
    assert one(**SUFFIX, suffix_decoding_max_tree_depth=500).num_speculative_tokens == 128


def test_ngram_needs_a_length() -> None:
    assert "requires num_speculative_tokens" in refusal({"method": "ngram"})


@pytest.mark.parametrize("key", sorted(names.INTERNAL_KEYS))
def test_internal_keys_are_refused_as_internal(key: str) -> None:
    assert f"{key} is internal" in refusal({**NGRAM, key: {}})


@pytest.mark.parametrize("key", sorted(names.SAMPLING_KEYS))
def test_sampling_parameters_belong_to_the_request(key: str) -> None:
    assert f"{key} is a sampling parameter: send it with the request" in refusal({**NGRAM, key: 0})


def test_removed_key_names_its_successor() -> None:
    text = refusal({**NGRAM, "disable_by_batch_size": 8})
    assert "num_speculative_tokens_per_batch_size" in text


def test_the_old_name_of_the_drafter_is_answered_with_the_new_one() -> None:
    assert "the key is called model" in refusal({**NGRAM, "speculative_model": "org/x"})


def test_tensor_parallel_size_names_the_drafter_key() -> None:
    assert "draft_tensor_parallel_size" in refusal({**NGRAM, "tensor_parallel_size": 1})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("num_speculative_token", "num_speculative_tokens"),
        ("promt_lookup_max", "prompt_lookup_max"),
        ("suffix_decoding_tree_depth", "suffix_decoding_max_tree_depth"),
        ("metod", "method"),
    ],
)
def test_unknown_key_names_the_nearest(key: str, meant: str) -> None:
    text = refusal({**NGRAM, key: 4})
    assert f"unknown key '{key}'; did you mean {meant}?" in text


def test_unknown_method_names_the_nearest() -> None:
    assert "did you mean suffix?" in refusal({"method": "sufix"})


def test_key_of_the_other_method_is_refused() -> None:
    assert "belongs to method 'suffix'" in refusal({**NGRAM, "suffix_decoding_max_tree_depth": 4})
    assert "belongs to method 'ngram'" in refusal({**SUFFIX, "prompt_lookup_max": 4})


@pytest.mark.parametrize("rule", ["synthetic", "fly"])
def test_lossy_rules_are_refused(rule: str) -> None:
    assert "changes what the model says" in refusal({**NGRAM, "rejection_sample_method": rule})


def test_dashes_are_underscores() -> None:
    assert one(**{"method": "ngram", "num-speculative-tokens": 6}).num_speculative_tokens == 6
    text = refusal({**NGRAM, "num-speculative-tokens": 6})
    assert "given twice" in text


@pytest.mark.parametrize("model", ["ngram", "[ngram]"])
def test_model_may_name_ngram(model: str) -> None:
    assert one(model=model, num_speculative_tokens=3).method == "ngram"
    assert one(method="ngram", model=model, num_speculative_tokens=3).method == "ngram"


def test_method_is_required() -> None:
    assert "method is required" in refusal({"num_speculative_tokens": 3})


@pytest.mark.parametrize("value", [1, 2.5, True, None, [None], [[]]])
def test_a_config_is_an_object(value: object) -> None:
    assert "is not an object" in refusal(value)


def test_escaped_json_is_answered_with_the_mapping() -> None:
    text = refusal('{"method": "ngram", "num_speculative_tokens": 4}')
    assert text.endswith('speculative-config:\n  method: "ngram"\n  num_speculative_tokens: 4')
    assert "is a string" in refusal("ngram")


@pytest.mark.parametrize("rule", ["coupled", "standard", "block"])
def test_drafts_may_be_drawn_under_every_rule(rule: str) -> None:
    entry = {"model": "org/x", "num_speculative_tokens": 3, "rejection_sample_method": rule}
    for method in ("greedy", "probabilistic"):
        assert one(**entry, draft_sample_method=method).draft_sample_method == method
    assert one(**entry).draft_sample_method is None


def test_a_draft_model_beside_others() -> None:
    entries = [NGRAM, {"model": "org/draft", "num_speculative_tokens": 3}]
    assert [c.method for c in parse_speculative_config(entries)] == ["ngram", "draft_model"]


def test_list_makes_several_proposers() -> None:
    configs = parse_speculative_config([NGRAM, SUFFIX])
    assert [config.method for config in configs] == ["ngram", "suffix"]
    assert "--speculative-config[1]: unknown key" in refusal([NGRAM, {**SUFFIX, "x": 1}])
    assert "the list is empty" in refusal([])


def test_proposers_share_the_rejection_rule() -> None:
    text = refusal([NGRAM, {**SUFFIX, "rejection_sample_method": "block"}])
    assert "rejection_sample_method must be the same" in text


def test_bad_json_says_where() -> None:
    with pytest.raises(InputError, match=r"not JSON .* at column 11"):
        parse_speculative_json('{"method":}')
    assert parse_speculative_json(json.dumps(NGRAM)) == NGRAM


def test_default_is_both_cheap_proposers() -> None:
    ngram, suffix = resolve_speculation(None)
    assert (ngram, suffix) == DEFAULT_SPECULATION
    assert (ngram.method, ngram.num_speculative_tokens) == ("ngram", 8)
    assert (ngram.prompt_lookup_min, ngram.prompt_lookup_max) == (2, 5)
    assert (suffix.method, suffix.num_speculative_tokens) == ("suffix", 8)


def test_shortcuts_make_a_config() -> None:
    (config,) = resolve_speculation(None, method="ngram", tokens=3)
    assert config == one(method="ngram", num_speculative_tokens=3)
    (config,) = resolve_speculation({"prompt_lookup_max": 3}, method="ngram", tokens=3)
    assert (config.prompt_lookup_max, config.num_speculative_tokens) == (3, 3)


def test_tokens_alone_change_the_default_length() -> None:
    configs = resolve_speculation(None, tokens=3)
    assert [(c.method, c.num_speculative_tokens) for c in configs] == [("ngram", 3), ("suffix", 3)]
    assert configs[0].prompt_lookup_min == 2
    with pytest.raises(InputError, match=r"^--spec-tokens: num_speculative_tokens: 129: "):
        resolve_speculation(None, tokens=129)


@pytest.mark.parametrize(
    ("shortcuts", "flag"),
    [
        ({"method": "ngram"}, "--spec-method"),
        ({"tokens": 5}, "--spec-tokens"),
    ],
)
def test_shortcut_conflicts_with_the_same_key(shortcuts: dict[str, object], flag: str) -> None:
    with pytest.raises(InputError, match=f"{flag}: --speculative-config sets"):
        resolve_speculation(NGRAM, **shortcuts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be combined"):
        resolve_speculation([NGRAM], **shortcuts)  # type: ignore[arg-type]


def test_the_model_shortcut_makes_a_draft_model() -> None:
    (config,) = resolve_speculation(None, model="org/draft", tokens=3)
    assert config == one(method="draft_model", model="org/draft", num_speculative_tokens=3)
    with pytest.raises(
        InputError, match=r"^--spec-model: method 'draft_model' requires num_speculative_tokens$"
    ):
        resolve_speculation(None, model="org/draft")
    with pytest.raises(
        InputError,
        match=r"--spec-model: method 'eagle', which is what model 'org/eagle-x' means, is not "
        "served yet",
    ):
        resolve_speculation(None, model="org/eagle-x")


def test_off_means_off() -> None:
    assert resolve_speculation(None, off=True) == ()
    with pytest.raises(InputError, match="--no-speculation: cannot be combined"):
        resolve_speculation(NGRAM, off=True)
    with pytest.raises(InputError, match="--no-speculation: cannot be combined with --spec-tokens"):
        resolve_speculation(None, tokens=3, off=True)


def test_startup_line_shows_what_was_chosen() -> None:
    assert str(one(**NGRAM, prompt_lookup_min=2, prompt_lookup_max=3)) == (
        "SpeculativeConfig(method='ngram', num_speculative_tokens=4, prompt_lookup_max=3, "
        "prompt_lookup_min=2, rejection_sample_method='coupled', "
        "enable_adaptive_verification=True)"
    )
    assert "suffix_decoding_max_cached_requests=10000" in str(one(**SUFFIX))
    assert "prompt_lookup" not in str(one(**SUFFIX))
    assert str(one(method="draft_model", model="org/draft", num_speculative_tokens=4)) == (
        "SpeculativeConfig(method='draft_model', model='org/draft', num_speculative_tokens=4, "
        "enforce_eager=False, rejection_sample_method='coupled', "
        "enable_adaptive_verification=True)"
    )


def test_configs_do_not_change() -> None:
    config = one(**NGRAM)
    with pytest.raises(ValueError, match="frozen"):
        config.method = "suffix"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"method": "pard"}, "method 'pard', that is 'draft_model' with parallel_drafting, is not"),
        ({"method": "mimo_mtp"}, "method 'mimo_mtp', an old name of 'mtp', is not served yet"),
        ({"method": "ngram_gpu"}, "'ngram' searches on the CPU"),
        ({"method": "custom_class"}, "outrider verifier --proposer ADDRESS"),
        (
            {"model": "my.Proposer"},
            "method 'custom_class', which is what model 'my.Proposer' means",
        ),
        ({"model": "suffix"}, "for method 'suffix' write it as method, not as model"),
        ({"model": 7}, "model: 7 is not a name"),
    ],
)
def test_unserved_methods_say_what_helps(entry: dict[str, object], words: str) -> None:
    assert words in refusal(entry)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("enforce_eager", True, "the target's is the option --enforce-eager"),
        ("quantization", "fp8", "the target's is the option --quantization"),
        ("max_model_len", 512, "the target's is the option --max-model-len"),
        ("model", "org/x", "the target is the MODEL argument"),
        ("synthetic_acceptance_length", 2.0, "refused: it accepts by coin flips"),
        ("fly_window_size", 2, "rejection_sample_method 'fly', which is refused"),
        ("use_heterogeneous_vocab", True, "belongs to method 'draft_model', not served yet"),
        ("disable_padded_drafter_batch", True, "methods 'eagle', 'eagle3', 'mtp', 'dflash' and"),
    ],
)
def test_keys_that_do_not_apply_say_where_they_belong(key: str, value: object, words: str) -> None:
    assert words in refusal({**NGRAM, key: value})


def test_a_schedule_is_kept_in_order_and_shown() -> None:
    config = one(**NGRAM, num_speculative_tokens_per_batch_size=[[5, 64, 1], [1, 4, 3]])
    assert config.num_speculative_tokens_per_batch_size == ((1, 4, 3), (5, 64, 1))
    assert "num_speculative_tokens_per_batch_size=((1, 4, 3), (5, 64, 1))" in str(config)
    assert config.schedule is not None
    assert (config.schedule.at(4), config.schedule.at(5), config.schedule.at(500)) == (3, 1, 1)
    assert one(**NGRAM).schedule is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_speculative_tokens_per_batch_size", [[1, 4, 2]]),
        ("enable_adaptive_verification", False),
    ],
)
def test_proposers_share_what_is_the_verifiers(key: str, value: object) -> None:
    assert f"{key} must be the same for all proposers" in refusal([NGRAM, {**SUFFIX, key: value}])
    configs = parse_speculative_config([{**NGRAM, key: value}, {**SUFFIX, key: value}])
    assert len(configs) == 2


def test_a_key_twice_in_json_is_refused() -> None:
    with pytest.raises(InputError, match="'method' is given twice"):
        parse_speculative_json('{"method": "ngram", "method": "suffix"}')


def test_a_config_survives_its_own_json() -> None:
    given = one(**NGRAM, num_speculative_tokens_per_batch_size=[[1, 4, 2]])
    (again,) = parse_speculative_config(
        json.loads(json.dumps(given.model_dump(exclude_unset=True)))
    )
    assert again == given


@pytest.mark.parametrize("text", ["[" * 100_000, '{"num_speculative_tokens": ' + "9" * 5000 + "}"])
def test_json_without_end_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        parse_speculative_json(text)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
