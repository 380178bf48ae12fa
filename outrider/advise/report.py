"""What was found, as a JSON object and as tables for a terminal.

Knows the outcome's parts; computes nothing that they do not say.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.acceptance import speculative_decoding_metrics
from outrider.advise.advice import Choice
from outrider.advise.costs import ASSUMED_ROW_COST
from outrider.advise.methods import Replayed
from outrider.advise.run import Outcome
from outrider.config import SpeculativeConfig


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything, under vLLM's names where it has them."""
    counts, cost, advice = outcome.counts, outcome.cost, outcome.advice
    return {
        "traffic": {
            "requests": counts.requests,
            "prompt_tokens": counts.prompt_tokens,
            "output_tokens": counts.output_tokens,
            "generated_requests": counts.generated,
            "skipped_lines": counts.skipped,
            "first_skipped": counts.first_skipped or None,
        },
        "step_cost": {
            "source": cost.source,
            "milliseconds": {str(rows): ms for rows, ms in sorted(cost.milliseconds.items())},
            "row_cost": cost.row_cost,
            "draft_wait_ms": outcome.draft_wait_ms,
        },
        "methods": [_method(outcome, replayed) for replayed in outcome.replayed],
        "advice": {
            "worth_it": advice.worth_it,
            "sentence": advice.sentence,
            "hints": list(advice.hints),
            "best": {str(n): _reference(choice, n) for n, choice in advice.best.items()},
            "speculative_config": speculative_config(advice.recommended),
        },
    }


def speculative_config(choice: Choice) -> dict[str, object]:
    """What `--speculative-config` takes for this choice; suffix keys at defaults are left out."""
    fields = SpeculativeConfig.model_fields
    return {
        "method": choice.replayed.method,
        "num_speculative_tokens": choice.tally.k,
        **{
            key: value
            for key, value in choice.replayed.config.items()
            # One bound of an n-gram window alone would mean that the other equals it.
            if key.startswith("prompt_lookup") or fields[key].default != value
        },
    }


def show(outcome: Outcome, console: Console) -> None:
    """Tables, then the advice."""
    counts = outcome.counts
    console.print(
        f"{counts.requests} requests, {counts.prompt_tokens} prompt and {counts.output_tokens} "
        f"output tokens{f', {counts.generated} generated' if counts.generated else ''}"
        f"{f'; {counts.skipped} bad lines skipped' if counts.skipped else ''}"
    )
    console.print(_summary(outcome))
    best = outcome.advice.recommended
    console.print(f"{best.replayed.name}, K = {best.tally.k}, by position")
    console.print(_positions(best))
    console.print(_cost_line(outcome), highlight=False)
    console.print(f"\n{outcome.advice.sentence}", style="bold", highlight=False)
    for hint in outcome.advice.hints:
        console.print(hint, highlight=False)
    if outcome.advice.worth_it and not best.replayed.address:
        config = json.dumps(speculative_config(best))
        console.print(f"--speculative-config '{config}'", highlight=False, soft_wrap=True)


def _summary(outcome: Outcome) -> Table:
    table = Table()
    table.add_column("method", no_wrap=True)
    for name in ("K", "acceptance\nlength", "accepted", "steps with\na draft", "tokens\na step"):
        table.add_column(name, justify="right")
    sequences = list(outcome.advice.best)
    for n in sequences:
        table.add_column(f"speed\n× {n}", justify="right")
    last = None
    for choice in outcome.choices:
        tally, replayed = choice.tally, choice.replayed
        if last is not None and replayed is not last:
            table.add_section()
        table.add_row(
            replayed.name if replayed is not last else "",
            str(tally.k),
            f"{tally.acceptance.mean_acceptance_length:.2f}",
            f"{choice.acceptance_rate:.0%}",
            f"{tally.draft_share:.0%}",
            f"{tally.tokens_per_round:.2f}",
            *(_speedup(outcome, choice, n) for n in sequences),
        )
        last = replayed
    return table


def _speedup(outcome: Outcome, choice: Choice, sequences: int) -> str:
    best = choice is outcome.advice.best[sequences]
    text = f"{choice.speedups[sequences]:.2f}"
    return f"[bold]* {text}[/bold]" if best else text


def _positions(choice: Choice) -> Table:
    """Accepted by position, over the steps that carried a draft there."""
    table = Table()
    rates = choice.tally.acceptance.per_position_rates()
    table.add_column("position")
    for position in range(1, len(rates) + 1):
        table.add_column(str(position), justify="right")
    table.add_row("accepted", *(f"{rate:.0%}" for rate in rates))
    table.add_row("drafts", *map(str, choice.tally.acceptance.proposed_per_position))
    return table


def _cost_line(outcome: Outcome) -> str:
    cost = outcome.cost
    wait = f", and {outcome.draft_wait_ms:g} ms for drafts" if outcome.draft_wait_ms else ""
    if cost.assumed:
        return (
            f"Cost of verifying: unknown; each row is taken as {ASSUMED_ROW_COST:.0%} of a step of "
            "one row. --step-cost or --url gives the real one."
        )
    if cost.row_cost is not None:
        return f"Cost of verifying: as given, {cost.row_cost:.1%} of a step for each row{wait}."
    known = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in sorted(cost.milliseconds.items()))
    most = max(n * (choice.tally.k + 1) for choice in outcome.choices for n in outcome.advice.best)
    beyond = ""
    if cost.last_row is not None and most > cost.last_row:
        beyond = f"; beyond {cost.last_row} rows it goes on as it last rose"
    source = "as the verifier measured it of late" if cost.source == "verifier" else "as given"
    return f"Cost of verifying, {source}, ms by rows: {known}{beyond}{wait}."


def _reference(choice: Choice, sequences: int) -> dict[str, object]:
    return {
        "name": choice.replayed.name,
        "method": choice.replayed.method,
        "num_speculative_tokens": choice.tally.k,
        "speedup": round(choice.speedups[sequences], 4),
    }


def _method(outcome: Outcome, replayed: Replayed) -> dict[str, Any]:
    return {
        "name": replayed.name,
        "method": replayed.method,
        "config": replayed.config,
        "live": bool(replayed.address),
        "address": replayed.address or None,
        "results": [_result(choice) for choice in outcome.choices if choice.replayed is replayed],
    }


def _result(choice: Choice) -> dict[str, Any]:
    tally = choice.tally
    return {
        "num_speculative_tokens": tally.k,
        "speculative_decoding": speculative_decoding_metrics(tally.acceptance.to_proto()),
        "accepted_per_position": tally.acceptance.accepted_per_position,
        "proposed_per_position": tally.acceptance.proposed_per_position,
        "acceptance_rate_per_position": tally.acceptance.per_position_rates(),
        "decode_steps": tally.rounds,
        "decoded_tokens": tally.emitted,
        "steps_by_drafted": tally.by_drafted,
        "share_of_steps_with_draft": tally.draft_share,
        "tokens_per_step": tally.tokens_per_round,
        "speedup": {str(n): round(value, 4) for n, value in choice.speedups.items()},
    }
