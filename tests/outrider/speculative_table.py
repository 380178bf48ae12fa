"""Every key of vLLM 0.29's speculative config: its default there, good, edge and bad values.

The figures are the reference's (vLLM 0.29.0's own checks), not read from the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NAN, INF = float("nan"), float("inf")
HUGE = 10**30
NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
SUFFIX: dict[str, Any] = {"method": "suffix"}
DRAFT: dict[str, Any] = {
    "method": "draft_model",
    "model": "org/draft",
    "num_speculative_tokens": 4,
}
# What `Row.ours` holds where the default is vLLM's.
SAME = object()
NOT_BOOLEAN: tuple[Any, ...] = (1, 0, "true", "yes", [True], {})
NOT_NAMES: tuple[Any, ...] = ("", 3, True, ["x"], {"x": 1})
NOT_COUNTS: tuple[Any, ...] = (0, -1, "4", 4.0, 2.5, True, [4], NAN)


@dataclass(frozen=True)
class Row:
    """`vllm` is the default there; `ours` is set where Outrider's differs. `base` is what a value
    needs beside it."""

    key: str
    vllm: Any
    good: tuple[Any, ...]
    edge: tuple[Any, ...]
    bad: tuple[Any, ...]
    base: dict[str, Any] = field(default_factory=lambda: NGRAM)
    ours: Any = SAME


# Keys that work, under a method for which they mean something.
WORKS = (
    Row("method", None, ("ngram",), (), ("Ngram", "n-gram", "", 3, ["ngram"], True)),
    Row("method", None, ("suffix",), (), ("SUFFIX", {"x": 1}), SUFFIX),
    Row("method", None, ("draft_model",), (), ("draft-model", "Draft_Model"), DRAFT),
    Row("model", None, ("org/draft", "./draft"), ("x", "eagle-x"), NOT_NAMES, DRAFT),
    Row("num_speculative_tokens", None, (4, 8), (1, 128), (*NOT_COUNTS, 129, 130, HUGE)),
    Row("num_speculative_tokens", None, (4, 8), (1, 128), (*NOT_COUNTS, 129, 130, HUGE), DRAFT),
    Row("num_speculative_tokens", 24, (8, 32), (1, 128), (*NOT_COUNTS, 129), SUFFIX),
    Row("prompt_lookup_max", 5, (5, 10), (1, 10_000, HUGE), NOT_COUNTS),
    Row("prompt_lookup_min", 5, (2, 5), (1, 10_000, HUGE), NOT_COUNTS),
    Row(
        "suffix_decoding_max_tree_depth",
        24,
        (24, 64),
        (1, 1024),
        # vLLM has no upper limit; here the work of a token grows with it.
        (*NOT_COUNTS, 1025, HUGE),
        SUFFIX,
    ),
    Row(
        "suffix_decoding_max_cached_requests",
        10_000,
        (100, 10_000),
        (0, 1, HUGE),
        (-1, "0", 0.5, 1.0, False, NAN),
        SUFFIX,
    ),
    Row(
        "suffix_decoding_max_spec_factor",
        1.0,
        (1.0, 2, 2.5),
        (0, 0.0, 1e308),
        (-0.1, -1, "1", NAN, INF, True, [1.0]),
        SUFFIX,
    ),
    Row(
        "suffix_decoding_min_token_prob",
        0.1,
        (0.1, 0.5),
        (0, 0.0, 1, 1.0),
        (-0.01, 1.01, 2, "0.1", NAN, True),
        SUFFIX,
    ),
    Row(
        "rejection_sample_method",
        "standard",
        ("standard", "block", "coupled"),
        (),
        ("greedy", "Standard", "", 1, ["coupled"], "typical"),
        ours="coupled",
    ),
    Row(
        "num_speculative_tokens_per_batch_size",
        None,
        ([[1, 4, 5], [5, 64, 2], [65, 256, 0]], [[1, 16, 3]]),
        (
            *([[1, 1, 0]], [[1, 4, 100]], [[1, HUGE, HUGE]]),
            *([[5, 9, 1], [1, 4, 2]], [[1, 4, 2], [9, 9, 1]]),
        ),
        (
            *([], {}, "x", 4, True, [1, 4, 2], [[1, 4]], [[1, 4, 2, 1]], [[0, 4, 2]], [[2, 4, 2]]),
            *([[4, 1, 2]], [[1, 4, -1]], [[1, 4, 2], [4, 8, 1]], [[1, 4, 2.0]], [["1", 4, 2]]),
            *([[1, 4, True]], [[1, 4, None]], ["142"], [None]),
        ),
    ),
    Row("enable_adaptive_verification", False, (True, False), (), NOT_BOOLEAN, ours=True),
    Row("enable_adaptive_verification", False, (True, False), (), NOT_BOOLEAN, SUFFIX, ours=True),
    Row("enable_adaptive_verification", False, (True, False), (), NOT_BOOLEAN, DRAFT, ours=True),
    # Sizes of several devices are vLLM's; the target has one here.
    Row("draft_tensor_parallel_size", None, (1,), (1,), (*NOT_COUNTS, 2, 8, HUGE), DRAFT),
    # vLLM has more schemes, which a checkpoint brings along.
    Row("quantization", None, ("none", "int8", "fp8"), (), (*NOT_NAMES, "awq", "FP8"), DRAFT),
    Row("max_model_len", None, (2048,), (2, HUGE), (*NOT_COUNTS, 1), DRAFT),
    Row("revision", None, ("main", "refs/pr/1"), ("x",), NOT_NAMES, DRAFT),
    Row("enforce_eager", None, (True, False), (), NOT_BOOLEAN, DRAFT, ours=False),
    Row(
        "draft_sample_method",
        "greedy",
        ("greedy", "probabilistic"),
        (),
        ("Greedy", "sampled", "", 1, True),
        DRAFT,
        ours=None,
    ),
)

# Keys that are refused: of methods that are not served, or of rules that are not exact.
REFUSED = (
    Row("moe_backend", None, ("triton",), ("auto",), NOT_NAMES),
    Row("attention_backend", None, ("FLASH_ATTN", "flash_attn"), ("auto",), NOT_NAMES),
    Row("kv_cache_dtype", None, ("fp8",), ("auto",), NOT_NAMES),
    Row("code_revision", None, ("main",), ("x",), NOT_NAMES),
    Row("index_share_for_mtp_iteration", None, (True, False), (), NOT_BOOLEAN),
    Row("disable_padded_drafter_batch", False, (True, False), (), NOT_BOOLEAN),
    Row("use_local_argmax_reduction", False, (True, False), (), NOT_BOOLEAN),
    Row("use_heterogeneous_vocab", False, (True, False), (), NOT_BOOLEAN),
    Row("parallel_drafting", False, (True, False), (), NOT_BOOLEAN),
    Row(
        "synthetic_acceptance_rates",
        None,
        ([0.9, 0.5, 0.3, 0.1],),
        ([1, 1.0, 0, 0.0], [0.5] * 4),
        (
            *([], [0.5], [0.5] * 5, [0.5, 0.6, 0.1, 0.1], [1.1, 1, 1, 1], [1, 1, 1, -0.1]),
            *(0.5, "0.5", [NAN] * 4, ["0.5"] * 4, [True] * 4),
        ),
    ),
    Row(
        "synthetic_acceptance_length",
        None,
        (2.5, 3),
        (1, 1.0, 5, 5.0),
        (0.99, 0, -1, 5.01, 6, "2", NAN, INF, True, [2.0]),
    ),
    Row("dspark_draft_topk", None, (64,), (1,), NOT_COUNTS),
    # vLLM 0.33 knows these as well.
    Row("disable_eagle_block_drop", False, (True, False), (), NOT_BOOLEAN),
    Row("disable_lookahead_block_hashes", False, (True, False), (), NOT_BOOLEAN),
    Row("draft_lm_head_quantization", None, ("fp8", "nvfp4"), (), ("int8", "", 8, True)),
    Row("xpress_topc", None, (8,), (1,), NOT_COUNTS),
    Row("fly_window_size", None, (4,), (1,), NOT_COUNTS),
    Row("fly_entropy_threshold", 0.3, (0.3, 1), (0,), (-0.1, "0.3", NAN, INF, True)),
    Row("fly_entropy_top_k", 3, (3,), (1,), NOT_COUNTS),
)

# Section 1.2 of the reference, as it lists them.
_KEYS_OF_0_29 = """
    method model num_speculative_tokens draft_tensor_parallel_size quantization moe_backend
    attention_backend kv_cache_dtype max_model_len revision code_revision
    index_share_for_mtp_iteration enforce_eager disable_padded_drafter_batch
    use_local_argmax_reduction use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min
    parallel_drafting num_speculative_tokens_per_batch_size suffix_decoding_max_tree_depth
    suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
    suffix_decoding_min_token_prob rejection_sample_method synthetic_acceptance_rates
    synthetic_acceptance_length draft_sample_method enable_adaptive_verification dspark_draft_topk
"""
_KEYS_OF_0_33 = """
    disable_eagle_block_drop disable_lookahead_block_hashes draft_lm_head_quantization xpress_topc
    fly_window_size fly_entropy_threshold fly_entropy_top_k
"""
_INTERNAL = """
    target_model_config target_parallel_config draft_model_config draft_parallel_config
    draft_load_config
"""

# Section 1.4, without those that Outrider serves.
_METHODS_OF_0_29 = """
    ngram_gpu eagle eagle3 mtp medusa mlp_speculator dflash dspark
    extract_hidden_states custom_class deepseek_mtp dots3_note_mtp mimo_mtp mimo_v2_mtp
    glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp nemotron_h_mtp exaone_moe_mtp
    exaone4_5_mtp qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp bailing_hybrid_mtp
    bailing_hybrid_v3_mtp minimax_m3_mtp kimi_k3_mtp pangu_ultra_moe_mtp step3p5_mtp hy_v3_mtp
    hy_v4_mtp gemma4_mtp inkling_mtp step5_mtp glm5_next_mtp
"""

KEYS_OF_0_29 = _KEYS_OF_0_29.split()
KEYS_OF_0_33 = _KEYS_OF_0_33.split()
INTERNAL = _INTERNAL.split()
METHODS_OF_0_29 = _METHODS_OF_0_29.split()
