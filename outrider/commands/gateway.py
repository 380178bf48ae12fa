"""`outrider gateway`: the HTTP side, without a model and without torch."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Annotated, TypeVar

import typer

from outrider.addresses import parse_target, require_free_port
from outrider.commands.evidence_options import (
    EvidenceDb,
    EvidenceMaxAge,
    EvidenceMaxMb,
    OtlpForward,
    OtlpListen,
    evidence_settings_of,
)
from outrider.commands.options import DrainTimeout, LogLevel, RuntimeDir, service_process
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
    TlsRequireClientCert,
    api_keys_of,
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

_Choice = TypeVar("_Choice", bound=Enum)


def gateway(
    verifier: Annotated[
        list[str],
        typer.Option(
            "--verifier",
            metavar="ADDRESS",
            help="unix:PATH, HOST:PORT, or dns:HOST:PORT for all of a name. Repeat for several.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    per_request_spec_decode_metrics: Annotated[
        str, typer.Option(help="Acceptance in each response: none, summary or detailed.")
    ] = "summary",
    enable_force_include_usage: Annotated[
        bool,
        typer.Option("--enable-force-include-usage", help="Send usage in every stream."),
    ] = False,
    tool_call_parser: Annotated[
        str,
        typer.Option(help="How the model writes tool calls: hermes, llama3_json or mistral."),
    ] = "hermes",
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
    tls_require_client_cert: TlsRequireClientCert = False,
    insecure: Insecure = False,
    otlp_endpoint: OtlpEndpoint = None,
    trace_level: TraceLevelName = "summary",
    trace_sample_ratio: TraceSampleRatio = 1.0,
    trace_content: TraceContent = False,
    otlp_listen: OtlpListen = None,
    otlp_forward: OtlpForward = None,
    evidence_db: EvidenceDb = "memory",
    evidence_max_mb: EvidenceMaxMb = 512,
    evidence_max_age: EvidenceMaxAge = "30d",
    drain_timeout: DrainTimeout = 10.0,
    log_level: LogLevel = "info",
    runtime_dir: RuntimeDir = None,
) -> None:
    """Serve the OpenAI API over HTTP from one or more verifiers."""
    with service_process(log_level, runtime_dir):
        from gateway.server import run
        from gateway.settings import GatewaySettings, SpecDecodeMetrics
        from gateway.tenants import read_salt_secret
        from gateway.tools.parsers import Notation
        from outrider.exposure import http_exposure
        from outrider.https import load_https

        keys = api_keys_of(api_key, api_key_file)
        https = load_https(ssl_certfile, ssl_keyfile, ssl_ca_certs, ssl_cert_reqs or 0)
        warning = http_exposure(host, keys=bool(keys), https=https, insecure=insecure)
        if warning:
            _log.warning("%s", warning)
        secret = None
        if cache_salt_secret_file is not None:
            secret = read_salt_secret(cache_salt_secret_file, "--cache-salt-secret-file")
        metrics, parser = "--per-request-spec-decode-metrics", "--tool-call-parser"
        settings = GatewaySettings(
            host=host,
            port=port,
            verifiers=tuple(parse_target(address, "--verifier") for address in verifier),
            per_request_spec_decode_metrics=_one_of(
                SpecDecodeMetrics, per_request_spec_decode_metrics, metrics
            ),
            force_include_usage=enable_force_include_usage,
            tool_call_parser=_one_of(Notation, tool_call_parser, parser),
            drain_timeout_s=drain_timeout,
            log_level=log_level,
            credentials=credentials_of(
                tls_cert, tls_key, tls_ca, tls_require_client_cert, insecure
            ),
            https=https,
            api_keys=keys,
            cache_salt_secret=secret,
            share_cache_across_keys=share_cache_across_keys,
            trace=trace_settings_of(otlp_endpoint, trace_level, trace_sample_ratio, trace_content),
            evidence=evidence_settings_of(
                otlp_listen, otlp_forward, evidence_db, evidence_max_mb, evidence_max_age
            ),
        )
        require_free_port(host, port)
        if runtime_dir is None:  # Else `serve` has said it.
            warn_of_plain_text(
                settings.credentials,
                *(("--verifier", address) for address in settings.verifiers),
                ("--otlp-endpoint", settings.trace.endpoint),
                ("--otlp-forward", settings.evidence.forward),
            )
        run(settings)


def _one_of(kind: type[_Choice], value: str, option: str) -> _Choice:
    allowed = [item.value for item in kind]
    if value not in allowed:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(allowed)}")
    return kind(value)
