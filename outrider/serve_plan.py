"""Which processes `outrider serve` runs, and with which command lines.

Knows the subcommands' options and the sockets between them; starts nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path

from outrider.config import SpeculativeConfig, data_directory
from outrider.draft_models import METHOD as DRAFT_MODEL
from outrider.draft_models import SHARED_CACHE_BYTES, deadline_ms
from outrider.model_folders import Model
from outrider.probes import grpc_is_serving, http_is_healthy, port_is_open
from outrider.serve_options import ServeOptions
from outrider.speculative_keys import SHARED_KEYS
from outrider.supervisor import Service

PROPOSER_STOP_S = 5.0
VERIFIER_STOP_S = 15.0
# Longer than the gateway lets running requests go on.
GATEWAY_STOP_S = 15.0


def plan_services(
    options: ServeOptions,
    model: Model,
    runtime_dir: Path,
    speculation: tuple[SpeculativeConfig, ...] | None = None,
) -> list[Service]:
    """Proposers, verifier and gateway, in the order of starting.

    `runtime_dir` is a private folder for their sockets, short enough for a socket's path.
    `speculation` None is what the options say.
    """
    if speculation is None:
        speculation = options.speculation()
    proposers = [
        _proposer(name, config, options, runtime_dir)
        for name, config in zip(proposer_names(speculation), speculation, strict=True)
    ]
    addresses = [f"unix:{service.socket}" for service in proposers]
    verifier = _verifier(options, model, speculation, addresses, runtime_dir)
    return [*proposers, verifier, _gateway(options, f"unix:{verifier.socket}", runtime_dir)]


def public_url(options: ServeOptions) -> str:
    """Where a client on this machine reaches the gateway."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    scheme = "http" if options.ssl_certfile is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{options.port}"


def otlp_address(options: ServeOptions, runtime_dir: Path) -> str:
    """Where the gateway receives what the others tell of requests; empty for nowhere."""
    return f"unix:{runtime_dir / 'otlp.sock'}" if options.receives_evidence else ""


def proposer_names(speculation: tuple[SpeculativeConfig, ...]) -> list[str]:
    """The method's name, numbered where a method comes more than once."""
    seen: Counter[str] = Counter()
    result = []
    for config in speculation:
        seen[config.method] += 1
        count = seen[config.method]
        result.append(config.method if count == 1 else f"{config.method}-{count}")
    return result


def _proposer(
    name: str, config: SpeculativeConfig, options: ServeOptions, runtime_dir: Path
) -> Service:
    socket = runtime_dir / f"{name}.sock"
    command = [
        *_subcommand("proposer", options, runtime_dir),
        f"--listen=unix:{socket}",
        f"--name={name}",
        f"--speculative-config={_as_json(config, exclude=SHARED_KEYS)}",
        f"--max-num-seqs={options.max_num_seqs}",
        *options.trace(otlp_address(options, runtime_dir)).arguments(),
    ]
    if config.method == DRAFT_MODEL:
        cache_bytes = options.draft_kv_cache_memory_bytes or SHARED_CACHE_BYTES
        command += [
            f"--device={options.draft_device or options.device}",
            f"--dtype={options.dtype}",
            f"--kv-cache-memory-bytes={cache_bytes}",
        ]
    return Service(
        name=name,
        command=tuple(command),
        is_ready=partial(grpc_is_serving, f"unix:{socket}"),
        stop_deadline_s=PROPOSER_STOP_S,
        socket=socket,
        environment=_cores(config, options),
    )


def _cores(config: SpeculativeConfig, options: ServeOptions) -> tuple[tuple[str, str], ...]:
    """As many threads as the target has: they take turns, and both would be slow with more."""
    if config.method != DRAFT_MODEL or options.threads is None:
        return ()
    return (("OMP_NUM_THREADS", str(options.threads)),)


def _verifier(
    options: ServeOptions,
    model: Model,
    speculation: tuple[SpeculativeConfig, ...],
    proposers: list[str],
    runtime_dir: Path,
) -> Service:
    socket = runtime_dir / "verifier.sock"
    command = [
        *_subcommand("verifier", options, runtime_dir),
        f"--listen=unix:{socket}",
        *(f"--proposer={address}" for address in proposers),
        _speculation(speculation),
        f"--served-model-name={options.served_model_name or model.name}",
        f"--device={options.device}",
        f"--dtype={options.dtype}",
        f"--max-num-seqs={options.max_num_seqs}",
        f"--max-num-batched-tokens={options.max_num_batched_tokens}",
        f"--max-waiting-requests={options.max_waiting_requests}",
        f"--max-logprobs={options.max_logprobs}",
        f"--prefill-stall-ms={options.prefill_stall_ms}",
        f"--max-captured-prefill-tokens={options.max_captured_prefill_tokens}",
        f"--draft-deadline-ms={_deadline_ms(options, speculation)}",
        f"--plain-share={options.plain_share}",
        f"--num-prediction-tokens={options.num_prediction_tokens}",
        f"--log-stats-interval={options.log_stats_interval}",
        *options.trace(otlp_address(options, runtime_dir)).arguments(),
    ]
    if options.max_model_len is not None:
        command.append(f"--max-model-len={options.max_model_len}")
    if options.kv_cache_memory_bytes is not None:
        command.append(f"--kv-cache-memory-bytes={options.kv_cache_memory_bytes}")
    if options.threads is not None:
        command.append(f"--threads={options.threads}")
    if not options.enable_prefix_caching:
        command.append("--no-enable-prefix-caching")
    if options.quantization != "none":
        command.append(f"--quantization={options.quantization}")
    if options.batch_invariant:
        command.append("--batch-invariant")
    if options.enforce_eager:
        command.append("--enforce-eager")
    if options.no_compile:
        command.append("--no-compile")
    if options.engine_process is not None:
        command.append(f"--{'' if options.engine_process else 'no-'}engine-process")
    if options.trust_request_chat_template:
        command.append("--trust-request-chat-template")
    return Service(
        name="verifier",
        command=(*command, "--", str(model.folder)),
        is_ready=partial(grpc_is_serving, f"unix:{socket}"),
        stop_deadline_s=VERIFIER_STOP_S,
        socket=socket,
        # It takes what memory is left for its cache, so that all others must have theirs before.
        after=tuple(
            name
            for name, config in zip(proposer_names(speculation), speculation, strict=True)
            if config.method == DRAFT_MODEL
        ),
    )


def _deadline_ms(options: ServeOptions, speculation: tuple[SpeculativeConfig, ...]) -> float:
    if options.draft_deadline_ms is not None:
        return options.draft_deadline_ms
    return deadline_ms(speculation)


def _speculation(speculation: tuple[SpeculativeConfig, ...]) -> str:
    """The verifier's part of it: all configs, in the order of the proposers' addresses."""
    if not speculation:
        return "--num-speculative-tokens=0"
    return f"--speculative-config=[{', '.join(map(_as_json, speculation))}]"


def _as_json(config: SpeculativeConfig, exclude: Collection[str] = ()) -> str:
    """What was written of it; the child fills in the same defaults."""
    return json.dumps(config.model_dump(exclude_unset=True, exclude=set(exclude)))


def _gateway(options: ServeOptions, verifier: str, runtime_dir: Path) -> Service:
    command = [
        *_subcommand("gateway", options, runtime_dir),
        f"--verifier={verifier}",
        f"--host={options.host}",
        f"--port={options.port}",
        f"--per-request-spec-decode-metrics={options.per_request_spec_decode_metrics}",
        f"--tool-call-parser={options.tool_call_parser}",
        # What it receives it need not send itself.
        *options.trace("").arguments(),
        f"--evidence-db={options.evidence_db or data_directory() / 'evidence.duckdb'}",
        f"--evidence-max-mb={options.evidence_max_mb}",
        f"--evidence-max-age={options.evidence_max_age}",
    ]
    if address := otlp_address(options, runtime_dir):
        command.append(f"--otlp-listen={address}")
    if options.otlp_forward is not None:
        command.append(f"--otlp-forward={options.otlp_forward}")
    if options.enable_force_include_usage:
        command.append("--enable-force-include-usage")
    command += options.gateway_arguments()
    is_ready = partial(http_is_healthy, f"{public_url(options)}/health")
    if options.requires_client_certificate:
        # There is none to show, and the verifier behind it was seen to be ready.
        is_ready = partial(port_is_open, options.host, options.port)
    return Service(
        name="gateway",
        command=tuple(command),
        is_ready=is_ready,
        stop_deadline_s=GATEWAY_STOP_S,
        environment=options.gateway_environment(),
    )


def _subcommand(name: str, options: ServeOptions, runtime_dir: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "outrider.cli",
        name,
        f"--log-level={options.log_level}",
        f"--runtime-dir={runtime_dir}",
        *options.tls_arguments(),
    ]
