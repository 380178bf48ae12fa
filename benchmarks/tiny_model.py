"""A random Llama of a few kilobytes with a real byte-level tokenizer and a chat template.

For runs that are about the server, not about what a model says: it starts in a second and answers
in a millisecond a token. Its tokenizer knows every byte, so that any grammar can be spelled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL = ("<|start|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|start|>tools\\n' ~ (tools | tojson) ~ '<|end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|start|>' ~ m.role ~ '\\n' ~ (m.content or '') ~ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)
_CORPUS = (
    "the ferry leaves at noon and the ferry returns at nine",
    "a crate of lemons and a crate of oranges and a crate of limes",
    '{"side": "left", "harbor": "kiel"}',
)
_MERGES = 64
_CONTEXT = 0.08
_SHARPNESS = 10.0


def make_tiny_model(folder: Path, *, max_model_len: int = 2048, seed: int = 1) -> Path:
    """Write config, weights and tokenizer to `folder`; the same files for the same seed."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    eos = tokenizer.convert_tokens_to_ids(SPECIAL[1])
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=max_model_len,
            bos_token_id=None,
            eos_token_id=eos,
            initializer_range=0.2,
        )
    )
    _make_predictable(model)
    model.generation_config = GenerationConfig(eos_token_id=eos)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _make_predictable(model: Any) -> None:
    """Let the next token depend on the last one most of all: texts repeat, drafts are accepted."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= _CONTEXT
        layer.mlp.down_proj.weight.data *= _CONTEXT
    model.lm_head.weight.data *= _SHARPNESS


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(SPECIAL) + _MERGES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    # Untyped in some releases of transformers, typed in others.
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, eos_token=SPECIAL[1], chat_template=CHAT_TEMPLATE)
