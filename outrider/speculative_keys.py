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
    key is refused though one of its methods is served; `neutral`, where there is one, is a value
    that asks for nothing and is taken all the same; `instead` is what may have been meant.
    """

    name: str
    type: str
    rule: str
    methods: tuple[str, ...]
    default: str = ""
    refused: str = ""
    neutral: object = None
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
        "model",
        "string",
        "the draft model: a folder, a name that `outrider models list` shows, or a hub id; its "
        "tokenizer must be the target's. `ngram` and `[ngram]` mean method `ngram`",
        (*_DRAFTERS, "custom_class"),
        default="required",
        instead="the target is the MODEL argument",
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
        "draft_tensor_parallel_size",
        "integer",
        "1: target and draft model run on one device each",
        _DRAFTERS,
        default="1",
    ),
    Key(
        "quantization",
        "string",
        "of the draft model's weights: `none`, `int8` or `fp8`",
        _DRAFTERS,
        default="none",
        instead="the target's is the option --quantization",
    ),
    Key(
        "max_model_len",
        "integer",
        "at least 2, at most the draft model's and the target's own limits: a longer sequence has "
        "no drafts",
        _DRAFTERS,
        default="the smaller of the two limits",
        instead="the target's is the option --max-model-len",
    ),
    Key(
        "revision",
        "string",
        "branch, tag or commit of the draft model's repository; only where `model` is a hub id",
        _DRAFTERS,
    ),
    Key(
        "enforce_eager",
        "boolean",
        "run the draft model without torch.compile and CUDA graphs",
        _DRAFTERS,
        instead="the target's is the option --enforce-eager",
    ),
    Key(
        "draft_sample_method",
        "name",
        "how the draft model's tokens are chosen: `greedy`, the likeliest one; `probabilistic`, "
        "with the request's sampling parameters: under `coupled` by the noise that target and "
        "draft model share, else drawn, and judged by their probabilities. vLLM's default is "
        "`greedy`",
        _DRAFTERS,
        default="`probabilistic` under `coupled`, else `greedy`",
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
        "moe_backend",
        "name",
        "the draft model's kernel for experts",
        _DRAFTERS,
        refused="there is one kernel for each kind of layer",
    ),
    Key(
        "attention_backend",
        "name",
        "the draft model's; any case, or `auto`",
        _DRAFTERS,
        refused="there is one attention for each device",
    ),
    Key(
        "kv_cache_dtype",
        "name",
        "of the draft model's cache",
        _DRAFTERS,
        refused="keys and values are kept as the model computes them",
    ),
    Key(
        "code_revision",
        "string",
        "of the draft model's code",
        _DRAFTERS,
        refused="code that a model brings is never run",
    ),
    Key(
        "index_share_for_mtp_iteration",
        "boolean",
        "whether later drafts reuse the first one's sparse indices",
        ("mtp",),
    ),
    Key("disable_padded_drafter_batch", "boolean", "draft batches of unequal length", _EAGLE),
    Key(
        "use_local_argmax_reduction",
        "boolean",
        "greedy drafts without full logits",
        _DRAFTERS,
        refused="the draft model runs on one device, so there is nothing to gather",
        neutral=False,
    ),
    Key(
        "use_heterogeneous_vocab",
        "boolean",
        "draft and target model of different vocabularies; only with greedy drafts",
        ("draft_model",),
        refused="drafts are compared id by id, and so both models need one tokenizer",
        neutral=False,
    ),
    Key(
        "parallel_drafting",
        "boolean",
        "all drafts in one forward (PARD, P-EAGLE)",
        ("draft_model", "eagle", "eagle3", "dflash", "dspark"),
        refused="models trained for it (PARD) are not served yet",
        neutral=False,
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
    Key(
        "draft_lm_head_quantization",
        "name",
        "vLLM 0.33: `fp8` or `nvfp4`",
        _DRAFTERS,
        refused="`quantization` rounds the layers, and never the last one",
    ),
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
