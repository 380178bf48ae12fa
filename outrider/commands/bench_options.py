"""Options that the bench commands share, and how their values become settings.

Knows the command line; the names are those of `vllm bench` where it has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.config import client_api_key, shorten
from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.bench.samples import Backend, Chosen

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_PROMPTS = 100

BaseUrl = Annotated[
    str | None,
    typer.Option(help=f"The server to measure.  [default: {DEFAULT_URL}]", show_default=False),
]
BaselineUrl = Annotated[
    str | None,
    typer.Option(
        help="A server of the same model without speculation, for one whose requests cannot "
        "turn it off."
    ),
]
NoBaseline = Annotated[
    bool, typer.Option("--no-baseline", help="Measure speculation only: no speed-up.")
]
ModelName = Annotated[
    str | None, typer.Option(help="The served model's name.  [default: the first served]")
]
BackendName = Annotated[
    str, typer.Option(help="openai-chat (chat completions), openai or vllm (completions).")
]
DatasetName = Annotated[
    str,
    typer.Option(help="outrider (in the package), spec_bench, humaneval, gsm8k, sharegpt, custom."),
]
DatasetPath = Annotated[
    Path | None, typer.Option(help="The data set's file; every set but outrider needs one.")
]
Category = Annotated[
    str | None,
    typer.Option(
        "--dataset-category", "--spec-bench-category", help="Only prompts of this category."
    ),
]
OutputLen = Annotated[
    int | None,
    typer.Option(
        "--output-len",
        "--spec-bench-output-len",
        "--sharegpt-output-len",
        "--custom-output-len",
        "--hf-output-len",
        min=1,
        help="Most tokens of an answer.  [default: the prompt's own, else 256 (outrider: 128)]",
    ),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Prompts to send; more than there are: some again.  [default: {DEFAULT_PROMPTS}, or "
        "all if fewer]",
    ),
]
DisableShuffle = Annotated[
    bool, typer.Option("--disable-shuffle", help="Take the prompts in the file's order.")
]
Seed = Annotated[int, typer.Option(help="Of the prompts' order, the arrivals and the bootstrap.")]
NumWarmups = Annotated[
    int | None,
    typer.Option(min=0, help="Short requests before, to each arm.  [default: clients, at most 8]"),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Prompts after which the next arm has its turn.  [default: 1 at one client, else "
        "two for each client and at most ten blocks]",
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Answers as long as allowed (vLLM's field ignore_eos).")
]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option(help="Sent with each request.")]
TopK = Annotated[int | None, typer.Option(help="Sent with each request.")]
MinP = Annotated[float | None, typer.Option(help="Sent with each request.")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="Sent with each request.")]
PresencePenalty = Annotated[float | None, typer.Option(help="Sent with each request.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Sent with each request.")]
Logprobs = Annotated[
    int | None, typer.Option(min=0, max=20, help="Ask for so many log-probabilities a token.")
]
ExtraBody = Annotated[str | None, typer.Option(help="JSON object merged into each request.")]
Proposer = Annotated[
    str | None, typer.Option(help="Draft with this one of the server's proposers (Outrider only).")
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(help="Limit in ms, for instance ttft:200; also tpot and e2el. Repeat for more."),
]
PercentileMetrics = Annotated[str, typer.Option(help="Times to show: ttft, tpot, itl, gap, e2el.")]
MetricPercentiles = Annotated[str, typer.Option(help="Percentiles, separated by commas.")]
Header = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE sent with each request. Repeat for more.")
]
Metadata = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE kept with the result. Repeat for more.")
]
Label = Annotated[str | None, typer.Option(help="A name for the result.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.")]
ReadyTimeout = Annotated[
    float,
    typer.Option("--ready-check-timeout-sec", min=0.0, help="Wait so long for the server."),
]
RequestTimeout = Annotated[
    float,
    typer.Option(
        "--request-timeout-sec", min=0.001, help="The longest silence of an answer that may last."
    ),
]
NoProgress = Annotated[
    bool, typer.Option("--disable-tqdm", "--no-progress", help="Show no progress bar.")
]
SharedPrefixCache = Annotated[
    bool,
    typer.Option(
        "--shared-prefix-cache",
        help="Let the arms share the prefix cache: whichever asks second finds prompts there.",
    ),
]


def read_backend(name: str) -> Backend:
    """Raises InputError for an unknown backend."""
    from outrider.bench.samples import Backend

    try:
        return Backend(name)
    except ValueError as error:
        raise InputError(f"--backend: {name!r} is not one of {', '.join(Backend)}") from error


def read_samples(
    name: str,
    path: Path | None,
    *,
    category: str | None = None,
    count: int | None = None,
    default_count: int = DEFAULT_PROMPTS,
    output_len: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    oversample: bool = True,
) -> tuple[Chosen, int]:
    """The prompts, and the most tokens of an answer where a prompt has no number of its own."""
    from outrider.bench.datasets import DATASETS, load
    from outrider.bench.samples import choose

    chosen = choose(
        load(name, path, category=category),
        count,
        default_count=default_count,
        output_len=output_len,
        shuffle=shuffle,
        seed=seed,
        oversample=oversample,
    )
    return chosen, output_len or DATASETS[name].output_len


def read_body(fields: Mapping[str, object], extra: str | None) -> dict[str, Any]:
    """`fields` that are set, under what `--extra-body` says. Raises InputError."""
    from outrider.bench.client import merged

    body = {key: value for key, value in fields.items() if value is not None}
    if extra is None:
        return body
    try:
        more = json.loads(extra)
    except json.JSONDecodeError as error:
        raise InputError(f"--extra-body: {shorten(extra)!r} is not JSON: {error}") from error
    if not isinstance(more, dict):
        raise InputError(f"--extra-body: {shorten(extra)!r} is not a JSON object")
    return merged(body, more)


def logprobs_fields(count: int | None, backend: Backend) -> dict[str, object]:
    """What asks for log-probabilities at the endpoint of `backend`."""
    if count is None:
        return {}
    if backend.value == "openai-chat":
        return {"logprobs": True, "top_logprobs": count}
    return {"logprobs": count}


def read_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE entries. Raises InputError."""
    result = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"{option}: {pair!r} is not KEY=VALUE")
        result[key] = value
    return result


def read_headers(pairs: Sequence[str] | None) -> dict[str, str]:
    """`--header` entries, and a key from the environment where none of them carries one."""
    headers = read_pairs(pairs, "--header")
    key = client_api_key()
    if key and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = f"Bearer {key}"
    return headers


def read_goodput(limits: Sequence[str] | None) -> dict[str, float]:
    """`ttft:200` entries, in ms there and in seconds here. Raises InputError."""
    from outrider.bench.figures import GOODPUT_TIMES

    result = {}
    for limit in " ".join(limits or ()).replace(",", " ").split():
        name, _, written = limit.partition(":")
        value = _positive(written)
        if name not in GOODPUT_TIMES or value is None:
            raise InputError(
                f"--goodput: {limit!r} is not NAME:MILLISECONDS with a name of "
                f"{', '.join(GOODPUT_TIMES)}"
            )
        result[name] = value / 1000
    return result


def read_times(names: str) -> list[str]:
    """Raises InputError for a time that there is not."""
    from outrider.bench.figures import TIMES

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in TIMES:
            raise InputError(f"--percentile-metrics: {name!r} is not one of {', '.join(TIMES)}")
    return wanted


def read_percentiles(written: str) -> list[float]:
    """Raises InputError for what is no percentile."""
    return _numbers(
        written, "--metric-percentiles", lambda value: 0 <= value <= 100, "from 0 to 100"
    )


def read_rates(written: str, option: str = "--request-rate") -> list[float]:
    """Requests a second, or `inf`. Raises InputError."""
    return _numbers(written, option, lambda value: value > 0, "above 0, or inf")


def read_counts(written: str, option: str, lowest: int = 1) -> list[int]:
    """Whole numbers separated by commas. Raises InputError."""
    numbers = _numbers(
        written,
        option,
        lambda value: value >= lowest and value.is_integer(),
        f"a whole number from {lowest}",
    )
    return list(dict.fromkeys(int(number) for number in numbers))


def _numbers(written: str, option: str, allowed: Callable[[float], bool], rule: str) -> list[float]:
    result = []
    for part in written.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not allowed(value):
            raise InputError(f"{option}: {part.strip()!r} is not {rule}")
        result.append(value)
    return result


def _positive(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if value > 0 and not math.isinf(value) else None
