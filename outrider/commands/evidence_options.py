"""The options of a gateway's evidence on the command line.

Knows names and help; what they mean is gateway/evidence/settings.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.addresses import parse_address
from outrider.durations import parse_duration

if TYPE_CHECKING:
    from gateway.evidence.settings import EvidenceSettings

LEAST_AGE, MOST_AGE = "1m", "3650d"

OtlpListen = Annotated[
    str | None,
    typer.Option(
        "--otlp-listen",
        metavar="ADDRESS",
        help="Receive traces and metrics of verifiers and proposers there, over OTLP/gRPC: "
        "unix:PATH or HOST:PORT.  [default: nowhere]",
    ),
]
OtlpForward = Annotated[
    str | None,
    typer.Option(
        "--otlp-forward",
        metavar="ADDRESS",
        help="Send what is received on to this collector too: HOST:PORT, unix:PATH or a URL; "
        "empty: nowhere.  [default: nowhere]",
    ),
]
EvidenceDb = Annotated[
    str,
    typer.Option(
        "--evidence-db",
        metavar="PATH|memory|none",
        help="Where acceptance is kept: a DuckDB file, this process's memory, or nowhere.",
    ),
]
EvidenceMaxMb = Annotated[
    int, typer.Option("--evidence-max-mb", help="Megabytes that the file may have, about.")
]
EvidenceMaxAge = Annotated[
    str,
    typer.Option("--evidence-max-age", help="How long requests are kept in it: 12h, 30d."),
]


def evidence_settings_of(
    listen: str | None, forward: str | None, database: str, max_mb: int, max_age: str
) -> EvidenceSettings:
    """The checked settings. Raises InputError naming the option, its value and what is allowed."""
    from gateway.evidence.settings import EvidenceSettings
    from outrider.trace_settings import parse_endpoint

    return EvidenceSettings(
        listen=parse_address(listen, "--otlp-listen") if listen else "",
        # Empty as left out: compose files write options whose values may be unset.
        forward=parse_endpoint(forward, "--otlp-forward") if forward else "",
        database=database,
        max_mb=max_mb,
        max_age_s=parse_duration(max_age, "--evidence-max-age", LEAST_AGE, MOST_AGE),
    )
