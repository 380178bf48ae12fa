"""`outrider serve`: proposers, verifier and gateway on this machine, as child processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.commands.options import CacheDir, parse_tokens
from outrider.commands.security_options import (
    ApiKeyFile,
    ApiKeys,
    CacheSaltSecretFile,
    Insecure,
    ShareCacheAcrossKeys,
    SslCaCerts,
    SslCertfile,
    SslCertReqs,
    SslKeyfile,
    TlsCa,
    TlsCert,
    TlsKey,
)


def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A folder, a name or a hub id.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file of these options, without dashes.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.  [default: 8000]")] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            metavar="JSON",
            help="An object, or a list of objects for several proposers.  [default: ngram and "
            "suffix, 8 tokens each]",
        ),
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Shortcut for the key method.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Shortcut for the key model.")] = None,
    spec_tokens: Annotated[
        int | None,
        typer.Option(
            "--spec-tokens",
            "--num-speculative-tokens",
            parser=parse_tokens,
            metavar="INTEGER",
            help="Shortcut for the key num_speculative_tokens.",
        ),
    ] = None,
    no_speculation: Annotated[
        bool, typer.Option("--no-speculation", help="Decode plainly; start no proposer.")
    ] = False,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest sequence, in tokens.  [default: the model's own]")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most sequences at once.  [default: 64]")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in one step.  [default: 512]")
    ] = None,
    max_waiting_requests: Annotated[
        int | None, typer.Option(help="Most requests that wait.  [default: 4096]")
    ] = None,
    max_logprobs: Annotated[
        int | None,
        typer.Option(
            help="Most top log-probabilities a request may ask for; -1: any.  [default: 20]"
        ),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the cache of prompts that begin alike.  [default: on]",
        ),
    ] = None,
    prefill_stall_ms: Annotated[
        float | None,
        typer.Option(
            help="How much a step's prefill may hold up running requests.  [default: 100]"
        ),
    ] = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(help="Memory for the cache.  [default: what is free]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads for the model.  [default: all cores]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32 or bfloat16.  [default: auto]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None,
    quantization: Annotated[
        str | None,
        typer.Option(help="Of the target's weights: none, int8 or fp8.  [default: none]"),
    ] = None,
    batch_invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Outputs that do not depend on other requests."),
    ] = False,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name clients use.  [default: MODEL]")
    ] = None,
    draft_deadline_ms: Annotated[
        float | None,
        typer.Option(
            help="Longest a step waits for drafts.  [default: 10; 1000 with a draft model]"
        ),
    ] = None,
    draft_device: Annotated[
        str | None,
        typer.Option(help="For draft models: auto, cpu, cuda or cuda:N.  [default: the target's]"),
    ] = None,
    draft_kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(help="Memory for each draft model's cache.  [default: 2147483648]"),
    ] = None,
    plain_share: Annotated[
        str | None,
        typer.Option(
            help="Share of steps, 0 to 0.5, that decode plainly, to measure what drafts gain.  "
            "[default: auto]"
        ),
    ] = None,
    num_prediction_tokens: Annotated[
        int | None,
        typer.Option(help="Most drafts from a request's own prediction.  [default: 8]"),
    ] = None,
    log_stats_interval: Annotated[
        float | None,
        typer.Option(help="Seconds between lines of SpecDecoding metrics.  [default: 10]"),
    ] = None,
    per_request_spec_decode_metrics: Annotated[
        str | None,
        typer.Option(
            help="Acceptance in each response: none, summary or detailed.  [default: summary]"
        ),
    ] = None,
    enable_force_include_usage: Annotated[
        bool, typer.Option("--enable-force-include-usage", help="Send usage in every stream.")
    ] = False,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            help="How the model writes tool calls: hermes, llama3_json or mistral.  "
            "[default: hermes]"
        ),
    ] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Neither torch.compile nor CUDA graphs.")
    ] = False,
    max_captured_prefill_tokens: Annotated[
        int | None,
        typer.Option(help="Largest prefill captured as a CUDA graph; 0: none.  [default: 2048]"),
    ] = None,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Run the model without torch.compile.")
    ] = False,
    engine_process: Annotated[
        bool | None,
        typer.Option(
            "--engine-process/--no-engine-process",
            help="Run the engine in a process of its own.  [default: on CUDA]",
        ),
    ] = None,
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template", help="Let requests bring chat templates (sandboxed)."
        ),
    ] = False,
    api_key: ApiKeys = None,
    api_key_file: ApiKeyFile = None,
    cache_salt_secret_file: CacheSaltSecretFile = None,
    share_cache_across_keys: ShareCacheAcrossKeys = False,
    ssl_certfile: SslCertfile = None,
    ssl_keyfile: SslKeyfile = None,
    ssl_ca_certs: SslCaCerts = None,
    ssl_cert_reqs: SslCertReqs = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    insecure: Insecure = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Send traces and metrics there instead of to the gateway.",
        ),
    ] = None,
    trace_level: Annotated[
        str | None,
        typer.Option(
            metavar="none|summary|detailed",
            help="What is told of a request: nothing, its sums, or each round beside them.  "
            "[default: summary]",
        ),
    ] = None,
    trace_sample_ratio: Annotated[
        float | None,
        typer.Option(
            help="Share of requests that are traced, of those whose caller has not decided.  "
            "[default: 1]"
        ),
    ] = None,
    trace_content: Annotated[
        bool,
        typer.Option(
            "--trace-content",
            help="Put the text of drafts and answers into traces; needs --trace-level detailed.",
        ),
    ] = False,
    otlp_forward: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Send what the gateway receives of traces and metrics on to this collector.",
        ),
    ] = None,
    evidence_db: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|memory|none",
            help="Where acceptance is kept: a DuckDB file, memory, or nowhere.  "
            "[default: a file in the user's data folder]",
        ),
    ] = None,
    evidence_max_mb: Annotated[
        int | None,
        typer.Option(help="Megabytes that the file may have, about.  [default: 512]"),
    ] = None,
    evidence_max_age: Annotated[
        str | None,
        typer.Option(help="How long requests are kept in it: 12h, 30d.  [default: 30d]"),
    ] = None,
    cache_dir: CacheDir = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error.  [default: info]")
    ] = None,
) -> None:
    """Serve MODEL over HTTP with speculative decoding, all parts on this machine."""
    given: dict[str, object] = {
        "model": model,
        "host": host,
        "port": port,
        "spec_method": spec_method,
        "spec_model": spec_model,
        "spec_tokens": spec_tokens,
        "no_speculation": no_speculation or None,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_waiting_requests": max_waiting_requests,
        "max_logprobs": max_logprobs,
        "enable_prefix_caching": enable_prefix_caching,
        "prefill_stall_ms": prefill_stall_ms,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
        "threads": threads,
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "batch_invariant": batch_invariant or None,
        "served_model_name": served_model_name,
        "draft_deadline_ms": draft_deadline_ms,
        "draft_device": draft_device,
        "draft_kv_cache_memory_bytes": draft_kv_cache_memory_bytes,
        "plain_share": None if plain_share is None else _plain_share(plain_share),
        "num_prediction_tokens": num_prediction_tokens,
        "log_stats_interval": log_stats_interval,
        "per_request_spec_decode_metrics": per_request_spec_decode_metrics,
        "enable_force_include_usage": enable_force_include_usage or None,
        "tool_call_parser": tool_call_parser,
        "enforce_eager": enforce_eager or None,
        "max_captured_prefill_tokens": max_captured_prefill_tokens,
        "no_compile": no_compile or None,
        "engine_process": engine_process,
        "trust_request_chat_template": trust_request_chat_template or None,
        "api_key": api_key or None,
        "share_cache_across_keys": share_cache_across_keys or None,
        "ssl_cert_reqs": ssl_cert_reqs,
        "insecure": insecure or None,
        "otlp_endpoint": otlp_endpoint,
        "trace_level": trace_level,
        "trace_sample_ratio": trace_sample_ratio,
        "trace_content": trace_content or None,
        "otlp_forward": otlp_forward,
        "evidence_db": evidence_db,
        "evidence_max_mb": evidence_max_mb,
        "evidence_max_age": evidence_max_age,
        "log_level": log_level,
    }
    files = {
        "api_key_file": api_key_file,
        "cache_salt_secret_file": cache_salt_secret_file,
        "ssl_certfile": ssl_certfile,
        "ssl_keyfile": ssl_keyfile,
        "ssl_ca_certs": ssl_ca_certs,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
    }
    given.update((key, str(path)) for key, path in files.items() if path is not None)
    from outrider.commands.serving import serve_until_stopped
    from outrider.serve_options import merge_options
    from outrider.speculative_options import parse_speculative_json

    if speculative_config is not None:
        given["speculative_config"] = parse_speculative_json(speculative_config)
    options = merge_options({k: v for k, v in given.items() if v is not None}, config)
    serve_until_stopped(options, cache_dir)


def _plain_share(text: str) -> float | str:
    from outrider.verifier_speculation import parse_plain_share

    share = parse_plain_share(text, "--plain-share")
    return "auto" if share is None else share
