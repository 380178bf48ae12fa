"""`outrider proposer`: one process that guesses tokens."""

from __future__ import annotations

import logging
from typing import Annotated

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
from outrider.errors import InputError

_log = logging.getLogger(__name__)

# What a proposer offers at most when it is not told; the verifier asks for what it wants.
_DEFAULT_DRAFT_TOKENS = 32


def proposer(
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="unix:PATH or HOST:PORT.")
    ],
    method: Annotated[str | None, typer.Option(help="ngram or suffix.")] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(help="Most draft tokens in one block.  [default: ngram 32, suffix 24]"),
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
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            metavar="JSON",
            help="The options above as one object, instead.",
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
    }
    with service_process(log_level, runtime_dir, address):
        from outrider.speculative_keys import SHARED_KEYS
        from outrider.speculative_options import parse_speculative_config, parse_speculative_json
        from proposer_service.server import run
        from proposer_service.settings import ProposerSettings

        flags = {key: value for key, value in given.items() if value is not None}
        if speculative_config is None:
            if method == "ngram":
                flags.setdefault("num_speculative_tokens", _DEFAULT_DRAFT_TOKENS)
            configs = parse_speculative_config(flags, "proposer")
        elif flags:
            named = ", ".join(f"--{key.replace('_', '-')}" for key in flags)
            raise InputError(f"{named}: cannot be combined with --speculative-config")
        else:
            configs = parse_speculative_config(parse_speculative_json(speculative_config))
        if len(configs) != 1:
            raise InputError("--speculative-config: one process is one proposer; give one object")
        (config,) = configs
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
                max_sequences=max_num_seqs,
                lookahead=not no_lookahead,
                log_level=log_level,
                credentials=credentials,
                trace=trace,
            )
        )
