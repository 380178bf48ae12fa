"""`outrider gateway`: the HTTP side, without a model and without torch."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.addresses import parse_address, require_free_port
from outrider.commands.options import LogLevel, RuntimeDir, service_process
from outrider.errors import InputError


def gateway(
    verifier: Annotated[
        list[str], typer.Option("--verifier", metavar="ADDRESS", help="Repeat for several.")
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
    log_level: LogLevel = "info",
    runtime_dir: RuntimeDir = None,
) -> None:
    """Serve the OpenAI API over HTTP from one or more verifiers."""
    with service_process(log_level, runtime_dir):
        from gateway.server import run
        from gateway.settings import GatewaySettings, SpecDecodeMetrics

        allowed = [item.value for item in SpecDecodeMetrics]
        if per_request_spec_decode_metrics not in allowed:
            raise InputError(
                f"--per-request-spec-decode-metrics: {per_request_spec_decode_metrics!r} is not "
                f"one of {', '.join(allowed)}"
            )
        settings = GatewaySettings(
            host=host,
            port=port,
            verifiers=tuple(parse_address(address, "--verifier") for address in verifier),
            per_request_spec_decode_metrics=SpecDecodeMetrics(per_request_spec_decode_metrics),
            force_include_usage=enable_force_include_usage,
            log_level=log_level,
        )
        require_free_port(host, port)
        run(settings)
