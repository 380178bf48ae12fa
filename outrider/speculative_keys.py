"""The keys of a speculative config that a user may set: what each means, and for which methods.

Knows one row about each key; its values are checked by config.SpeculativeConfig where the key
works and by speculative_unserved.UnservedKeys where it is refused. The docs' page is made of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from outrider.speculative_names import METHODS, REFUSED_REJECTION_METHODS

_EAGLE = ("eagle", "eagle3", "mtp", "dflash", "dspark")
_DRAFTERS = ("draft_model", *_EAGLE, "medusa", "mlp_speculator")
_SYNTHETIC, _FLY = (
    f"it belongs to rejection_sample_method {rule!r}, which is refused: {why}"
    for rule, why in REFUSED_REJECTION_METHODS.items()
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `methods` are those it has a meaning for, served here or not.

    `default` is told where the checking model's own default does not tell it; `refused` is why the
    key is refused though its methods are served; `instead` is what may have been meant.
    """

    name: str
    type: str
    rule: str
    methods: tuple[str, ...]
    default: str = ""
    refused: str = ""
    instead: str = ""


_ROWS = (
    Key(
        "method",
        "name",
        "how drafts are made",
        METHODS,
        default="what `model` means, else required",
    ),
    Key(
        "num_speculative_tokens",
        "integer",
        "1 to 128: the most drafts in one round; fewer are verified where more would not pay",
        METHODS,
        default="required; suffix: `suffix_decoding_max_tree_depth`, at most 128",
    ),
    Key(
        "prompt_lookup_max",
        "integer",
        "at least 1: longest run of last tokens that is looked up",
        ("ngram", "ngram_gpu"),
        default="`prompt_lookup_min`, or 5",
    ),
    Key(
        "prompt_lookup_min",
        "integer",
        "at least 1 and at most `prompt_lookup_max`: shortest such run",
        ("ngram", "ngram_gpu"),
        default="`prompt_lookup_max`, or 5",
    ),
    Key(
        "suffix_decoding_max_tree_depth",
        "integer",
        "1 to 1024: longest match and its draft, together; vLLM has no upper limit",
        ("suffix",),
    ),
    Key(
        "suffix_decoding_max_cached_requests",
        "integer",
        "at least 0: earlier answers that are searched, the oldest left out first; 0: none",
        ("suffix",),
    ),
    Key(
        "suffix_decoding_max_spec_factor",
        "number",
        "at least 0: drafts for each token of the match",
        ("suffix",),
    ),
    Key(
        "suffix_decoding_min_token_prob",
        "number",
        "0 to 1: a draft ends where its estimated probability falls below",
        ("suffix",),
    ),
    Key(
        "rejection_sample_method",
        "name",
        "`coupled`, `standard` or `block`; all are exact, `coupled` also gives a seed's answer "
        "whatever is drafted. One for all proposers. vLLM has no `coupled` and takes `standard`; "
        "its `synthetic` and `fly` are refused: they change what the model says",
        METHODS,
    ),
    Key(
        "num_speculative_tokens_per_batch_size",
        "list of [first, last, K]",
        "the most drafts by how many sequences run: whole numbers, 1 <= first <= last, K >= 0, no "
        "overlap, one range starts at 1; gaps and the tail take the K before. Never above "
        "`num_speculative_tokens`. One for all proposers",
        METHODS,
    ),
    Key(
        "enable_adaptive_verification",
        "boolean",
        "verify only drafts that pay, by measured step times; false: every draft up to the limits. "
        "One for all proposers. vLLM's default is false, and there it works for `dspark` alone",
        METHODS,
    ),
    Key(
        "model",
        "string",
        "draft model or head: a folder or hub id. `ngram` and `[ngram]` mean method `ngram`",
        (*_DRAFTERS, "custom_class"),
        instead="the target is the MODEL argument",
    ),
    Key(
        "draft_tensor_parallel_size",
        "integer",
        "at least 1: 1 or the target's",
        _DRAFTERS,
        default="the target's",
    ),
    Key(
        "quantization",
        "string",
        "of the draft model's weights",
        _DRAFTERS,
        instead="the target's is the option --quantization",
    ),
    Key("moe_backend", "name", "the draft model's kernel for experts", _DRAFTERS),
    Key("attention_backend", "name", "the draft model's; any case, or `auto`", _DRAFTERS),
    Key("kv_cache_dtype", "name", "of the draft model's cache", _DRAFTERS),
    Key(
        "max_model_len",
        "integer",
        "at least 1: the draft model's longest sequence",
        _DRAFTERS,
        instead="the target's is the option --max-model-len",
    ),
    Key("revision", "string", "of the draft model's repository", _DRAFTERS),
    Key("code_revision", "string", "of the draft model's code", _DRAFTERS),
    Key(
        "index_share_for_mtp_iteration",
        "boolean",
        "whether later drafts reuse the first one's sparse indices",
        ("mtp",),
    ),
    Key(
        "enforce_eager",
        "boolean",
        "run the draft model uncompiled",
        _DRAFTERS,
        instead="the target's is the option --enforce-eager",
    ),
    Key("disable_padded_drafter_batch", "boolean", "draft batches of unequal length", _EAGLE),
    Key("use_local_argmax_reduction", "boolean", "greedy drafts without full logits", _DRAFTERS),
    Key(
        "use_heterogeneous_vocab",
        "boolean",
        "draft and target model of different vocabularies; only with greedy drafts",
        ("draft_model",),
    ),
    Key(
        "parallel_drafting",
        "boolean",
        "all drafts in one forward (PARD, P-EAGLE)",
        ("draft_model", "eagle", "eagle3", "dflash", "dspark"),
    ),
    Key(
        "draft_sample_method",
        "name",
        "`greedy` or `probabilistic`: how a draft model's tokens are chosen",
        _DRAFTERS,
    ),
    Key(
        "synthetic_acceptance_rates",
        "list of numbers",
        "one for each of `num_speculative_tokens`, 0 to 1, none above the one before",
        METHODS,
        refused=_SYNTHETIC,
    ),
    Key(
        "synthetic_acceptance_length",
        "number",
        "1 to `num_speculative_tokens` + 1; not together with `synthetic_acceptance_rates`",
        METHODS,
        refused=_SYNTHETIC,
    ),
    Key("dspark_draft_topk", "integer", "at least 1", ("dspark",)),
    Key("disable_eagle_block_drop", "boolean", "vLLM 0.33", _EAGLE),
    Key("disable_lookahead_block_hashes", "boolean", "vLLM 0.33", _EAGLE),
    Key("draft_lm_head_quantization", "name", "vLLM 0.33: `fp8` or `nvfp4`", _DRAFTERS),
    Key("xpress_topc", "integer", "vLLM 0.33: at least 1", ("dflash",)),
    Key("fly_window_size", "integer", "vLLM 0.33: at least 1", METHODS, refused=_FLY),
    Key("fly_entropy_threshold", "number", "vLLM 0.33: at least 0", METHODS, refused=_FLY),
    Key("fly_entropy_top_k", "integer", "vLLM 0.33: at least 1", METHODS, refused=_FLY),
)

KEYS: Mapping[str, Key] = MappingProxyType({key.name: key for key in _ROWS})

# They are the verifier's, not a proposer's: all entries of a list must agree.
SHARED_KEYS = (
    "rejection_sample_method",
    "num_speculative_tokens_per_batch_size",
    "enable_adaptive_verification",
)
