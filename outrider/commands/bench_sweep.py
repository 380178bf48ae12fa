"""`outrider bench sweep`: loads against K, in one report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.commands import bench_load_options as load_options
from outrider.commands import bench_options as o
from outrider.commands import bench_server_options as server
from outrider.commands.bench_running import Kept, Reading, print_report, run, tell, write_page
from outrider.commands.bench_serving import started
from outrider.commands.models import print_line
from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.bench.session import Outcome, Point, Target, Wanted


def sweep(
    base_url: o.BaseUrl = None,
    host: server.Host = None,
    port: server.Port = None,
    endpoint: server.Endpoint = None,
    baseline_url: o.BaselineUrl = None,
    no_baseline: o.NoBaseline = False,
    serve_cmd: Annotated[
        str | None,
        typer.Option(
            help="Start this server, once for each K; it must say {port}, and may say "
            "{num_speculative_tokens}."
        ),
    ] = None,
    server_ready_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that --serve-cmd may take to start.")
    ] = 300.0,
    model: o.ModelName = None,
    served_model_name: server.ServedModelName = None,
    backend: server.BackendOrEndpoint = None,
    dataset_name: o.DatasetName = "outrider",
    dataset_path: o.DatasetPath = None,
    dataset_category: o.Category = None,
    output_len: o.OutputLen = None,
    num_prompts: o.NumPrompts = None,
    disable_shuffle: o.DisableShuffle = False,
    seed: o.Seed = 0,
    max_concurrency: Annotated[
        str | None, typer.Option(help="Numbers of clients, separated by commas.  [default: 1,4,16]")
    ] = None,
    request_rate: Annotated[
        str | None, typer.Option(help="Requests a second, separated by commas, instead of clients.")
    ] = None,
    burstiness: load_options.Burstiness = 1.0,
    num_speculative_tokens: Annotated[
        str | None, typer.Option(help="K, separated by commas.  [default: the server's own]")
    ] = None,
    num_runs: Annotated[int, typer.Option(min=1, help="How often all prompts are sent.")] = 1,
    num_warmups: o.NumWarmups = None,
    block_size: o.BlockSize = None,
    proposer: o.Proposer = None,
    ignore_eos: o.IgnoreEos = False,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    frequency_penalty: o.FrequencyPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    repetition_penalty: o.RepetitionPenalty = None,
    extra_body: o.ExtraBody = None,
    goodput: o.Goodput = None,
    percentile_metrics: o.PercentileMetrics = "ttft,tpot,itl,e2el",
    metric_percentiles: o.MetricPercentiles = "99",
    output_dir: Annotated[Path, typer.Option(help="Folder for results.")] = Path("results"),
    experiment_name: Annotated[
        str | None, typer.Option(help="Folder in it for this sweep.  [default: the time]")
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write the JSON only.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be measured.")
    ] = False,
    label: o.Label = None,
    metadata: o.Metadata = None,
    header: o.Header = None,
    insecure: server.Insecure = False,
    ready_check_timeout_sec: o.ReadyTimeout = 0.0,
    request_timeout_sec: o.RequestTimeout = 600.0,
    shared_prefix_cache: o.SharedPrefixCache = False,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure every load with every K, the baseline among them."""
    from outrider.bench.arms import Load
    from outrider.bench.client import Ask
    from outrider.bench.plots import require_plots
    from outrider.bench.session import Target, Wanted, describe_load

    if max_concurrency is not None and request_rate is not None:
        raise InputError(
            "--request-rate: a sweep goes over --max-concurrency or --request-rate, not both"
        )
    url = server.server_url(base_url, host, port)
    if serve_cmd is not None and (base_url, host, port) != (None, None, None):
        given = "--host" if host is not None else "--port" if port is not None else "--base-url"
        raise InputError(f"{given}: with --serve-cmd the server is started by this command")
    kind, path = server.backend_and_endpoint(backend, endpoint)
    chosen, default_len = o.read_samples(
        dataset_name,
        dataset_path,
        category=dataset_category,
        count=num_prompts,
        output_len=output_len,
        shuffle=not disable_shuffle,
        seed=seed,
    )
    plain = Load(
        burstiness=load_options.check_burstiness(burstiness),
        seed=seed,
        block_size=block_size,
        runs=num_runs,
    )
    if request_rate is not None:
        rates = o.read_rates(request_rate)
        loads = [dataclasses.replace(plain, request_rate=rate) for rate in rates]
    else:
        clients = o.read_counts(max_concurrency or "1,4,16", "--max-concurrency")
        loads = [dataclasses.replace(plain, max_concurrency=count) for count in clients]
    ks: tuple[int | None, ...] = (None,)
    if num_speculative_tokens is not None:
        ks = tuple(o.read_counts(num_speculative_tokens, "--num-speculative-tokens"))
    body = o.read_body(
        {
            "temperature": temperature,
            "ignore_eos": ignore_eos or None,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
        },
        extra_body,
    )
    reading = Reading(
        percentiles=tuple(o.read_percentiles(metric_percentiles)),
        times=tuple(o.read_times(percentile_metrics)),
        goodput=o.read_goodput(goodput),
        seed=seed,
        # Every load sends the same prompts.
        repeated=chosen.repeated or len(loads) > 1,
    )
    kept = Kept(
        "sweep",
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
    target = Target(
        base_url=url,
        baseline_url=baseline_url,
        model=served_model_name or model,
        baseline=not no_baseline,
        headers=o.read_headers(header),
        ready_timeout_s=ready_check_timeout_sec,
        request_timeout_s=request_timeout_sec,
        insecure=insecure,
    )
    wanted = Wanted(
        chosen,
        Ask(
            kind,
            default_len,
            body,
            seed=seed if body.get("temperature") else None,
            endpoint=path,
        ),
        tuple(loads),
        ks=ks,
        proposer=proposer,
        num_warmups=num_warmups,
        cold=not shared_prefix_cache,
    )
    if dry_run:
        for load in loads:
            for k in ks:
                print_line(f"{describe_load(load)}\t{'the server’s K' if k is None else f'K={k}'}")
        return
    if not no_html:
        require_plots()
    results = _Results(kept, reading, output_dir, experiment_name)
    if serve_cmd is None:
        results.measure(target, wanted, not no_progress)
    else:
        for k in ks:
            with started(serve_cmd, k, server_ready_timeout) as url:
                asked = dataclasses.replace(wanted, ks=(None,))
                one = dataclasses.replace(target, base_url=url)
                results.measure(one, asked, not no_progress, k)
    print_report(results.points, results.notes, reading.times)
    if not no_html:
        page = results.folder / "report.html"
        write_page(page, results.document())
        tell(f"wrote {page}")


def _of_arm(note: str, old: str, new: str) -> str:
    """A note of the arm `old` under its new name."""
    own = note.removeprefix(f"{old}: ")
    return note if own == note else f"{new}: {own}"


class _Results:
    """What a sweep has measured so far, on disk after every load."""

    def __init__(
        self, kept: Kept, reading: Reading, output_dir: Path, experiment: str | None
    ) -> None:
        from datetime import UTC, datetime

        from outrider.bench.saving import writable_folder

        name = experiment or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.folder = writable_folder(output_dir / name, "--output-dir")
        self.points: list[dict[str, Any]] = []
        self._kept = kept
        self._reading = reading
        self._outcomes: list[Outcome] = []

    def measure(self, target: Target, wanted: Wanted, progress: bool, k: int | None = None) -> None:
        """Add the points of one session; `k` names the arm of a server that was started for it."""
        from outrider.bench.saving import write_json

        def keep(point: Point) -> None:
            for entry in self._reading.objects(point):
                if k is not None:
                    name = f"K={k}"
                    notes = [_of_arm(note, entry["arm"], name) for note in entry["notes"]]
                    entry |= {"arm": name, "num_speculative_tokens": k, "notes": notes}
                self.points.append(entry)
            write_json(self.folder / "partial.json", {"points": self.points})

        self._outcomes.append(run(target, wanted, progress=progress, on_point=keep))
        path = self.folder / "sweep.json"
        write_json(path, self.document())
        (self.folder / "partial.json").unlink()
        tell(f"saved {path}")

    @property
    def notes(self) -> Sequence[str]:
        return list(dict.fromkeys(note for one in self._outcomes for note in one.notes))

    def document(self) -> dict[str, Any]:
        head = self._kept.header(self._outcomes[-1])
        return {**head, "notes": list(self.notes), "points": self.points}
