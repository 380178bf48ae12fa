"""What speculation gains under a steady load, by the verifier's own plain periods.

Two runs of the same work differ by a third on a shared machine; neighbouring periods of one run
do not. Starts `outrider serve --plain-share 0.5` for each set, number of clients and temperature,
keeps so many clients busy for a while and reads the gain, with its standard error, from the
gateway's metrics. Then it does the same with `--plain-share auto`: what share of the steps was
plain tells what the controller made of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import OutriderServer, ServerFailed, completion_body
from benchmarks.prompts import Prompt, load_set
from benchmarks.systems import Work
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

SETS = "chat,humaneval,rewrite,summarization,rag"
PLAIN_PERIOD = "a plain period, to measure what drafts gain"
# A gain below this many standard errors under zero is a loss.
_SURE = 2.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. `gain` and `error` are of a half-plain run, `plain_share` is of the adapting one.

    `plain_share` counts only rounds that a plain period took drafts from; `drafted_share` those
    that verified some. Speeds are tokens a second, prefill included.
    """

    prompt_set: str
    clients: int
    temperature: float
    gain: float
    error: float
    periods: int
    plain_share: float
    drafted_share: float
    half_plain_speed: float
    adapting_speed: float

    @property
    def loses(self) -> bool:
        """Whether drafts lost, beyond doubt, where the controller verified them."""
        return self.periods > 0 and self.gain + _SURE * self.error < 0.0


def to_markdown(document: Mapping[str, object], cells: Iterable[Cell]) -> str:
    """The page of a report."""
    lines = [
        "# What speculation gains on a CPU, by plain periods",
        "",
        f"`{document['command']}`",
        "",
        "- Machine: " + _pairs(document["machine"]),
        "- Versions: " + _pairs(document["versions"]),
        "- Settings: " + _pairs(document["settings"]),
        "",
        "| set | clients | T | gain beside plain periods | periods | adapting: rounds with drafts "
        "| plain periods | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for cell in cells:
        gain = f"{cell.gain:+.1%} ± {cell.error:.1%}" if cell.periods else "–"
        verdict = "loses" if cell.loses else ""
        lines.append(
            f"| {cell.prompt_set} | {cell.clients} | {cell.temperature:g} | {gain} "
            f"| {cell.periods} | {cell.drafted_share:.0%} | {cell.plain_share:.0%} | {verdict} |"
        )
    lines += [
        "",
        "`–`: asking was off so soon that no plain period lay between steps with drafts. The gain "
        "is of a run in which every other period of 17 steps is plain; ± is its standard error. "
        "`adapting` is a second run as a user has it: how many rounds verified drafts, and how "
        "many a plain period took them from. Where drafts lose, that share has to be large: the "
        "worse of the two is left 0.4 % of the speed.",
        "",
    ]
    return "\n".join(lines)


def _pairs(values: object) -> str:
    assert isinstance(values, Mapping)
    return "; ".join(f"{name} {value}" for name, value in values.items())


def keep_busy(
    url: str,
    prompts: Sequence[Prompt],
    clients: int,
    temperature: float,
    seconds: float,
    new_tokens: int,
) -> float:
    """Have so many clients send request after request; tokens a second. Raises ServerFailed."""
    numbers = itertools.count()
    turn = threading.Lock()
    until = time.monotonic() + seconds
    begun = time.monotonic()
    done: list[int] = []
    failures: list[str] = []

    def client() -> None:
        with httpx.Client(base_url=url, timeout=600) as http:
            while time.monotonic() < until and not failures:
                with turn:
                    number = next(numbers)
                prompt = prompts[number % len(prompts)]
                # From half to 11/8 of it, as answers differ.
                length = new_tokens * (4 + number * 5 % 8) // 8
                work = Work((prompt.token_ids,), (length,), temperature, number)
                body = completion_body(work, 0, {}, f"cold-{number}")
                response = http.post("/v1/completions", json=body)
                if response.status_code != 200:
                    failures.append(f"HTTP {response.status_code}: {response.text[:300]}")
                    return
                done.append(length)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ServerFailed(failures[0])
    return sum(done) / (time.monotonic() - begun)


def read_metrics(text: str) -> dict[str, float]:
    """Sums by name, and rounds without drafts by `off: reason`, of a Prometheus page."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if name == "outrider:rounds_without_drafts_total":
                name = f"off: {sample.labels['off_reason']}"
            found[name] = found.get(name, 0.0) + sample.value
    return found


def shares(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Shares of all rounds: those in a plain period, and those that verified drafts."""
    drafted = metrics.get("vllm:spec_decode_num_drafts_total", 0.0)
    off = {name: value for name, value in metrics.items() if name.startswith("off: ")}
    rounds = drafted + sum(off.values())
    if not rounds:
        return 0.0, 0.0
    return off.get(f"off: {PLAIN_PERIOD}", 0.0) / rounds, drafted / rounds


def measure(
    model: Path,
    prompts: Sequence[Prompt],
    name: str,
    clients: int,
    temperature: float,
    options: argparse.Namespace,
) -> Cell:
    """One cell: a half-plain run and an adapting one."""
    speeds: list[float] = []
    pages: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="outrider-gain-") as logs:
        for share in ("0.5", "auto"):
            extra = ["--plain-share", share, *options.serve_option]
            log = Path(logs) / f"{share}.log"
            with OutriderServer(str(model), log, max_num_seqs=max(clients, 8), extra=extra) as run:
                speeds.append(
                    keep_busy(
                        run.url, prompts, clients, temperature, options.seconds, options.new_tokens
                    )
                )
                pages.append(read_metrics(httpx.get(f"{run.url}/metrics", timeout=30).text))
    half, adapting = pages
    plain_share, drafted_share = shares(adapting)
    return Cell(
        name,
        clients,
        temperature,
        half.get("outrider:speculation_measured_gain", 0.0),
        half.get("outrider:speculation_measured_gain_error", 0.0),
        int(half.get("outrider:plain_periods", 0.0)),
        plain_share,
        drafted_share,
        speeds[0],
        speeds[1],
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measured_gain",
        description=__doc__.splitlines()[0] if __doc__ else None,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--data", type=Path, default=Path("data"), help="folder with Spec-Bench and HumanEval")
    add("--sets", default=SETS, help="comma-separated")
    add("--clients", default="1,8")
    add("--temperatures", default="0,1")
    add("--prompts", type=int, default=16, help="of each set")
    add("--max-prompt-tokens", type=int, default=1024, help="longer prompts are passed over")
    add("--new-tokens", type=int, default=96, help="from half to 11/8 of it")
    add("--seconds", type=float, default=60, help="of each run, two runs a cell")
    add("--serve-option", action="append", default=[], help="further option of outrider serve")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> None:
    """Measure all cells, writing the report after each."""
    from benchmarks.transformers_system import load_tokenizer

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    tokenizer = load_tokenizer(model)
    document: dict[str, object] = {
        "command": public_command(
            "benchmarks.measured_gain",
            arguments,
            {"--data": "DATA", "--model": "MODEL", "--out": "OUT"},
        ),
        "machine": describe_machine(),
        "versions": versions(["torch", "transformers", "outrider"]),
        "settings": {
            "seconds a run": options.seconds,
            "new tokens": f"{options.new_tokens} on average",
            "proposers": "ngram and suffix, K=8",
        },
    }
    cells: list[Cell] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for temperature in map(float, options.temperatures.split(",")):
        for clients in map(int, options.clients.split(",")):
            for name in options.sets.split(","):
                prompts = load_set(
                    name, options.data, tokenizer, options.prompts, options.max_prompt_tokens
                )
                cell = measure(model, prompts, name, clients, temperature, options)
                cells.append(cell)
                console.print(str(cell), markup=False)
                document["cells"] = [asdict(item) for item in cells]
                (options.out / "measured_gain.json").write_text(
                    json.dumps(document, indent=1) + "\n"
                )
                (options.out / "measured_gain.md").write_text(to_markdown(document, cells))


def main() -> int:
    arguments = sys.argv[1:]
    options = parse(arguments)
    console = Console(stderr=True)

    def work() -> bool:
        run(options, arguments, console)
        return True

    return end_with(work, console)


if __name__ == "__main__":
    raise SystemExit(main())
