"""`outrider traces`: what was accepted, request by request and in sums.

Knows the command line; where answers come from is traces_source.py's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.commands.models import print_line
from outrider.errors import InputError, OperationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from outrider.commands.traces_source import TracesSource

app = typer.Typer(
    name="traces",
    help="Show what the evidence says: acceptance by group, requests, their rounds.",
    no_args_is_help=True,
    add_completion=False,
)

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option(help="The gateway that is asked.")]
ApiKey = Annotated[
    str | None, typer.Option(help="Its key.  [default: $OUTRIDER_API_KEY]", show_default=False)
]
CaCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Authorities of its certificate, PEM.")
]
Db = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An evidence file that no gateway has open, instead."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Unix seconds, ISO 8601, or ago: 15m, 2h, 7d.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="The same.")]
Proposer = Annotated[str | None, typer.Option(help="Only this proposer's drafts.")]
Method = Annotated[str | None, typer.Option(help="Only this method's drafts.")]
Model = Annotated[str | None, typer.Option(help="Only requests to this model.")]
Verifier = Annotated[str | None, typer.Option(help="Only requests that this verifier answered.")]
Workload = Annotated[str | None, typer.Option(help="Only requests with this label.")]
Temperature = Annotated[str | None, typer.Option(help="Only this bucket: 0, 0-0.5, 0.5-1 or 1-2.")]


@app.callback()
def traces() -> None:
    """Show what the evidence says: acceptance by group, requests, their rounds."""


@app.command("acceptance")
def acceptance(
    group_by: Annotated[
        str,
        typer.Option(
            help="Any of proposer, method, position, model, verifier, temperature, workload, time, "
            "with commas between."
        ),
    ] = "proposer",
    interval: Annotated[
        str | None, typer.Option(help="How wide time's groups are.  [default: 60s]")
    ] = None,
    since: Since = None,
    until: Until = None,
    proposer: Proposer = None,
    method: Method = None,
    model: Model = None,
    verifier: Verifier = None,
    workload: Workload = None,
    temperature: Temperature = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    ca_cert: CaCert = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """How many draft tokens were accepted, by group."""
    pairs = _pairs(
        since=since,
        until=until,
        proposer=proposer,
        method=method,
        model=model,
        verifier=verifier,
        workload=workload,
        temperature=temperature,
        group_by=group_by,
        interval=interval,
    )
    body = _source(url, api_key, ca_cert, db).acceptance(pairs)
    if as_json:
        _print_json(body)
        return
    from outrider.commands.traces_tables import acceptance_table

    _print(acceptance_table(body))
    if body["sampling_ratio"] < 1:
        print_line(f"sums of a sample: {body['sampling_ratio']:g} of requests were traced")
    for reason, count in body.get("dropped", {}).items():
        print_line(f"dropped: {count} ({reason})")
    if problem := body.get("store", {}).get("problem"):
        print_line(f"store: {problem}")


@app.command("requests")
def requests(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Only those older than this request.")
    ] = None,
    since: Since = None,
    until: Until = None,
    proposer: Proposer = None,
    method: Method = None,
    model: Model = None,
    verifier: Verifier = None,
    workload: Workload = None,
    temperature: Temperature = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    ca_cert: CaCert = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """The newest requests."""
    pairs = _pairs(
        limit=str(limit),
        before=before,
        since=since,
        until=until,
        proposer=proposer,
        method=method,
        model=model,
        verifier=verifier,
        workload=workload,
        temperature=temperature,
    )
    body = _source(url, api_key, ca_cert, db).requests(pairs)
    if as_json:
        _print_json(body)
        return
    from outrider.commands.traces_tables import requests_table

    _print(requests_table(body))
    if body["has_more"]:
        print_line(f"older ones: --before {body['last_id']}")


@app.command("show")
def show(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Or a span's id.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    ca_cert: CaCert = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """One request with its rounds, where it was traced in detail."""
    one = _source(url, api_key, ca_cert, db).request(request_id)
    if as_json:
        _print_json(one)
        return
    from outrider.commands.traces_tables import request_facts, rounds_table

    _print(request_facts(one))
    if "rounds" in one:
        print_line("")
        _print(rounds_table(one["rounds"]))
    else:
        print_line("its rounds were not traced one by one; --trace-level detailed does that")


@app.command("export")
def export(
    output: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file; .parquet or .csv says its format.")
    ],
    rows: Annotated[
        str, typer.Option(help="What a row is: requests, proposers or rounds.")
    ] = "requests",
    since: Since = None,
    until: Until = None,
    proposer: Proposer = None,
    method: Method = None,
    model: Model = None,
    verifier: Verifier = None,
    workload: Workload = None,
    temperature: Temperature = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    ca_cert: CaCert = None,
    db: Db = None,
) -> None:
    """Write what is kept into a Parquet or CSV file."""
    format_ = output.suffix.removeprefix(".")
    if format_ not in ("parquet", "csv"):
        raise InputError(f"FILE: {output} ends neither in .parquet nor in .csv")
    if rows not in ("requests", "proposers", "rounds"):
        raise InputError(f"--rows: {rows!r} is not one of requests, proposers, rounds")
    pairs = _pairs(
        format=format_,
        rows=rows,
        since=since,
        until=until,
        proposer=proposer,
        method=method,
        model=model,
        verifier=verifier,
        workload=workload,
        temperature=temperature,
    )
    source = _source(url, api_key, ca_cert, db)
    try:
        with output.open("xb") as file:
            try:
                source.export(pairs, file)
            except BaseException:
                # Half a file would look like a whole one.
                output.unlink()
                raise
    except FileExistsError as error:
        raise InputError(f"FILE: {output} exists already; name a new file") from error
    except OSError as error:
        raise OperationError(f"FILE: {output} cannot be written: {error.strerror}") from error
    print_line(f"{output}: {output.stat().st_size} bytes")


def _source(url: str, api_key: str | None, ca_cert: Path | None, db: Path | None) -> TracesSource:
    from outrider.commands.traces_source import FileSource, GatewaySource
    from outrider.config import outrider_api_keys

    if db is not None:
        return FileSource(db.expanduser())
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--url: {url!r} is no URL; write {DEFAULT_URL}")
    return GatewaySource(url, api_key or next(iter(outrider_api_keys()), None), ca_cert)


def _pairs(**values: str | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in values.items() if value]


def _print(renderable: RenderableType) -> None:
    from rich.console import Console

    # In a pipe, lines are as long as they need to be.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=400)
    console.print(renderable)


def _print_json(body: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
