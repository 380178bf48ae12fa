"""`outrider bench`: how fast a server is, and how much of that is speculation's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.commands import bench_load_options as load_options
from outrider.commands import bench_offline, bench_sweep
from outrider.commands import bench_options as o
from outrider.commands import bench_server_options as server
from outrider.commands.bench_running import Kept, Reading, print_report, run, tell, write_page
from outrider.commands.bench_words import EngineCommand, SweepCommand, VllmCommand
from outrider.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Measure an OpenAI-compatible server, speculation against no speculation.",
)
app.command("sweep", cls=SweepCommand)(bench_sweep.sweep)
for offline in (bench_offline.latency, bench_offline.throughput):
    app.command(cls=EngineCommand, context_settings={"allow_extra_args": True})(offline)


@app.command(cls=VllmCommand)
def serve(
    base_url: o.BaseUrl = None,
    host: server.Host = None,
    port: server.Port = None,
    endpoint: server.Endpoint = None,
    baseline_url: o.BaselineUrl = None,
    no_baseline: o.NoBaseline = False,
    model: o.ModelName = None,
    served_model_name: server.ServedModelName = None,
    backend: server.BackendOrEndpoint = None,
    dataset_name: o.DatasetName = "outrider",
    dataset_path: o.DatasetPath = None,
    dataset_category: o.Category = None,
    input_len: load_options.InputLen = None,
    output_len: o.OutputLen = None,
    num_prompts: o.NumPrompts = None,
    no_oversample: load_options.NoOversample = False,
    disable_shuffle: o.DisableShuffle = False,
    seed: o.Seed = 0,
    request_rate: Annotated[
        float, typer.Option(help="Requests a second, or inf: all are due at once.")
    ] = math.inf,
    burstiness: load_options.Burstiness = 1.0,
    ramp_up_strategy: load_options.RampUpStrategy = None,
    ramp_up_start: load_options.RampUpStart = None,
    ramp_up_end: load_options.RampUpEnd = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests under way at once.  [default: any]")
    ] = None,
    num_runs: Annotated[int, typer.Option(min=1, help="How often all prompts are sent.")] = 1,
    num_warmups: o.NumWarmups = None,
    block_size: o.BlockSize = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(min=1, help="Ask for this K with each request (Outrider only).")
    ] = None,
    proposer: o.Proposer = None,
    ignore_eos: o.IgnoreEos = False,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    frequency_penalty: o.FrequencyPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    repetition_penalty: o.RepetitionPenalty = None,
    logprobs: o.Logprobs = None,
    extra_body: o.ExtraBody = None,
    goodput: o.Goodput = None,
    percentile_metrics: o.PercentileMetrics = "ttft,tpot,itl,e2el",
    metric_percentiles: o.MetricPercentiles = "99",
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Keep the result as a JSON file.")
    ] = False,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="With every request's times.")
    ] = False,
    append_result: Annotated[
        bool, typer.Option("--append-result", help="Add it to the file as one line.")
    ] = False,
    result_dir: Annotated[
        Path, typer.Option(help="Folder for results.", show_default="the current one")
    ] = Path(),
    result_filename: Annotated[
        str | None, typer.Option(help="[default: label, rate, clients, model and time]")
    ] = None,
    html: o.Html = None,
    label: o.Label = None,
    metadata: o.Metadata = None,
    header: o.Header = None,
    insecure: server.Insecure = False,
    ready_check_timeout_sec: o.ReadyTimeout = 0.0,
    request_timeout_sec: o.RequestTimeout = 600.0,
    shared_prefix_cache: o.SharedPrefixCache = False,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure a running server with prompts of a data set, with speculation and without."""
    from outrider.bench.arms import Load
    from outrider.bench.client import Ask
    from outrider.bench.plots import require_plots
    from outrider.bench.saving import (
        result_name,
        writable_file,
        writable_folder,
        write_json,
    )
    from outrider.bench.session import Target, Wanted

    chosen, default_len = o.read_samples(
        dataset_name,
        dataset_path,
        category=dataset_category,
        count=num_prompts,
        output_len=output_len,
        shuffle=not disable_shuffle,
        seed=seed,
        oversample=not no_oversample,
    )
    kind, path = server.backend_and_endpoint(backend, endpoint)
    body = o.read_body(
        {
            "temperature": temperature,
            "ignore_eos": ignore_eos or None,
            "truncate_prompt_tokens": input_len,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
            **o.logprobs_fields(logprobs, kind),
        },
        extra_body,
    )
    reading = Reading(
        percentiles=tuple(o.read_percentiles(metric_percentiles)),
        times=tuple(o.read_times(percentile_metrics)),
        goodput=o.read_goodput(goodput),
        seed=seed,
        repeated=chosen.repeated,
        detailed=save_detailed,
    )
    rate = o.read_rates(str(request_rate))[0]
    load = Load(
        max_concurrency=max_concurrency,
        request_rate=rate,
        burstiness=load_options.check_burstiness(burstiness),
        seed=seed,
        block_size=block_size,
        runs=num_runs,
        ramp=load_options.read_ramp(ramp_up_strategy, ramp_up_start, ramp_up_end, rate),
    )
    if html is not None:
        require_plots()
        writable_file(html, "--html")
    keep = save_result or append_result
    if keep:
        writable_folder(result_dir, "--result-dir")
        if result_filename is not None:
            writable_file(result_dir / result_filename, "--result-filename")
    elif save_detailed or result_filename is not None:
        given = "--save-detailed" if save_detailed else "--result-filename"
        raise InputError(f"{given}: nothing is kept without --save-result or --append-result")
    kept = Kept(
        "serve",
        label,
        o.read_pairs(metadata, "--metadata"),
        {
            "backend": kind.value,
            "dataset_name": dataset_name,
            "num_prompts": len(chosen.samples),
            "output_len": default_len,
            "seed": seed,
            **body,
        },
    )
    outcome = run(
        Target(
            base_url=server.server_url(base_url, host, port),
            baseline_url=baseline_url,
            model=served_model_name or model,
            baseline=not no_baseline,
            headers=o.read_headers(header),
            ready_timeout_s=ready_check_timeout_sec,
            request_timeout_s=request_timeout_sec,
            insecure=insecure,
        ),
        Wanted(
            chosen,
            Ask(
                kind,
                default_len,
                body,
                seed=seed if body.get("temperature") else None,
                endpoint=path,
            ),
            (load,),
            ks=(num_speculative_tokens,),
            proposer=proposer,
            num_warmups=num_warmups,
            cold=not shared_prefix_cache,
        ),
        progress=not no_progress,
    )
    point = reading.objects(outcome.points[0])[0]
    head = kept.header(outcome)
    document: dict[str, Any] = {
        **head,
        "backend": kind.value,
        "num_prompts": len(chosen.samples),
        **point,
        "notes": [*head["notes"], *point["notes"]],
    }
    print_report([point], outcome.notes, reading.times)
    if keep:
        name = result_filename or result_name(
            label or kind.value, load, head["model_id"], head["date"]
        )
        write_json(result_dir / name, document, append=append_result)
        tell(f"saved {result_dir / name}")
    if html is not None:
        write_page(html, document)
        tell(f"wrote {html}")


@app.command()
def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A saved JSON result.")],
    html: o.Html = None,
    percentile_metrics: o.PercentileMetrics = "ttft,tpot,itl,e2el",
) -> None:
    """Show a saved result again, or make its page."""
    from outrider.bench.document import points_of
    from outrider.bench.saving import read_json, writable_file

    document = read_json(result)
    times = o.read_times(percentile_metrics)
    if html is not None:
        writable_file(html, "--html")
    try:
        print_report(points_of(document), document["notes"], times)
        if html is not None:
            write_page(html, document)
            tell(f"wrote {html}")
    except (KeyError, TypeError) as error:
        raise InputError(f"RESULT: {result} is no whole result: {error} is missing") from error
