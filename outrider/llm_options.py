"""The options of `outrider.LLM`: checked before a model is loaded, then the verifier's settings.

Knows vLLM's names of engine arguments, and which of them ask for what Outrider does not have; knows
no engine. Light: imports no torch before `verifier_settings` is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.addresses import parse_address
from outrider.config import SpeculativeConfig, nearest, require_token_for_each, shorten
from outrider.draft_models import DEVICES, METHOD, SHARED_CACHE_BYTES, Placement
from outrider.errors import InputError
from outrider.speculative_options import parse_speculative_config

if TYPE_CHECKING:
    from outrider.draft_schedule import DraftSchedule
    from outrider.model_folders import Model
    from verifier_service.settings import VerifierSettings

_DEFAULT_DRAFT_TOKENS: Final = 8
_PositiveInt = Annotated[int, Field(ge=1)]

# vLLM's engine arguments that ask for what Outrider does not have: the values that ask for nothing.
_UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "trust_remote_code": (False,),
    "skip_tokenizer_init": (False,),
    "tokenizer": (None,),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "revision": (None, "main"),
    "hf_overrides": (None, {}),
    "enable_lora": (False,),
    "swap_space": (0,),
    "cpu_offload_gb": (0,),
    "kv_cache_dtype": ("auto",),
    "load_format": ("auto",),
    "task": (None, "auto", "generate"),
    "runner": (None, "auto", "generate"),
    "logits_processors": (None, []),
    "limit_mm_per_prompt": (None, {}),
}
# Arguments that have another name here.
_RENAMED: Final[Mapping[str, str]] = {
    "gpu_memory_utilization": "kv_cache_memory_bytes",
    "disable_log_stats": "nothing: get_metrics always works",
    "download_dir": "cache_dir",
}


class LLMOptions(BaseModel):
    """Everything `LLM` takes beside the model and `speculative_config`; docs/offline.md tells them.

    Sizes are tokens, sequences or bytes as the name says. `proposers` are addresses of running
    proposers; the three options behind it belong to them. `draft_device` and
    `draft_kv_cache_memory_bytes` are for draft models of this process.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    quantization: Literal["none", "int8", "fp8"] | None = None
    batch_invariant: bool = False
    seed: int | None = 0
    max_model_len: _PositiveInt | None = None
    max_num_seqs: _PositiveInt = 64
    max_num_batched_tokens: _PositiveInt = 512
    max_logprobs: Annotated[int, Field(ge=-1)] = 20
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    kv_cache_memory_bytes: _PositiveInt | None = None
    threads: _PositiveInt | None = None
    prefill_stall_ms: Annotated[float, Field(ge=0, le=60_000)] = 100.0
    plain_share: Literal["auto"] | Annotated[float, Field(ge=0, le=0.5)] = "auto"
    proposers: Annotated[tuple[str, ...], Field(strict=False)] = ()
    num_speculative_tokens: Annotated[int, Field(ge=1, le=128)] | None = None
    rejection_sample_method: Literal["coupled", "standard", "block"] | None = None
    enable_adaptive_verification: bool | None = None
    draft_deadline_ms: Annotated[float, Field(gt=0, le=60_000)] = 10.0
    draft_device: Annotated[str, Field(pattern=f"^({DEVICES})$")] | None = None
    draft_kv_cache_memory_bytes: _PositiveInt | None = None
    served_model_name: Annotated[str, Field(min_length=1)] | None = None
    cache_dir: Annotated[Path | None, Field(strict=False)] = None
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "summary"


def check_options(given: Mapping[str, Any]) -> LLMOptions:
    """The options that `given` keywords mean.

    Raises InputError naming the option, its value and what is allowed.
    """
    values = dict(given)
    for name, successor in _RENAMED.items():
        if name in values:
            raise InputError(f"{name} is not an option of outrider.LLM; use {successor}")
    for name, neutral in _UNSUPPORTED.items():
        if name in values and (value := values.pop(name)) not in neutral:
            allowed = " or ".join(repr(item) for item in neutral)
            raise InputError(
                f"{name}: {shorten(repr(value))} is not supported; leave it out ({allowed})"
            )
    for name in values:
        if name not in LLMOptions.model_fields:
            raise InputError(
                f"{name}: outrider.LLM has no such option{nearest(name, LLMOptions.model_fields)}"
            )
    try:
        options = LLMOptions.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        raise InputError(
            f"{problem['loc'][0]}: {shorten(repr(problem['input']))}: {message}"
        ) from None
    require_token_for_each(options.max_num_batched_tokens, options.max_num_seqs, str)
    for index, address in enumerate(options.proposers):
        parse_address(address, "proposers")
        if address in options.proposers[:index]:
            raise InputError(f"proposers: {address!r} is given twice; give each once")
    return options


@dataclass(frozen=True, slots=True)
class Speculation:
    """Who drafts, how many tokens at most, and how drafts are chosen and accepted.

    Either `configs`, one for each proposer of this process, or `addresses` of running ones, or
    neither: nothing drafts.
    """

    configs: tuple[SpeculativeConfig, ...] = ()
    addresses: tuple[str, ...] = ()
    num_speculative_tokens: int = 0
    rejection_sample_method: str = "coupled"
    adaptive: bool = True
    schedule: DraftSchedule | None = None


def check_speculation(speculative_config: object | None, options: LLMOptions) -> Speculation:
    """What `speculative_config`, or else the options ask for.

    Raises InputError naming the key, its value and what is allowed.
    """
    alone = (
        "num_speculative_tokens",
        "rejection_sample_method",
        "enable_adaptive_verification",
    )
    if speculative_config is None:
        _refuse_draft_options(options, ())
    if speculative_config is None and options.proposers:
        return Speculation(
            addresses=options.proposers,
            num_speculative_tokens=options.num_speculative_tokens or _DEFAULT_DRAFT_TOKENS,
            rejection_sample_method=options.rejection_sample_method or "coupled",
            adaptive=options.enable_adaptive_verification is not False,
        )
    if options.proposers:
        raise InputError("proposers: cannot be combined with speculative_config")
    for name in alone:
        if getattr(options, name) is not None:
            raise InputError(f"{name}: belongs into speculative_config, or beside proposers")
    if speculative_config is None:
        return Speculation()
    if speculative_config in ([], {}):
        raise InputError("speculative_config: is empty; leave it out to decode plainly")
    configs = parse_speculative_config(speculative_config, "speculative_config")
    _refuse_draft_options(options, configs)
    return Speculation(
        configs=configs,
        num_speculative_tokens=max(config.num_speculative_tokens for config in configs),
        # The same in all of them.
        rejection_sample_method=configs[0].rejection_sample_method,
        adaptive=configs[0].enable_adaptive_verification,
        schedule=configs[0].schedule,
    )


def _refuse_draft_options(options: LLMOptions, configs: Sequence[SpeculativeConfig]) -> None:
    if any(config.method == METHOD for config in configs):
        return
    for name in ("draft_device", "draft_kv_cache_memory_bytes"):
        if (value := getattr(options, name)) is not None:
            raise InputError(
                f"{name}: {value!r}: nothing drafts with a model here; it belongs to method "
                f"{METHOD!r}"
            )


def draft_placement(options: LLMOptions) -> Placement:
    """Where draft models run, and in what; their cache is bounded, as the target's takes the rest.

    Raises InputError where a draft model cannot run on the target's device.
    """
    return Placement(
        options.draft_device or options.device,
        options.dtype,
        options.draft_kv_cache_memory_bytes or SHARED_CACHE_BYTES,
    )


def verifier_settings(
    model: Model, options: LLMOptions, speculation: Speculation
) -> VerifierSettings:
    """The settings of a verifier that listens nowhere."""
    from verifier_service.messages import RejectionRule
    from verifier_service.settings import VerifierSettings

    return VerifierSettings(
        model=str(model.folder),
        listen="",
        served_model_name=options.served_model_name or model.name,
        proposers=speculation.addresses,
        num_speculative_tokens=speculation.num_speculative_tokens,
        # There is no field to bring a prediction in.
        num_prediction_tokens=0,
        rejection_rule=RejectionRule(speculation.rejection_sample_method),
        device=options.device,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_logprobs=options.max_logprobs,
        enable_prefix_caching=options.enable_prefix_caching,
        prefill_stall_ms=options.prefill_stall_ms,
        plain_share=None if options.plain_share == "auto" else options.plain_share,
        kv_cache_bytes=options.kv_cache_memory_bytes,
        draft_deadline_ms=options.draft_deadline_ms,
        adaptive=speculation.adaptive,
        num_speculative_tokens_per_batch_size=speculation.schedule,
        enforce_eager=options.enforce_eager,
        compile=not options.enforce_eager,
        threads=options.threads,
        quantization=options.quantization or "none",
        batch_invariant=options.batch_invariant,
        # Templates come from the caller, who runs any code here anyway.
        trust_request_chat_template=True,
    )
