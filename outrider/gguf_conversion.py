"""From a Llama GGUF file to a Hugging Face folder: bfloat16 safetensors, config and tokenizer.

Knows GGUF's names for a Llama's metadata and tensors; does not know where files come from or go.
The file is read once (transformers' own loader reads it three times and refuses to save what it
loaded), quantised tensors are dequantised to float32 and rounded once to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Progress: what is done, and of how much.
Report = Callable[[int, int], None]

_CONTROL_TOKEN = 3

_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_llama_gguf(source: Path, target: Path, report: Report) -> None:
    """Write the model in GGUF file `source` to the new folder `target`.

    `report` is called after each tensor. Raises ValueError where the file holds another
    architecture, tokenizer or set of tensors than a Llama's with a byte-level BPE.
    """
    import gguf
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(source)
    metadata = _Metadata(reader)
    config = _config(metadata, tied=all(t.name != "output.weight" for t in reader.tensors))
    weights: dict[str, torch.Tensor] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        if tensor.name.endswith("attn_q.weight"):
            values = _from_interleaved_rotary(values, config.num_attention_heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = _from_interleaved_rotary(values, config.num_key_value_heads)
        weights[_parameter_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
        report(done, len(reader.tensors))
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    _require_shapes(shapes, {key: value.shape for key, value in weights.items()})
    target.mkdir()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(target)
    generation_config: Any = GenerationConfig
    generation_config(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(target)
    _tokenizer(metadata).save_pretrained(target)


class _Metadata:
    """The key-value pairs of a GGUF file."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def get(self, key: str) -> Any:
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ValueError(f"the GGUF file has no {key}")
        return value

    def expect(self, key: str, value: str) -> None:
        found = self.require(key)
        if found != value:
            raise ValueError(f"the GGUF file's {key} is {found!r}; only {value!r} can be converted")


def _config(metadata: _Metadata, *, tied: bool) -> Any:
    from transformers import LlamaConfig

    metadata.expect("general.architecture", "llama")
    heads = metadata.require("llama.attention.head_count")
    hidden = metadata.require("llama.embedding_length")
    return LlamaConfig(
        vocab_size=len(metadata.require("tokenizer.ggml.tokens")),
        hidden_size=hidden,
        intermediate_size=metadata.require("llama.feed_forward_length"),
        num_hidden_layers=metadata.require("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv") or heads,
        head_dim=metadata.get("llama.rope.dimension_count") or hidden // heads,
        max_position_embeddings=metadata.require("llama.context_length"),
        rms_norm_eps=metadata.require("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(metadata.get("llama.rope.freq_base") or 10_000.0),
        },
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=tied,
    )


def _parameter_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or not layer.isdigit() or part not in _BLOCK_TENSORS:
        raise ValueError(f"the GGUF file holds tensor {name!r}, which a Llama does not have")
    return f"model.layers.{layer}.{_BLOCK_TENSORS[part]}"


def _from_interleaved_rotary(weight: Any, heads: int) -> Any:
    """Rows [heads * head_size, in] from GGUF's rotary order (pairs) to halves, head by head."""
    rows, columns = weight.shape
    paired = weight.reshape(heads, rows // heads // 2, 2, columns)
    return paired.transpose(1, 2).reshape(rows, columns)


def _require_shapes(wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    wrong = sorted(
        key for key in {*wanted, *found} if wanted.get(key) is None or wanted[key] != found.get(key)
    )
    if wrong:
        raise ValueError(
            "the GGUF file's tensors do not fit its metadata: "
            + ", ".join(f"{key} {found.get(key)} instead of {wanted.get(key)}" for key in wrong[:3])
        )


def _tokenizer(metadata: _Metadata) -> Any:
    """The byte-level BPE of the file, with its control tokens and chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    metadata.expect("tokenizer.ggml.model", "gpt2")
    metadata.expect("tokenizer.ggml.pre", "smollm")
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    kinds: list[int] = metadata.require("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    # What "smollm" means in GGUF: digits stand alone, the rest splits as GPT-2's does.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    special = {
        role: tokens[index]
        for role, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
        if (index := metadata.get(f"tokenizer.ggml.{key}")) is not None
    }
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=metadata.require("llama.context_length"),
        **special,
    )
