"""`outrider proposer`: one process that guesses tokens."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.addresses import parse_address
from outrider.commands.options import LogLevel, RuntimeDir, service_process
from outrider.commands.security_options import (
    Insecure,
    TlsCa,
    TlsCert,
    TlsKey,
    TlsRequireClientCert,
    credentials_of,
    warn_of_plain_text,
)
from outrider.commands.trace_options import (
    OtlpEndpoint,
    TraceContent,
    TraceLevelName,
    TraceSampleRatio,
    trace_settings_of,
)
from outrider.config import flag
from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.config import SpeculativeConfig
    from proposer_service.draft_model_settings import DraftModelSettings

_log = logging.getLogger(__name__)

# What a proposer offers at most when it is not told; the verifier asks for what it wants.
_DEFAULT_DRAFT_TOKENS = 32


def proposer(
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="unix:PATH or HOST:PORT.")
    ],
    method: Annotated[str | None, typer.Option(help="ngram, suffix or draft_model.")] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most draft tokens in one block.  [default: ngram and draft_model 32, suffix 24]"
        ),
    ] = None,
    prompt_lookup_min: Annotated[
        int | None, typer.Option(help="ngram: shortest window.  [default: the longest, or 5]")
    ] = None,
    prompt_lookup_max: Annotated[
        int | None, typer.Option(help="ngram: longest window.  [default: the shortest, or 5]")
    ] = None,
    suffix_decoding_max_tree_depth: Annotated[
        int | None, typer.Option(help="suffix: longest match plus draft.  [default: 24]")
    ] = None,
    suffix_decoding_max_cached_requests: Annotated[
        int | None, typer.Option(help="suffix: earlier answers searched.  [default: 10000]")
    ] = None,
    suffix_decoding_max_spec_factor: Annotated[
        float | None, typer.Option(help="suffix: drafts for a matched token.  [default: 1.0]")
    ] = None,
    suffix_decoding_min_token_prob: Annotated[
        float | None, typer.Option(help="suffix: where a draft ends.  [default: 0.1]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="draft_model: a folder, a name or a hub id; the target's tokenizer."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="draft_model: branch, tag or commit of a hub's model.")
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(help="draft_model: of its weights: none, int8 or fp8.  [default: none]"),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="draft_model: longer sequences have no drafts.  [default: the model's own]"
        ),
    ] = None,
    enforce_eager: Annotated[
        bool | None,
        typer.Option("--enforce-eager", help="draft_model: neither torch.compile nor CUDA graphs."),
    ] = None,
    draft_sample_method: Annotated[
        str | None,
        typer.Option(
            help="draft_model: greedy or probabilistic.  [default: what the verifier's rule "
            "allows best]"
        ),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            metavar="JSON",
            help="The options above as one object, instead.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="draft_model: auto, cpu, cuda or cuda:N.  [default: auto]"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="draft_model: auto, float32 or bfloat16.  [default: auto]")
    ] = None,
    kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(
            min=1, help="draft_model: memory for its cache.  [default: what is free on a card]"
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name in metrics and traces.  [default: the method]")
    ] = "",
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Most sequences one verifier may have open.")
    ] = 256,
    no_lookahead: Annotated[
        bool, typer.Option("--no-lookahead", help="Answer only when asked.")
    ] = False,
    otlp_endpoint: OtlpEndpoint = None,
    trace_level: TraceLevelName = "summary",
    trace_sample_ratio: TraceSampleRatio = 1.0,
    trace_content: TraceContent = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_require_client_cert: TlsRequireClientCert = False,
    insecure: Insecure = False,
    log_level: LogLevel = "info",
    runtime_dir: RuntimeDir = None,
) -> None:
    """Guess tokens for verifiers."""
    address = parse_address(listen, "--listen")
    credentials = credentials_of(tls_cert, tls_key, tls_ca, tls_require_client_cert, insecure)
    trace = trace_settings_of(otlp_endpoint, trace_level, trace_sample_ratio, trace_content)
    given: dict[str, object] = {
        "method": method,
        "num_speculative_tokens": num_speculative_tokens,
        "prompt_lookup_min": prompt_lookup_min,
        "prompt_lookup_max": prompt_lookup_max,
        "suffix_decoding_max_tree_depth": suffix_decoding_max_tree_depth,
        "suffix_decoding_max_cached_requests": suffix_decoding_max_cached_requests,
        "suffix_decoding_max_spec_factor": suffix_decoding_max_spec_factor,
        "suffix_decoding_min_token_prob": suffix_decoding_min_token_prob,
        "model": model,
        "revision": revision,
        "quantization": quantization,
        "max_model_len": max_model_len,
        "enforce_eager": enforce_eager,
        "draft_sample_method": draft_sample_method,
    }
    with service_process(log_level, runtime_dir, address):
        from outrider.speculative_keys import SHARED_KEYS
        from outrider.speculative_options import parse_speculative_config, parse_speculative_json
        from proposer_service.server import run
        from proposer_service.settings import ProposerSettings

        flags = {key: value for key, value in given.items() if value is not None}
        if speculative_config is None:
            if method in ("ngram", "draft_model") or (method is None and model is not None):
                flags.setdefault("num_speculative_tokens", _DEFAULT_DRAFT_TOKENS)
            configs = parse_speculative_config(flags, "proposer")
        elif flags:
            named = ", ".join(map(flag, flags))
            raise InputError(f"{named}: cannot be combined with --speculative-config")
        else:
            configs = parse_speculative_config(parse_speculative_json(speculative_config))
        if len(configs) != 1:
            raise InputError("--speculative-config: one process is one proposer; give one object")
        (config,) = configs
        draft_model = _draft_model(config, device, dtype, kv_cache_memory_bytes)
        if runtime_dir is None:  # Else `serve` has said it.
            _log.info("%s", config.describe(without=SHARED_KEYS))
            warn_of_plain_text(credentials, ("--otlp-endpoint", trace.endpoint))
        for key in sorted(config.model_fields_set.intersection(SHARED_KEYS)):
            _log.info("%s is the verifier's to heed; a proposer does nothing with it", key)
        run(
            ProposerSettings(
                listen=address,
                method=config.method,
                name=name,
                max_draft_tokens=config.num_speculative_tokens,
                prompt_lookup_min=config.prompt_lookup_min,
                prompt_lookup_max=config.prompt_lookup_max,
                suffix_decoding_max_tree_depth=config.suffix_decoding_max_tree_depth,
                suffix_decoding_max_cached_requests=config.suffix_decoding_max_cached_requests,
                suffix_decoding_max_spec_factor=config.suffix_decoding_max_spec_factor,
                suffix_decoding_min_token_prob=config.suffix_decoding_min_token_prob,
                draft_model=draft_model,
                max_sequences=max_num_seqs,
                lookahead=not no_lookahead,
                log_level=log_level,
                credentials=credentials,
                trace=trace,
            )
        )


def _draft_model(
    config: SpeculativeConfig,
    device: str | None,
    dtype: str | None,
    kv_cache_memory_bytes: int | None,
) -> DraftModelSettings | None:
    """What is to be loaded, and where; None for a method that loads nothing. Raises InputError."""
    from outrider.draft_models import METHOD, Placement, draft_model_settings

    placed = {"device": device, "dtype": dtype, "kv_cache_memory_bytes": kv_cache_memory_bytes}
    given = [key for key, value in placed.items() if value is not None]
    if given and config.method != METHOD:
        raise InputError(
            f"{', '.join(map(flag, given))}: belongs to method {METHOD!r}; it means nothing for "
            f"{config.method!r}"
        )
    placement = Placement(device or "auto", dtype or "auto", kv_cache_memory_bytes)
    if config.method == METHOD and importlib.util.find_spec("torch") is None:
        raise InputError(
            f"method {METHOD!r} needs torch, which is not installed here; of the container images "
            "proposer-model has it"
        )
    return draft_model_settings(config, placement)
