"""The converted folder says what transformers' own reading of the GGUF file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.gguf_conversion import convert_llama_gguf
from tests.outrider.tiny_gguf import CONTEXT, CONTROL, write_tiny_gguf


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    write_tiny_gguf(folder / "tiny.gguf", tied=request.param)
    convert_llama_gguf(folder / "tiny.gguf", folder / "model", lambda done, total: None)
    return folder


def test_weights_are_the_dequantised_ones_rounded_once(converted: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        converted, gguf_file="tiny.gguf", dtype=torch.float32
    ).state_dict()
    ours = load_file(converted / "model" / "model.safetensors")
    for name, values in ours.items():
        assert values.dtype == torch.bfloat16
        assert torch.equal(values, reference[name].to(torch.bfloat16)), name
    missing = set(reference) - set(ours)
    assert missing <= {"lm_head.weight"}


def test_model_loads_without_the_gguf(converted: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted / "model", dtype=torch.bfloat16)
    config = json.loads((converted / "model" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == CONTEXT
    assert model.generation_config.eos_token_id == 2
    assert model(torch.tensor([[1, 5, 9]])).logits.shape == (1, 3, config["vocab_size"])


def test_tokenizer_round_trips_and_knows_control_tokens(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted / "model")
    text = "hello  42\n\tworld é 你好 🦊"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(CONTROL[1])["input_ids"] == [1]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"


def test_digits_stand_alone(converted: Path) -> None:
    """Two spaces before a digit are one token: the split is before the digit, not the space."""
    tokenizer = AutoTokenizer.from_pretrained(converted / "model")
    assert tokenizer.tokenize("  4") == ["ĠĠ", "4"]


def test_merges_are_applied(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted / "model")
    assert tokenizer.tokenize("hello") == ["hell", "o"]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    seen: list[tuple[int, int]] = []
    convert_llama_gguf(
        tmp_path / "tiny.gguf", tmp_path / "model", lambda done, total: seen.append((done, total))
    )
    assert [done for done, _ in seen] == list(range(1, seen[0][1] + 1))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"architecture": "gemma"}, "general.architecture is 'gemma'; only 'llama'"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre is 'qwen2'; only 'smollm'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, wrong: dict[str, str], words: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        convert_llama_gguf(tmp_path / "tiny.gguf", tmp_path / "model", lambda done, total: None)
