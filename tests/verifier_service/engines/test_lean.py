"""Which models the lean decoder takes."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from verifier_service.engines.lean import supports

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        (LlamaForCausalLM(LlamaConfig(**SIZES)), ""),
        (LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")), "activation gelu"),
        (MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)), ""),
        (
            MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4096)),
            "sliding-window attention",
        ),
        (Qwen2ForCausalLM(Qwen2Config(**SIZES)), ""),
        (Qwen2ForCausalLM(Qwen2Config(**SIZES, **WINDOWED)), "sliding-window attention"),
    ],
    ids=["llama", "llama-gelu", "mistral", "mistral-window", "qwen2", "qwen2-window"],
)
def test_a_window_longer_than_any_sample_is_seen_in_the_config(model: Any, refusal: str) -> None:
    """Comparing logits of a few tokens cannot show a window of thousands."""
    assert supports(model, model.config) == refusal
