"""Names of speculative decoding in vLLM 0.29 to 0.33, and what Outrider answers to each.

Knows methods, rejection rules and keys that are no user's to set; the keys that are one's are in
speculative_keys.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METHODS = ("ngram", "suffix", "draft_model")
REJECTION_SAMPLE_METHODS = ("coupled", "standard", "block")

# Methods that are known and not served, each with what helps instead; empty where nothing does.
UNSERVED_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "eagle": "",
        "eagle3": "",
        "mtp": "",
        "medusa": "vLLM 0.33 removed it",
        "mlp_speculator": "it does not start in vLLM 0.29 either, and 0.33 removed it",
        "dflash": "",
        "dspark": "",
        "ngram_gpu": "'ngram' searches on the CPU, beside the target's device and not on it",
        "custom_class": "run a proposer of your own and attach it: "
        "outrider verifier --proposer ADDRESS",
        "extract_hidden_states": "it writes states to files and speculates nothing",
    }
)

# Names that people use for a method with one of its keys set.
NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "pard": "draft_model",
        "peagle": "eagle3",
        "p-eagle": "eagle3",
    }
)

# vLLM's deprecated names, one for each model family, all of which mean mtp.
MTP_ALIASES = frozenset(
    {
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

# Rules that are known and refused, with why.
REFUSED_REJECTION_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "synthetic": "it accepts by coin flips, for benchmarks only, and so changes what the "
        "model says",
        "fly": "it defers rejections on purpose, and so changes what the model says",
    }
)

# A model that names a method instead of a checkpoint.
MODEL_METHODS: Mapping[str, str] = MappingProxyType({"ngram": "ngram", "[ngram]": "ngram"})

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
        "logprobs",
        "stop_token_ids",
        "ignore_eos",
        "bad_words",
        "n",
    }
)

# Keys that were renamed or replaced, and what to write instead.
REPLACED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "disable_by_batch_size": "vLLM removed it; its successor is "
        "num_speculative_tokens_per_batch_size, for instance [[1, 32, 4], [33, 256, 0]]; without "
        "either, Outrider stops speculating by itself where it does not pay",
        "speculative_model": "vLLM's old option; the key is called model",
        "tensor_parallel_size": "a drafter's is called draft_tensor_parallel_size, and belongs to "
        "methods that load a draft model",
    }
)
