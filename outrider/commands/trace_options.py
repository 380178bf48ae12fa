"""The options of telemetry, called the same in every subcommand.

Knows the command line; what is told is outrider/telemetry.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.trace_settings import TraceSettings

OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        "--otlp-endpoint",
        metavar="ADDRESS",
        help="Send traces and metrics there over OTLP/gRPC: HOST:PORT, unix:PATH or a URL.  "
        "[default: nowhere]",
    ),
]
TraceLevelName = Annotated[
    str,
    typer.Option(
        "--trace-level",
        metavar="none|summary|detailed",
        help="What is told of a request: nothing, its sums, or each round beside them.",
    ),
]
TraceSampleRatio = Annotated[
    float,
    typer.Option(
        "--trace-sample-ratio",
        min=0,
        max=1,
        help="Share of requests that are traced, of those whose caller has not decided.",
    ),
]
TraceContent = Annotated[
    bool,
    typer.Option(
        "--trace-content",
        help="Put the text of drafts and answers into traces; needs --trace-level detailed.",
    ),
]


def trace_settings_of(
    endpoint: str | None, level: str, sample_ratio: float, content: bool
) -> TraceSettings:
    """The checked settings. Raises InputError naming the option, its value and what is allowed."""
    from outrider.trace_settings import TraceSettings, parse_endpoint, parse_level

    return TraceSettings(
        endpoint="" if endpoint is None else parse_endpoint(endpoint),
        level=parse_level(level),
        sample_ratio=sample_ratio,
        content=content,
    )
