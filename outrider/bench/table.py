"""The result as tables in a terminal.

Knows the JSON document's names and how they are called for a reader; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Point = Mapping[str, Any]

TIME_TITLES: Final[Mapping[str, str]] = {
    "ttft": "Time to first token",
    "tpot": "Time per output token, first excluded",
    "itl": "Time between tokens",
    "gap": "Time between chunks",
    "e2el": "End-to-end latency",
}
DEFAULT_TIMES: Final = ("ttft", "tpot", "itl", "e2el")

# (key, title, digits)
_COUNTS: Final = (
    ("completed", "Successful requests", 0),
    ("failed", "Failed requests", 0),
    ("max_concurrent_requests", "Peak concurrent requests", 0),
    ("duration", "Duration (s)", 2),
    ("total_input_tokens", "Input tokens", 0),
    ("total_output_tokens", "Output tokens", 0),
    ("request_throughput", "Requests/s", 2),
    ("request_goodput", "Goodput (requests/s)", 2),
    ("output_throughput", "Output tokens/s", 2),
    ("max_output_tokens_per_s", "Peak output tokens/s", 0),
    ("total_token_throughput", "Total tokens/s", 2),
)
_DRAFTS: Final = (
    ("spec_decode_acceptance_rate", "Acceptance rate (%)", 2),
    ("spec_decode_acceptance_length", "Acceptance length", 2),
    ("spec_decode_num_drafts", "Drafts (steps)", 0),
    ("spec_decode_draft_tokens", "Draft tokens", 0),
    ("spec_decode_accepted_tokens", "Accepted tokens", 0),
)


def point_table(point: Point, times: Sequence[str] = DEFAULT_TIMES) -> Table:
    """One arm beside its baseline: every figure, and the speed-up where one is defined."""
    baseline = point.get("baseline")
    table = Table(title=f"{load_title(point)}: {point['arm']}", title_justify="left")
    table.add_column("")
    table.add_column(point["arm"], justify="right")
    if baseline is not None:
        table.add_column("baseline", justify="right")
        table.add_column("speed-up", justify="right")
    for title, key, digits in _rows(point, times):
        if title and not key:
            table.add_section()
            table.add_row(Text(title, style="bold"))
            continue
        cells = [title, number(point.get(key), digits)]
        if baseline is not None:
            cells += [number(baseline.get(key), digits), _speedup_of(point, key)]
        table.add_row(*cells)
    for position, rates in enumerate(_positions(point)):
        if position == 0:
            table.add_section()
            table.add_row(Text("Per-position acceptance (%), of all steps", style="bold"))
        table.add_row(f"  Position {position}", rates)
    return table


def summary_table(points: Sequence[Point]) -> Table:
    """One line for each arm of each load."""
    table = Table(title="Speed-up against the baseline", title_justify="left")
    for title in ("load", "arm"):
        table.add_column(title)
    for title in (
        "tokens/s",
        "baseline",
        "speed-up",
        "spread",
        "TPOT speed-up",
        "acceptance length",
        "rate (%)",
    ):
        table.add_column(title, justify="right")
    for point in points:
        throughput = ratio_of(point, "output_throughput")
        baseline = point.get("baseline") or {}
        table.add_row(
            load_title(point),
            point["arm"],
            number(point.get("output_throughput"), 1),
            number(baseline.get("output_throughput"), 1),
            number(throughput.get("value"), 2),
            _range(throughput) if throughput and not _single(throughput) else "–",
            number(ratio_of(point, "tpot").get("value"), 2),
            number(point.get("spec_decode_acceptance_length"), 2),
            number(point.get("spec_decode_acceptance_rate"), 1),
        )
    return table


def verdict(point: Point) -> str:
    """The answer in one sentence."""
    open_loop = point.get("request_rate") != "inf" or "ramp_up_strategy" in point
    # At a fixed rate both arms must do the same work in the same time: only latency can differ.
    key, what = ("e2el", "answers") if open_loop else ("output_throughput", "tokens")
    ratio = ratio_of(point, key)
    if not ratio:
        why = "no baseline" if point.get("baseline") is None else "nothing to compare"
        return f"{load_title(point)}, {point['arm']}: {why}, so no speed-up."
    same = ""
    if point["speedup"]["compared_answers"]:
        same = (
            f" {point['speedup']['same_answers']} of {point['speedup']['compared_answers']} "
            "answers have the same text."
        )
    answers = ratio_of(point, "e2el")
    also = ""
    if _single(ratio) and not open_loop and answers:
        also = f" Answers come {answers['value']:.2f} times as fast ({_spread(answers)})."
    return (
        f"{load_title(point)}, {point['arm']}: {what} come {ratio['value']:.2f} times as fast as "
        f"without ({_spread(ratio)}).{also}{same}"
    )


def report(points: Sequence[Point], notes: Sequence[str], times: Sequence[str]) -> RenderableType:
    """Everything for the terminal: tables, verdicts, notes."""
    parts: list[RenderableType] = []
    if len(points) > 1:
        parts.append(summary_table(points))
    else:
        parts += [point_table(point, times) for point in points]
    parts += [Text(verdict(point)) for point in points]
    parts += [Text(f"Note: {note}") for note in notes]
    return Group(*parts)


def all_notes(notes: Sequence[str], points: Sequence[Point]) -> list[str]:
    """`notes` and those of the points, each once."""
    told = dict.fromkeys(notes)
    for point in points:
        told.update(dict.fromkeys(point.get("notes", ())))
    return list(told)


def load_title(point: Point) -> str:
    clients, rate = point.get("max_concurrency"), point.get("request_rate")
    parts = [] if clients is None else [f"{clients} client{'' if clients == 1 else 's'}"]
    if "ramp_up_strategy" in point:
        start, end = point["ramp_up_start_rps"], point["ramp_up_end_rps"]
        parts.append(f"{start:g} to {end:g} requests/s")
    elif rate != "inf":
        parts.append(f"{rate:g} requests/s")
    return ", ".join(parts) or "all at once"


def ratio_of(point: Point, name: str) -> Mapping[str, Any]:
    """The named speed-up with its spread; empty where there is none."""
    return (point.get("speedup") or {}).get(name) or {}


def number(value: object, digits: int) -> str:
    """A figure for a reader; a dash where there is none."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–"


def _rows(point: Point, times: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    for key, title, digits in _COUNTS:
        if key != "request_goodput" or point.get(key) is not None:
            yield title, key, digits
    for name in times:
        keys = [key for key in point if key.endswith(f"_{name}_ms") and not key.startswith("std_")]
        if keys:
            yield f"{TIME_TITLES[name]} (ms)", "", 0
        for key in keys:
            yield f"  {key.split('_')[0].capitalize()} {name.upper()}", key, 2
    if "spec_decode_num_drafts" in point:
        yield "Speculative decoding", "", 0
        for key, title, digits in _DRAFTS:
            yield f"  {title}", key, digits


def _positions(point: Point) -> list[str]:
    rates = point.get("spec_decode_per_position_acceptance_rates") or []
    reached = point.get("spec_decode_per_position_rates_of_reached")
    if reached is None:
        return [f"{100 * rate:.2f}" for rate in rates]
    return [
        f"{100 * rate:.2f} ({100 * own:.2f} of those that reached it)"
        for rate, own in zip(rates, reached, strict=False)
    ]


def _speedup_of(point: Point, key: str) -> str:
    name = {
        "output_throughput": "output_throughput",
        "mean_ttft_ms": "ttft",
        "mean_tpot_ms": "tpot",
        "mean_e2el_ms": "e2el",
    }.get(key)
    ratio = ratio_of(point, name) if name else {}
    return f"{ratio['value']:.2f} ({_range(ratio)})" if ratio else ""


def _single(ratio: Mapping[str, Any]) -> bool:
    """Whether it comes from one unit, which has no spread."""
    return bool(ratio["low"] == ratio["high"])


def _spread(ratio: Mapping[str, Any]) -> str:
    if _single(ratio):
        return str(ratio["spread"])
    return f"{_range(ratio)}; {ratio['spread']}"


def _range(ratio: Mapping[str, Any]) -> str:
    return f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio else "–"
