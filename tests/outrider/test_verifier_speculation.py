"""What a verifier speculates with: numbers alone, a config, both, and how they contradict."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.draft_schedule import DraftSchedule
from outrider.errors import InputError
from outrider.verifier_speculation import SpeculationOptions, VerifierSpeculation

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix"}
ONE, TWO = ("unix:a",), ("unix:a", "unix:b")


def resolve(addresses: tuple[str, ...] = ONE, config: Any = None, **options: Any) -> Any:
    return SpeculationOptions(config, **options).resolve(addresses)


def refusal(addresses: tuple[str, ...] = ONE, config: Any = None, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        resolve(addresses, config, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given() -> None:
    assert resolve(()) == VerifierSpeculation(0)
    assert resolve(ONE) == VerifierSpeculation(8)
    assert resolve(TWO) == VerifierSpeculation(8)


def test_numbers_alone_take_any_proposer() -> None:
    schedule = DraftSchedule(((1, 4, 2),))
    assert resolve(
        ONE, tokens=3, rejection_sample_method="block", schedule=schedule, adaptive=False
    ) == VerifierSpeculation(3, "block", schedule, False)
    assert resolve((), tokens=0) == VerifierSpeculation(0)


def test_numbers_alone_are_checked() -> None:
    assert "no --proposer to make them" in refusal((), tokens=3)
    text = refusal(ONE, rejection_sample_method="blok")
    assert text.endswith("'blok' is not one of coupled, standard, block; did you mean block?")
    assert "'fly' is not supported: it defers" in refusal(ONE, rejection_sample_method="fly")
    for tokens in (-1, 129):
        assert f": {tokens}: must be from 0 to 128" in refusal(ONE, tokens=tokens)


def test_a_proposer_is_attached_once() -> None:
    for config in (None, [NGRAM, SUFFIX]):
        text = refusal(("unix:a", "unix:a"), config)
        assert text == "--proposer: 'unix:a' is given twice; give each once"


def test_a_config_gives_all() -> None:
    found = resolve(
        TWO,
        [
            {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 8, 2]]},
            {**SUFFIX, "num_speculative_tokens_per_batch_size": [[1, 8, 2]]},
        ],
    )
    assert found.num_speculative_tokens == 24
    assert found.schedule == DraftSchedule(((1, 8, 2),))
    assert found.adaptive
    assert [config.method for config in found.proposers] == ["ngram", "suffix"]
    found = resolve(
        ONE, {**NGRAM, "rejection_sample_method": "standard", "enable_adaptive_verification": False}
    )
    assert (found.rejection_sample_method, found.adaptive) == ("standard", False)


def test_shortcuts_are_a_config() -> None:
    found = resolve(ONE, method="ngram", tokens=3)
    assert (found.num_speculative_tokens, found.proposers[0].method) == (3, "ngram")
    assert (
        resolve(ONE, {"prompt_lookup_max": 3}, method="ngram", tokens=3).proposers[0]
        == (resolve(ONE, {"method": "ngram", "prompt_lookup_max": 3}, tokens=3).proposers[0])
    )
    assert "requires num_speculative_tokens" in refusal(ONE, method="ngram")
    assert "num_speculative_tokens: 0" in refusal(ONE, method="ngram", tokens=0)
    assert resolve(ONE, model="org/draft", tokens=3).proposers[0].method == "draft_model"
    assert "is not served yet by Outrider" in refusal(ONE, model="org/eagle-x", tokens=3)


def test_options_that_are_keys_fill_every_entry() -> None:
    schedule = DraftSchedule(((1, 4, 2),))
    found = resolve(
        TWO,
        [NGRAM, SUFFIX],
        rejection_sample_method="block",
        schedule=schedule,
        adaptive=False,
    )
    assert (found.rejection_sample_method, found.schedule, found.adaptive) == (
        "block",
        schedule,
        False,
    )
    assert {config.rejection_sample_method for config in found.proposers} == {"block"}


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("rejection_sample_method", "block", {"rejection_sample_method": "block"}),
        (
            "num_speculative_tokens_per_batch_size",
            [[1, 4, 2]],
            {"schedule": DraftSchedule(((1, 4, 2),))},
        ),
        ("enable_adaptive_verification", True, {"adaptive": True}),
    ],
)
def test_a_key_is_given_once(key: str, value: object, option: dict[str, object]) -> None:
    flag = f"--{key.replace('_', '-')}"
    expected = f"{flag}: --speculative-config sets {key} too; give it once"
    assert refusal(ONE, {**NGRAM, key: value}, **option) == expected
    dashed = key.replace("_", "-")
    assert refusal(TWO, [SUFFIX, {**NGRAM, dashed: value}], **option) == expected
    assert "--spec-tokens: --speculative-config sets" in refusal(ONE, NGRAM, tokens=4)


def test_each_entry_needs_an_address() -> None:
    assert refusal((), NGRAM).startswith("--speculative-config: no --proposer to make drafts")
    assert refusal((), method="suffix").startswith("--spec-method: no --proposer")
    assert "it describes 2 proposers and --proposer gives 1" in refusal(ONE, [NGRAM, SUFFIX])
    assert "it describes 1 proposers and --proposer gives 2" in refusal(TWO, NGRAM)
