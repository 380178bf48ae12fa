"""`outrider verifier`: the process that holds the target model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from outrider.addresses import parse_address, parse_target
from outrider.commands.config_file import JSON, ConfigFile
from outrider.commands.models import open_store, pull_with_progress
from outrider.commands.options import (
    CacheDir,
    DrainTimeout,
    LogLevel,
    RuntimeDir,
    parse_tokens,
    service_process,
)
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
from outrider.draft_schedule import parse_draft_schedule
from outrider.errors import InputError
from outrider.parent import end_now

_log = logging.getLogger(__name__)


def verifier(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a name or a hub id.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="unix:PATH or HOST:PORT.")
    ],
    config: ConfigFile = None,
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer",
            metavar="ADDRESS",
            help="unix:PATH, HOST:PORT, or dns:HOST:PORT for one of a name. Repeat for several.",
        ),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            metavar=JSON,
            help="What the proposers must be: an object, or a list with one for each --proposer.",
        ),
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Shortcut for the key method.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Shortcut for the key model.")] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-speculative-tokens",
            "--spec-tokens",
            parser=parse_tokens,
            metavar="INTEGER",
            help="Most draft tokens in one round.  [default: 8 with a proposer, else 0]",
        ),
    ] = None,
    num_speculative_tokens_per_batch_size: Annotated[
        str | None,
        typer.Option(
            metavar=JSON,
            help="Most draft tokens by running sequences: [[first, last, K], ...].",
        ),
    ] = None,
    num_prediction_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=128,
            help="Most draft tokens of a request's own prediction, where there is no other "
            "speculation.",
        ),
    ] = 8,
    enable_adaptive_verification: Annotated[
        bool | None,
        typer.Option(
            "--enable-adaptive-verification/--no-enable-adaptive-verification",
            help="Verify only drafts that pay; without it, every draft up to the limits.  "
            "[default: on]",
        ),
    ] = None,
    rejection_sample_method: Annotated[
        str | None, typer.Option(help="coupled, standard or block.  [default: coupled]")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name clients use.  [default: MODEL]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    quantization: Annotated[
        str, typer.Option(help="Round the linear layers' weights: none, int8 or fp8.")
    ] = "none",
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Make a sequence's numbers independent of what shares its steps (slower).",
        ),
    ] = False,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence.  [default: the model's own]")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences at once.")] = 64,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in one step.")
    ] = 512,
    max_waiting_requests: Annotated[
        int, typer.Option(min=1, help="Most requests that wait; more are refused.")
    ] = 4096,
    max_logprobs: Annotated[
        int,
        typer.Option(min=-1, help="Most top log-probabilities a request may ask for; -1: any."),
    ] = 20,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Reuse the cache of prompts that begin alike.")
    ] = True,
    prefill_stall_ms: Annotated[
        float,
        typer.Option(min=0, max=60_000, help="How much prefill may hold up running requests."),
    ] = 100.0,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(min=1, help="Memory for the cache.  [default: what is free]")
    ] = None,
    draft_deadline_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=60_000,
            help="Longest a step waits for drafts.  [default: 10; 1000 where --speculative-config "
            "names a draft model]",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for the model.  [default: all cores]")
    ] = None,
    enforce_eager: Annotated[
        bool,
        typer.Option("--enforce-eager", help="Neither torch.compile nor CUDA graphs."),
    ] = False,
    max_captured_prefill_tokens: Annotated[
        int, typer.Option(min=0, help="Largest prefill captured as a CUDA graph; 0: none.")
    ] = 2048,
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
    log_stats_interval: Annotated[
        float, typer.Option(min=0, help="Seconds between lines of SpecDecoding metrics; 0: none.")
    ] = 10.0,
    plain_share: Annotated[
        str,
        typer.Option(
            help="Share of steps, 0 to 0.5, that decode plainly, to measure what drafts gain; "
            "auto: as many as cost next to nothing."
        ),
    ] = "auto",
    record_rounds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write each step's numbers there, never text; at most 64 MiB.",
        ),
    ] = None,
    otlp_endpoint: OtlpEndpoint = None,
    trace_level: TraceLevelName = "summary",
    trace_sample_ratio: TraceSampleRatio = 1.0,
    trace_content: TraceContent = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_require_client_cert: TlsRequireClientCert = False,
    insecure: Insecure = False,
    cache_dir: CacheDir = None,
    drain_timeout: DrainTimeout = 5.0,
    log_level: LogLevel = "info",
    runtime_dir: RuntimeDir = None,
) -> None:
    """Hold the target model, verify drafts and answer Generate."""
    address = parse_address(listen, "--listen")
    credentials = credentials_of(tls_cert, tls_key, tls_ca, tls_require_client_cert, insecure)
    trace = trace_settings_of(otlp_endpoint, trace_level, trace_sample_ratio, trace_content)
    proposers = tuple(parse_target(item, "--proposer") for item in proposer or ())
    schedule = None
    if num_speculative_tokens_per_batch_size is not None:
        schedule = parse_draft_schedule(
            num_speculative_tokens_per_batch_size, "--num-speculative-tokens-per-batch-size"
        )
    from outrider.config import flag, require_token_for_each
    from outrider.speculative_options import parse_speculative_json
    from outrider.verifier_speculation import SpeculationOptions, parse_plain_share

    speculation = SpeculationOptions(
        None if speculative_config is None else parse_speculative_json(speculative_config),
        method=spec_method,
        model=spec_model,
        tokens=num_speculative_tokens,
        rejection_sample_method=rejection_sample_method,
        schedule=schedule,
        adaptive=enable_adaptive_verification,
    ).resolve(proposers)
    plain = parse_plain_share(plain_share, "--plain-share")
    if record_rounds is not None:
        _require_writable("--record-rounds", record_rounds)
    require_token_for_each(max_num_batched_tokens, max_num_seqs, flag)
    _require("--device", device, ("auto", "cpu", "cuda"))
    _require("--dtype", dtype, ("auto", "float32", "bfloat16"))
    _require("--quantization", quantization, ("none", "int8", "fp8"))
    with service_process(log_level, runtime_dir, address):
        from outrider.draft_models import deadline_ms
        from outrider.model_folders import resolve_model
        from outrider.speculative_detection import refuse_speculators_checkpoint

        credentials.check_listen(address)
        store = open_store(cache_dir)
        target = resolve_model(model, store, lambda name: pull_with_progress(store, name))
        refuse_speculators_checkpoint(target.folder)
        if runtime_dir is None:  # Else `serve` has said it.
            dialled = [("--proposer", item) for item in proposers]
            warn_of_plain_text(credentials, *dialled, ("--otlp-endpoint", trace.endpoint))
            for where, entry in zip(proposers, speculation.proposers, strict=False):
                _log.info("%s is what the proposer at %s must be", entry, where)

        from verifier_service.messages import RejectionRule
        from verifier_service.proposer_expectation import ExpectedProposer
        from verifier_service.server import run
        from verifier_service.settings import VerifierSettings

        loading = run(
            VerifierSettings(
                model=str(target.folder),
                listen=address,
                served_model_name=served_model_name or target.name,
                proposers=proposers,
                expected_proposers=tuple(
                    ExpectedProposer(
                        entry.method, entry.num_speculative_tokens, entry.method_options()
                    )
                    for entry in speculation.proposers
                ),
                num_speculative_tokens=speculation.num_speculative_tokens,
                num_speculative_tokens_per_batch_size=speculation.schedule,
                num_prediction_tokens=num_prediction_tokens,
                adaptive=speculation.adaptive,
                rejection_rule=RejectionRule(speculation.rejection_sample_method),
                device=device,
                dtype=dtype,
                quantization=quantization,
                batch_invariant=batch_invariant,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_waiting_requests=max_waiting_requests,
                max_logprobs=max_logprobs,
                enable_prefix_caching=enable_prefix_caching,
                prefill_stall_ms=prefill_stall_ms,
                kv_cache_bytes=kv_cache_memory_bytes,
                draft_deadline_ms=(
                    deadline_ms(speculation.proposers)
                    if draft_deadline_ms is None
                    else draft_deadline_ms
                ),
                compile=not no_compile,
                enforce_eager=enforce_eager,
                max_captured_prefill_tokens=max_captured_prefill_tokens,
                engine_process=engine_process,
                threads=threads,
                drain_seconds=drain_timeout,
                log_level=log_level,
                log_stats_interval_s=log_stats_interval,
                trust_request_chat_template=trust_request_chat_template,
                plain_share=plain,
                record_rounds=str(record_rounds.absolute()) if record_rounds else None,
                credentials=credentials,
                trace=trace,
            )
        )
    if loading:
        end_now()


def _require(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(allowed)}")


def _require_writable(option: str, path: Path) -> None:
    """Find out before a model is loaded that a file cannot be written."""
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise InputError(f"{option}: cannot write {path}: {error.strerror or error}") from error
