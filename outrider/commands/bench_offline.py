"""`outrider bench latency` and `throughput`: one number each, from a server of their own.

They start `outrider serve` and stop it afterwards, or measure the server at --base-url: the same
path as any client's, HTTP included, and not an engine alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.commands import bench_options as o
from outrider.commands.bench_load_options import InputLen
from outrider.commands.bench_running import Kept, Reading, print_report, run, tell, write_page
from outrider.commands.bench_serving import served
from outrider.commands.models import print_line

if TYPE_CHECKING:
    from outrider.bench.arms import Load
    from outrider.bench.samples import Chosen

_LATENCY_PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)

_Model = Annotated[
    str | None,
    typer.Option(
        help="The model to serve: a folder, a name or a hub id. With --base-url: the served name."
    ),
]
_SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config", "-sc", help="Of the server that is started; see outrider serve."
    ),
]
_OutputLen = Annotated[int, typer.Option(min=1, help="Tokens of each answer.")]
_StopAtEos = Annotated[
    bool, typer.Option("--stop-at-eos", help="Let answers end where the model ends them.")
]
_OutputJson = Annotated[Path | None, typer.Option(help="Keep the result in this file.")]
_StartTimeout = Annotated[
    float, typer.Option(min=1.0, help="Seconds that the server may take to start.")
]


def latency(
    ctx: typer.Context,
    model: _Model = None,
    base_url: o.BaseUrl = None,
    baseline_url: o.BaselineUrl = None,
    no_baseline: o.NoBaseline = False,
    speculative_config: _SpeculativeConfig = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests sent together.")] = 8,
    num_iters: Annotated[int, typer.Option(min=1, help="Batches that are measured.")] = 10,
    num_iters_warmup: Annotated[int, typer.Option(min=0, help="Batches before.")] = 2,
    input_len: InputLen = None,
    output_len: _OutputLen = 128,
    dataset_name: o.DatasetName = "outrider",
    dataset_path: o.DatasetPath = None,
    backend: o.BackendName = "openai-chat",
    temperature: o.Temperature = 0.0,
    stop_at_eos: _StopAtEos = False,
    extra_body: o.ExtraBody = None,
    seed: o.Seed = 0,
    output_json: _OutputJson = None,
    html: o.Html = None,
    server_ready_timeout: _StartTimeout = 600.0,
    no_progress: o.NoProgress = False,
) -> None:
    """Time from sending a batch of prompts until all are answered. Options after -- are the
    started server's (outrider serve)."""
    from outrider.bench.arms import Load
    from outrider.bench.statistics import percentile, ratio_of_sums

    chosen, _ = o.read_samples(
        dataset_name,
        dataset_path,
        count=batch_size * num_iters,
        output_len=output_len,
        seed=seed,
    )
    load = Load(max_concurrency=batch_size, seed=seed, block_size=batch_size)

    def more(entry: dict[str, Any], seconds: Sequence[float], plain: Sequence[float]) -> str:
        ordered = sorted(seconds)
        average = math.fsum(ordered) / len(ordered)
        entry["avg_latency"] = average
        entry["latencies"] = list(seconds)
        entry["percentiles"] = {f"{p:g}": percentile(ordered, p) for p in _LATENCY_PERCENTILES}
        line = f"Avg latency: {average:.3f} seconds for {batch_size} x {output_len} tokens"
        ratio = ratio_of_sums(
            list(zip(plain, seconds, strict=bool(plain))), units="batches", seed=seed
        )
        if ratio is not None:
            entry["speedup"]["latency"] = ratio.to_json()
            line += (
                f"; {ratio.value:.2f} times as fast as without speculation ({ratio.low:.2f} to "
                f"{ratio.high:.2f}; {ratio.spread})"
            )
        return line

    _measure(
        "latency",
        ctx.args,
        model=model,
        base_url=base_url,
        baseline_url=baseline_url,
        baseline=not no_baseline,
        speculative_config=speculative_config,
        chosen=chosen,
        dataset_name=dataset_name,
        backend=backend,
        output_len=output_len,
        input_len=input_len,
        temperature=temperature,
        ignore_eos=not stop_at_eos,
        extra_body=extra_body,
        load=load,
        num_warmups=num_iters_warmup * batch_size,
        seed=seed,
        output_json=output_json,
        html=html,
        start_timeout_s=server_ready_timeout,
        progress=not no_progress,
        more=more,
    )


def throughput(
    ctx: typer.Context,
    model: _Model = None,
    base_url: o.BaseUrl = None,
    baseline_url: o.BaselineUrl = None,
    no_baseline: o.NoBaseline = False,
    speculative_config: _SpeculativeConfig = None,
    num_prompts: o.NumPrompts = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests under way at once.  [default: any]")
    ] = None,
    num_warmups: o.NumWarmups = None,
    num_runs: Annotated[int, typer.Option(min=1, help="How often all prompts are sent.")] = 1,
    input_len: InputLen = None,
    output_len: _OutputLen = 128,
    dataset_name: o.DatasetName = "outrider",
    dataset_path: o.DatasetPath = None,
    backend: o.BackendName = "openai-chat",
    temperature: o.Temperature = 0.0,
    ignore_eos: o.IgnoreEos = False,
    extra_body: o.ExtraBody = None,
    seed: o.Seed = 0,
    output_json: _OutputJson = None,
    html: o.Html = None,
    server_ready_timeout: _StartTimeout = 600.0,
    no_progress: o.NoProgress = False,
) -> None:
    """Tokens a second with all prompts sent at once. Options after -- are the started server's
    (outrider serve)."""
    from outrider.bench.arms import Load

    chosen, _ = o.read_samples(
        dataset_name, dataset_path, count=num_prompts, output_len=output_len, seed=seed
    )

    def more(entry: dict[str, Any], seconds: Sequence[float], plain: Sequence[float]) -> str:
        entry["elapsed_time"] = entry["duration"]
        entry["num_requests"] = entry["completed"]
        entry["total_num_tokens"] = entry["total_input_tokens"] + entry["total_output_tokens"]
        entry["requests_per_second"] = entry["request_throughput"]
        entry["tokens_per_second"] = entry["total_token_throughput"]
        return (
            f"Throughput: {entry['request_throughput']:.2f} requests/s, "
            f"{entry['total_token_throughput']:.2f} total tokens/s, "
            f"{entry['output_throughput']:.2f} output tokens/s"
        )

    _measure(
        "throughput",
        ctx.args,
        model=model,
        base_url=base_url,
        baseline_url=baseline_url,
        baseline=not no_baseline,
        speculative_config=speculative_config,
        chosen=chosen,
        dataset_name=dataset_name,
        backend=backend,
        output_len=output_len,
        input_len=input_len,
        temperature=temperature,
        ignore_eos=ignore_eos,
        extra_body=extra_body,
        load=Load(max_concurrency=max_concurrency, seed=seed, runs=num_runs),
        num_warmups=num_warmups,
        seed=seed,
        output_json=output_json,
        html=html,
        start_timeout_s=server_ready_timeout,
        progress=not no_progress,
        more=more,
    )


def _measure(
    kind: str,
    options: Sequence[str],
    *,
    model: str | None,
    base_url: str | None,
    baseline_url: str | None,
    baseline: bool,
    speculative_config: str | None,
    chosen: Chosen,
    dataset_name: str,
    backend: str,
    output_len: int,
    input_len: int | None,
    temperature: float,
    ignore_eos: bool,
    extra_body: str | None,
    load: Load,
    num_warmups: int | None,
    seed: int,
    output_json: Path | None,
    html: Path | None,
    start_timeout_s: float,
    progress: bool,
    more: Callable[[dict[str, Any], Sequence[float], Sequence[float]], str],
) -> None:
    """Measure one load. `more` adds a command's own figures to the point's object, given the
    seconds of each block with speculation and without, and returns their line."""
    from outrider.bench.client import Ask
    from outrider.bench.plots import require_plots
    from outrider.bench.saving import writable_file, write_json
    from outrider.bench.session import Target, Wanted

    fields: Mapping[str, object] = {
        "temperature": temperature,
        "ignore_eos": ignore_eos or None,
        "truncate_prompt_tokens": input_len,
    }
    body = o.read_body(fields, extra_body)
    if html is not None:
        require_plots()
    for path, option in ((html, "--html"), (output_json, "--output-json")):
        if path is not None:
            writable_file(path, option)
    reading = Reading(seed=seed, repeated=chosen.repeated)
    ask = Ask(
        o.read_backend(backend), output_len, body, seed=seed if body.get("temperature") else None
    )
    settings = {
        "backend": backend,
        "dataset_name": dataset_name,
        "num_prompts": len(chosen.samples),
        "output_len": output_len,
        "seed": seed,
        **body,
    }
    with served(model, base_url, speculative_config, options, start_timeout_s) as url:
        outcome = run(
            Target(
                base_url=url,
                baseline_url=baseline_url,
                model=None if base_url is None else model,
                baseline=baseline,
                headers=o.read_headers(None),
            ),
            Wanted(chosen, ask, (load,), num_warmups=num_warmups),
            progress=progress,
        )
    point = outcome.points[0]
    entry = reading.objects(point)[0]
    plain = point.baseline
    line = more(
        entry,
        [block.duration for block in point.speculative[0].blocks],
        [block.duration for block in plain.blocks] if plain is not None else [],
    )
    head = Kept(kind, None, {}, settings).header(outcome)
    document = {**head, **entry, "notes": [*head["notes"], *entry["notes"]]}
    print_report([entry], outcome.notes, reading.times)
    print_line(line)
    if output_json is not None:
        write_json(output_json, document)
        tell(f"saved {output_json}")
    if html is not None:
        write_page(html, document)
        tell(f"wrote {html}")
