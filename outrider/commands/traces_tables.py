"""Answers about acceptance as tables for a terminal.

Knows the JSON of docs/evidence.md and rich; asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

# Words for what has no name.
_NONE = "(none)"


def acceptance_table(body: dict[str, Any]) -> Table:
    """One line for each group, and one of all where there are several."""
    table = _table([*body["group_by"]], ["requests", "tokens", "steps", "drafted", "accepted"])
    for name in ("mean length", "rate"):
        table.add_column(name, justify="right")
    rows = body["data"]
    for row in rows:
        names = [_named(name, row["group"][name]) for name in body["group_by"]]
        table.add_row(*names, *_sums(row))
    if len(rows) != 1:
        if rows:
            table.add_section()
        first = ["all", *[""] * (len(body["group_by"]) - 1)] if body["group_by"] else []
        table.add_row(*first, *_sums(body["totals"]))
    return table


def requests_table(body: dict[str, Any]) -> Table:
    """The requests of one page, newest first."""
    table = _table(
        ["started", "request", "model", "workload", "end"],
        ["ms", "tokens", "rounds", "drafted", "accepted", "mean length"],
    )
    table.add_column("proposers")
    for one in body["data"]:
        table.add_row(
            _moment(one["started"]),
            Text(one["request_id"], overflow="fold"),
            one["model"],
            one["workload"],
            one["error"] or one["finish_reason"] or "",
            f"{one['duration_ms']:.0f}",
            str(one["completion_tokens"]),
            str(one["num_rounds"]),
            str(one["num_draft_tokens"]),
            str(one["num_accepted_draft_tokens"]),
            f"{one['mean_acceptance_length']:.2f}",
            " ".join(share["name"] for share in one["proposers"]),
        )
    return table


def request_facts(one: dict[str, Any]) -> Table:
    """Everything about one request but its rounds."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    facts: list[tuple[str, str]] = [
        ("request", one["request_id"]),
        ("trace", f"{one['trace_id']} (span {one['span_id']})"),
        ("started", _moment(one["started"])),
        (
            "took",
            f"{one['duration_ms']:.1f} ms ({one['queue_ms']:.1f} queued, first token after "
            f"{one['first_token_ms']:.1f})",
        ),
        ("model", f"{one['model']} on verifier {one['verifier']}"),
        (
            "asked",
            f"temperature {one['temperature']}, rule {one['rule']}, "
            f"K {one['num_speculative_tokens']}, workload {one['workload'] or _NONE}",
        ),
        ("tokens", f"{one['prompt_tokens']} prompt, {one['completion_tokens']} completion"),
        ("ended", one["error"] or one["finish_reason"] or _NONE),
        (
            "rounds",
            f"{one['num_rounds']}, {one['num_spec_steps']} with drafts: "
            f"{one['num_accepted_draft_tokens']} of {one['num_draft_tokens']} accepted, mean "
            f"acceptance length {one['mean_acceptance_length']:.2f}",
        ),
        ("histogram", " ".join(map(str, one["acceptance_histogram"]))),
        ("times", f"draft wait {one['draft_wait_ms']:.1f} ms, verify {one['verify_ms']:.1f} ms"),
    ]
    facts += [
        (
            f"by {share['name']}",
            f"{share['num_accepted_draft_tokens']} of "
            f"{share['num_draft_tokens']} accepted in {share['num_spec_steps']} steps",
        )
        for share in one["proposers"]
    ]
    facts += [("no drafts", f"{count} rounds: {reason}") for reason, count in one["off"].items()]
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def rounds_table(rounds: Sequence[dict[str, Any]]) -> Table:
    """One line for each round."""
    table = _table([], ["base", "offered", "verified", "accepted", "emitted", "wait ms"])
    table.add_column("verify ms", justify="right")
    for name in ("proposer", "why without drafts"):
        table.add_column(name)
    texts = any("emitted_texts" in round_ for round_ in rounds)
    if texts:
        table.add_column("emitted")
    for round_ in rounds:
        cells = [
            *(str(round_[n]) for n in ("base", "offered", "verified", "accepted", "emitted")),
            f"{round_['draft_wait_ms']:.2f}",
            f"{round_['verify_ms']:.2f}",
            round_["proposer"] + (" (look-ahead)" if round_["lookahead_hit"] else ""),
            round_["off_reason"],
        ]
        if texts:
            cells.append(repr("".join(round_.get("emitted_texts", ()))))
        table.add_row(*map(Text, cells))
    return table


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _sums(row: dict[str, Any]) -> list[str]:
    return [
        str(row["requests"]),
        str(row["completion_tokens"]),
        str(row["num_spec_steps"]),
        str(row["num_draft_tokens"]),
        str(row["num_accepted_draft_tokens"]),
        f"{row['mean_acceptance_length']:.2f}",
        f"{row['draft_acceptance_rate']:.1%}",
    ]


def _named(dimension: str, value: Any) -> Text:
    if value is None or value == "":
        return Text(_NONE)
    if dimension == "time":
        return Text(_moment(value))
    return Text(str(value))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
