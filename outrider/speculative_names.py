"""Every name a speculative config may hold in vLLM 0.29 to 0.33, and what Outrider does with it.

Knows names only; the rules of their values are in config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METHODS = ("ngram", "suffix")
REJECTION_SAMPLE_METHODS = ("coupled", "standard", "block")

# Keys that work, and the methods they have a meaning for.
SUPPORTED_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "method": METHODS,
        "num_speculative_tokens": METHODS,
        "rejection_sample_method": METHODS,
        "prompt_lookup_max": ("ngram",),
        "prompt_lookup_min": ("ngram",),
        "suffix_decoding_max_tree_depth": ("suffix",),
        "suffix_decoding_max_cached_requests": ("suffix",),
        "suffix_decoding_max_spec_factor": ("suffix",),
        "suffix_decoding_min_token_prob": ("suffix",),
    }
)

UNSUPPORTED_KEYS = frozenset(
    {
        "model",
        "draft_tensor_parallel_size",
        "quantization",
        "moe_backend",
        "attention_backend",
        "kv_cache_dtype",
        "max_model_len",
        "revision",
        "code_revision",
        "index_share_for_mtp_iteration",
        "enforce_eager",
        "disable_padded_drafter_batch",
        "use_local_argmax_reduction",
        "use_heterogeneous_vocab",
        "parallel_drafting",
        "num_speculative_tokens_per_batch_size",
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
        "draft_sample_method",
        "enable_adaptive_verification",
        "dspark_draft_topk",
        "disable_eagle_block_drop",
        "disable_lookahead_block_hashes",
        "draft_lm_head_quantization",
        "xpress_topc",
        "fly_window_size",
        "fly_entropy_threshold",
        "fly_entropy_top_k",
    }
)

# Filled by the server itself in vLLM, never by a user.
INTERNAL_KEYS = frozenset(
    {
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
        "draft_load_config",
    }
)

# What a request says about sampling; drafts follow the request.
SAMPLING_KEYS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "min_tokens",
        "stop",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
    }
)

# Keys that were renamed or replaced, and what to write instead.
REPLACED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "disable_by_batch_size": "it was removed from vLLM; its successor is "
        "num_speculative_tokens_per_batch_size, not supported yet by Outrider 0.1, whose verifier "
        "chooses the number of drafts from the measured load by itself",
        "tensor_parallel_size": "a drafter's is called draft_tensor_parallel_size, not supported "
        "yet by Outrider 0.1",
    }
)

UNSUPPORTED_METHODS = frozenset(
    {
        "ngram_gpu",
        "draft_model",
        "eagle",
        "eagle3",
        "mtp",
        "medusa",
        "mlp_speculator",
        "dflash",
        "dspark",
        "extract_hidden_states",
        "custom_class",
        "deepseek_mtp",
        "dots3_note_mtp",
        "mimo_mtp",
        "mimo_v2_mtp",
        "glm4_moe_mtp",
        "glm4_moe_lite_mtp",
        "glm5_next_mtp",
        "glm_ocr_mtp",
        "ernie_mtp",
        "nemotron_h_mtp",
        "exaone_moe_mtp",
        "exaone4_5_mtp",
        "qwen3_next_mtp",
        "qwen4_exp_mtp",
        "qwen3_5_mtp",
        "longcat_flash_mtp",
        "bailing_hybrid_mtp",
        "bailing_hybrid_v3_mtp",
        "minimax_m3_mtp",
        "kimi_k3_mtp",
        "pangu_ultra_moe_mtp",
        "step3p5_mtp",
        "step5_mtp",
        "hy_v3_mtp",
        "hy_v4_mtp",
        "gemma4_mtp",
        "inkling_mtp",
    }
)

UNSUPPORTED_REJECTION_METHODS = frozenset({"synthetic", "fly"})

# A model that names a method instead of a checkpoint.
MODEL_METHODS: Mapping[str, str] = MappingProxyType({"ngram": "ngram", "[ngram]": "ngram"})
