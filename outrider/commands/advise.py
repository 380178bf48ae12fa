"""`outrider advise`: what speculation would be worth on a sample of real traffic."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.addresses import parse_address
from outrider.commands.models import open_store, print_line, pull_with_progress
from outrider.commands.options import CacheDir
from outrider.commands.security_options import TlsCa, TlsCert, TlsKey, credentials_of
from outrider.config import MAX_SPECULATIVE_TOKENS, client_api_key, nearest
from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.advise.methods import Method
    from outrider.advise.run import Progress

_MOST_SEQUENCES = 1024
_PIPE_COLUMNS = 140


def advise(
    traffic: Annotated[
        Path, typer.Argument(metavar="TRAFFIC.jsonl", help="Prompts and outputs, one a line.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder or known name whose tokenizer reads the text."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="A server (http://HOST:PORT) that generates missing outputs and tells what a "
            "step costs; or a verifier's gRPC address, for the cost alone.",
        ),
    ] = None,
    step_cost: Annotated[
        str | None,
        typer.Option(
            "--step-cost",
            metavar="JSON|NUMBER",
            help="Milliseconds of a step by rows, as JSON or a file of it; or what one more row "
            "adds, in parts of a step.",
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        str, typer.Option("--num-speculative-tokens", "-k", help="The K to try, with commas.")
    ] = "1,2,4,6,8,12,16",
    window: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            metavar="MIN-MAX",
            help="prompt_lookup_min and _max of n-gram; repeatable.  [default: 2-5, 3-5, 5]",
        ),
    ] = None,
    sequences: Annotated[
        str, typer.Option("--sequences", help="How many decode at once, with commas.")
    ] = "1,8",
    draft_wait_ms: Annotated[
        float, typer.Option(min=0, help="What waiting for drafts adds to a step.")
    ] = 0.0,
    suffix_decoding_max_tree_depth: Annotated[int, typer.Option(min=1)] = 24,
    suffix_decoding_max_cached_requests: Annotated[int, typer.Option(min=0)] = 10_000,
    suffix_decoding_max_spec_factor: Annotated[float, typer.Option(min=0)] = 1.0,
    suffix_decoding_min_token_prob: Annotated[float, typer.Option(min=0, max=1)] = 0.1,
    live: Annotated[
        bool, typer.Option("--live", help="Add the proposers that the verifier at --url dials.")
    ] = False,
    proposer: Annotated[
        list[str] | None,
        typer.Option("--proposer", metavar="ADDRESS", help="Add this running one; repeatable."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Longest output that is generated, unless a line says.")
    ] = 256,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Outputs generated at once.")
    ] = 4,
    served_model: Annotated[
        str | None, typer.Option(help="Model asked for.  [default: the server's first]")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent to --url as a bearer token.  [default: $OUTRIDER_API_KEY, else "
            "$OPENAI_API_KEY]"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only so many requests; 0: all.")] = 0,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Count lines that cannot be used; go on.")
    ] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Replay real traffic through n-gram and suffix: what each accepts, and whether it pays."""
    ks = _counts("--num-speculative-tokens", num_speculative_tokens, MAX_SPECULATIVE_TOKENS)
    at_once = _counts("--sequences", sequences, _MOST_SEQUENCES, rising=False)
    proposers = tuple(parse_address(address, "--proposer") for address in proposer or ())

    from outrider.advise.costs import parse_step_cost
    from outrider.advise.methods import suffix
    from outrider.advise.report import as_json as report_as_json
    from outrider.advise.report import show
    from outrider.advise.run import Options, run
    from proposer_service.proposers.suffix_options import SuffixOptions

    cost = parse_step_cost(step_cost) if step_cost is not None else None
    if draft_wait_ms and url is None and (cost is None or not cost.milliseconds):
        raise InputError(
            f"--draft-wait-ms: {draft_wait_ms:g} ms can only be added to a cost in milliseconds; "
            "give --step-cost as JSON, or --url"
        )
    try:
        options_of_suffix = SuffixOptions(
            max_tree_depth=suffix_decoding_max_tree_depth,
            max_cached_requests=suffix_decoding_max_cached_requests,
            max_spec_factor=suffix_decoding_max_spec_factor,
            min_token_prob=suffix_decoding_min_token_prob,
        )
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 4)}") from error
    methods = (*_windows(window or ["2-5", "3-5", "5"]), suffix(options_of_suffix))
    with _progress() as progress:
        outcome = run(
            Options(
                traffic=traffic,
                methods=methods,
                ks=ks,
                sequences=at_once,
                model=_tokenizer_folder(model, cache_dir) if model is not None else None,
                url=url,
                step_cost=cost,
                draft_wait_ms=draft_wait_ms,
                live=live or bool(proposers),
                proposers=proposers,
                skip_bad_lines=skip_bad_lines,
                limit=limit,
                max_tokens=max_tokens,
                concurrency=concurrency,
                served_model=served_model,
                api_key=api_key or client_api_key(),
                credentials=credentials_of(tls_cert, tls_key, tls_ca),
            ),
            progress,
        )
    if as_json:
        import json

        print_line(json.dumps(report_as_json(outcome), indent=1))
        return
    from rich.console import Console

    # A pipe has no width of its own; eighty columns would cut the tables.
    console = Console()
    show(outcome, console if console.is_terminal else Console(width=_PIPE_COLUMNS))


def _counts(option: str, value: str, most: int, *, rising: bool = True) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", part) and 1 <= int(part) <= most for part in parts):
        raise InputError(f"{option}: {value!r}: must be numbers from 1 to {most} with commas")
    given = dict.fromkeys(int(part) for part in parts)
    return tuple(sorted(given) if rising else given)


def _windows(values: list[str]) -> list[Method]:
    from outrider.advise.methods import ngram

    result = []
    for value in dict.fromkeys(values):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", value)
        if match is None:
            raise InputError(f"--window: {value!r}: must be MIN-MAX, such as 2-5, or one number")
        least, most = int(match[1]), int(match[2] or match[1])
        try:
            result.append(ngram(least, most))
        except ValueError as error:
            raise InputError(f"--window: {value!r}: {error}") from error
    return result


def _tokenizer_folder(model: str, cache_dir: Path | None) -> Path:
    """Only the tokenizer is read, so the folder need not hold weights."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.absolute()
    store = open_store(cache_dir)
    if model not in store.known:
        raise InputError(
            f"--model: there is no folder {model!r}; write a folder or one of "
            f"{', '.join(store.known)}{nearest(model, store.known)}"
        )
    return store.find(model) or pull_with_progress(store, model)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar for each stage, gone at the end; none where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done)

        yield report
