from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InputError
from verifier_service.target_facts import TargetFacts, read_target_facts

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "eos_token_id": 2,
}


def facts(
    folder: Path,
    *,
    max_model_len: int | None = None,
    generation: Any = None,
    **changes: Any,
) -> TargetFacts:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    if generation is not None:
        raw = generation if isinstance(generation, str) else json.dumps(generation)
        (folder / "generation_config.json").write_text(raw)
    return read_target_facts(folder, max_model_len)


def test_sizes_and_end_ids_come_from_the_config(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found.vocab_size, found.max_model_len, found.eos_token_ids) == (64, 128, (2,))
    assert (found.defaults.temperature, found.defaults.top_p, found.defaults.top_k) == (1, 1, 0)
    assert found.defaults.max_tokens is None


def test_the_generation_config_goes_first(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        generation={
            "eos_token_id": [2, 7],
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "max_new_tokens": 30,
            "repetition_penalty": 1.05,
            "min_p": 0.125,
        },
    )
    assert found.eos_token_ids == (2, 7)
    assert (found.defaults.top_k, found.defaults.max_tokens) == (20, 30)
    assert found.defaults.min_p == 0.125
    assert found.defaults.repetition_penalty == pytest.approx(1.05)


def test_a_default_is_the_same_number_as_the_same_value_sent(tmp_path: Path) -> None:
    from speculation.v1 import verifier_pb2

    sent = verifier_pb2.SamplingParams(temperature=0.6, top_p=0.9)
    found = facts(tmp_path, generation={"temperature": 0.6, "top_p": 0.9}).defaults
    assert (found.temperature, found.top_p) == (sent.temperature, sent.top_p)


def test_the_context_can_be_shortened_not_stretched(tmp_path: Path) -> None:
    assert facts(tmp_path, max_model_len=100).max_model_len == 100
    with pytest.raises(InputError, match=r"--max-model-len: 129 .* 2 to 128"):
        facts(tmp_path, max_model_len=129)


@pytest.mark.parametrize(
    ("generation", "says"),
    [
        ("{", "generation_config.json cannot be read"),
        ("[]", "is not a JSON object"),
        ({"temperature": 3}, "temperature 3; it must be from 0.0 to 2.0"),
        ({"top_p": "x"}, "top_p 'x'"),
        ({"top_k": True}, "top_k True"),
        ({"min_p": 2}, "min_p 2; it must be from 0.0 to 1.0"),
        ({"repetition_penalty": 0}, "repetition_penalty 0"),
    ],
)
def test_a_broken_generation_config_is_named(tmp_path: Path, generation: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        facts(tmp_path, generation=generation)
    assert says in str(caught.value)


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing is not a folder"):
        read_target_facts(tmp_path / "missing", None)
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_target_facts(tmp_path, None)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json cannot be used"):
        read_target_facts(tmp_path, None)


def test_an_unknown_architecture_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used") as caught:
        facts(tmp_path, model_type="no_such_model")
    assert "\n" not in str(caught.value)
