"""The options of `outrider serve`, from the command line and a YAML file.

Knows each option's type, default and range; the command line wins over the file. Does not know how
they become processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from outrider.config import SpeculativeConfig, flag, require_token_for_each, shorten
from outrider.config_files import labels, read_options
from outrider.draft_models import DEVICES, METHOD
from outrider.durations import parse_duration
from outrider.errors import InputError
from outrider.serve_security import SECRET_KEYS, SecurityOptions
from outrider.speculative_options import parse_speculative_config, resolve_speculation
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings, parse_endpoint

# Options with a second name.
_ALIASES = {"num_speculative_tokens": "spec_tokens"}

PositiveInt = Annotated[int, Field(ge=1)]


def _endpoint(value: str) -> str:
    try:
        return parse_endpoint(value, "it")
    except InputError as error:
        raise PydanticCustomError(
            "endpoint", "{reason}", {"reason": str(error).removeprefix("it: ")}
        ) from error


def _age(value: str) -> str:
    try:
        parse_duration(value, "it", "1m", "3650d")
    except InputError as error:
        raise PydanticCustomError(
            "age", "{reason}", {"reason": str(error).removeprefix("it: ")}
        ) from error
    return value


class ServeOptions(SecurityOptions):
    """Every option of `serve`; sizes are tokens, sequences or bytes as the name says."""

    model: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    speculative_config: Any = None
    spec_method: str | None = None
    spec_model: str | None = None
    spec_tokens: int | None = None
    no_speculation: bool = False
    max_model_len: PositiveInt | None = None
    max_num_seqs: PositiveInt = 64
    max_num_batched_tokens: PositiveInt = 512
    max_waiting_requests: PositiveInt = 4096
    max_logprobs: Annotated[int, Field(ge=-1)] = 20
    enable_prefix_caching: bool = True
    prefill_stall_ms: Annotated[float, Field(ge=0, le=60_000)] = 100.0
    kv_cache_memory_bytes: PositiveInt | None = None
    threads: PositiveInt | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    quantization: Literal["none", "int8", "fp8"] = "none"
    batch_invariant: bool = False
    served_model_name: Annotated[str, Field(min_length=1)] | None = None
    draft_deadline_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    draft_device: Annotated[str, Field(pattern=f"^({DEVICES})$")] | None = None
    draft_kv_cache_memory_bytes: PositiveInt | None = None
    plain_share: Literal["auto"] | Annotated[float, Field(ge=0, le=0.5)] = "auto"
    num_prediction_tokens: Annotated[int, Field(ge=0, le=128)] = 8
    log_stats_interval: Annotated[float, Field(ge=0)] = 10.0
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "summary"
    enable_force_include_usage: bool = False
    tool_call_parser: Literal["hermes", "llama3_json", "mistral"] = "hermes"
    enforce_eager: bool = False
    max_captured_prefill_tokens: Annotated[int, Field(ge=0)] = 2048
    no_compile: bool = False
    engine_process: bool | None = None
    trust_request_chat_template: bool = False
    otlp_endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    trace_level: Literal["none", "summary", "detailed"] = "summary"
    trace_sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    trace_content: bool = False
    otlp_forward: Annotated[str, AfterValidator(_endpoint)] | None = None
    evidence_db: Annotated[str, Field(min_length=1)] | None = None
    evidence_max_mb: Annotated[int, Field(ge=4)] = 512
    evidence_max_age: Annotated[str, AfterValidator(_age)] = "30d"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def speculation(self) -> tuple[SpeculativeConfig, ...]:
        """One config for each proposer to start. Raises InputError."""
        configs = resolve_speculation(
            self.speculative_config,
            method=self.spec_method,
            model=self.spec_model,
            tokens=self.spec_tokens,
            off=self.no_speculation,
        )
        if not any(config.method == METHOD for config in configs):
            for key in ("draft_device", "draft_kv_cache_memory_bytes"):
                if (value := getattr(self, key)) is not None:
                    raise InputError(
                        f"{flag(key)}: {value!r}: nothing drafts with a model here; it belongs to "
                        f"method {METHOD!r}"
                    )
        return configs

    @property
    def receives_evidence(self) -> bool:
        """Whether the gateway has any use for what the other services tell."""
        return self.trace_level != "none" and (
            self.evidence_db != "none" or self.otlp_forward is not None
        )

    def trace(self, endpoint: str) -> TraceSettings:
        """What each service tells, at `endpoint` unless one is given. Raises InputError."""
        return TraceSettings(
            endpoint=self.otlp_endpoint or endpoint,
            level=TraceLevel(self.trace_level),
            sample_ratio=self.trace_sample_ratio,
            content=self.trace_content,
        )


def merge_options(given: Mapping[str, object], file: Path | None) -> ServeOptions:
    """Options `given` on the command line over those of `file` over the defaults.

    Raises InputError naming the option or the file's key, its value and what is allowed.
    """
    from_file = {} if file is None else _read_yaml(file)
    merged = {**from_file, **given}
    for shortcut in ("spec_method", "spec_model", "spec_tokens", "speculative_config"):
        # Speculation off on the command line means off, whatever the file says of it.
        if given.get("no_speculation") and shortcut not in given:
            merged.pop(shortcut, None)
    options = _validate(merged, flag)
    require_token_for_each(options.max_num_batched_tokens, options.max_num_seqs, flag)
    options.trace("")
    return options


def _read_yaml(file: Path) -> dict[str, object]:
    called = labels(file)
    options = read_options(file, [*ServeOptions.model_fields, *_ALIASES])
    for alias, key in _ALIASES.items():
        if alias in options:
            if key in options:
                raise InputError(f"{called(alias)}: {key} is the same option; give it once")
            options[key] = options.pop(alias)
    _validate(options, called)
    if isinstance(options.get("speculative_config"), str):
        parse_speculative_config(options["speculative_config"], called("speculative-config"))
    return options


def _validate(values: Mapping[str, object], label: Callable[[str], str]) -> ServeOptions:
    try:
        return ServeOptions.model_validate(dict(values))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = str(problem["loc"][0])
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        if key in SECRET_KEYS:
            raise InputError(f"{label(key)}: {message}") from None
        raise InputError(f"{label(key)}: {shorten(repr(problem['input']))}: {message}") from error
