"""A GGUF file of a very small Llama with random weights, for tests of the conversion."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, FEED, HEADS, KV_HEADS, HEAD_SIZE, CONTEXT = 2, 64, 96, 4, 2, 16, 128
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]


def write_tiny_gguf(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", tied: bool = True
) -> None:
    """Quantised as the real file is: Q4_1 products, Q8_0 embeddings, float32 norms."""
    alphabet = byte_alphabet()
    merges = ["Ġ Ġ", "h e", "l l", "he ll"]
    tokens = [*CONTROL, *alphabet, *("".join(merge.split(" ")) for merge in merges)]
    tokens += [f"<unused{index}>" for index in range(-len(tokens) % 32)]
    kinds = [3 if token in CONTROL else 1 for token in tokens]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        values = random.normal(size=(rows, columns)).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    add("token_embd.weight", len(tokens), HIDDEN, q8)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    if not tied:
        add("output.weight", len(tokens), HIDDEN, q8)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", random.normal(size=HIDDEN).astype(np.float32))
        writer.add_tensor(block + "ffn_norm.weight", random.normal(size=HIDDEN).astype(np.float32))
        add(block + "attn_q.weight", HEADS * HEAD_SIZE, HIDDEN, q4)
        add(block + "attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN, q4)
        add(block + "attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN, q4)
        add(block + "attn_output.weight", HIDDEN, HEADS * HEAD_SIZE, q4)
        add(block + "ffn_gate.weight", FEED, HIDDEN, q4)
        add(block + "ffn_up.weight", FEED, HIDDEN, q4)
        add(block + "ffn_down.weight", HIDDEN, FEED, q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
