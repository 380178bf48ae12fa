"""docs/telemetry.md tells every name of outrider/telemetry.py, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider import span_queue, telemetry, tracing
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from verifier_service import tracing as verifier_tracing

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
NAMES = {
    constant: value
    for constant, value in vars(telemetry).items()
    if constant.isupper() and isinstance(value, str)
}
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^##+ (.*?)\n(.*?)(?=^## |^### |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


def named(text: str) -> set[str]:
    """The names of attributes, spans, events and metrics in `text`."""
    found = re.findall(r"`((?:speculation|gen_ai|error|http)\.[a-z_.]+)`", text)
    return set(found)


@pytest.mark.parametrize("constant", sorted(NAMES))
def test_every_name_is_told(constant: str) -> None:
    assert f"`{NAMES[constant]}`" in PAGE


def test_no_other_name_is_told() -> None:
    assert named(PAGE) <= set(NAMES.values())


def test_no_two_names_are_one_but_where_a_metric_is_an_attributes_sum() -> None:
    attributes = [v for c, v in NAMES.items() if not c.startswith("METRIC_")]
    metrics = [v for c, v in NAMES.items() if c.startswith("METRIC_")]
    assert len(set(attributes)) == len(attributes)
    assert len(set(metrics)) == len(metrics)


def test_the_metrics_table_has_all_metrics() -> None:
    metrics = {v for c, v in NAMES.items() if c.startswith("METRIC_")}
    assert metrics <= named(SECTIONS["Metrics"])


def test_levels_and_defaults() -> None:
    options = SECTIONS["Turning it on"]
    for level in TraceLevel:
        assert f"`{level.value}`" in options
    assert f"| `--trace-level` | `{TraceSettings().level.value}` |" in options
    assert f"| `--trace-sample-ratio` | {TraceSettings().sample_ratio:g} |" in options


def test_limits() -> None:
    assert f"first {verifier_tracing.MAX_ROUNDS:,} rounds" in PAGE
    assert f"{span_queue.MAX_SPANS:,} spans wait" in PAGE
    assert f"{span_queue.MAX_QUEUED:,} spans and events" in " ".join(PAGE.split())
    assert verifier_tracing.MAX_ROUNDS < tracing.MAX_EVENTS


def told_in(section: str) -> set[str]:
    """The first column of a section's table."""
    rows = [line for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return named("\n".join(row.split(" | ")[0] for row in rows))


REQUEST = "`speculation.request`: the verifier's span"
GATEWAY = "`{operation} {model}`: the gateway's span"
PROPOSE = "`speculation.propose`: a proposer's span"


def test_sections_have_the_attributes_that_are_sent() -> None:
    """What the tests of each service see on its spans is in that span's own table."""
    assert {telemetry.STEPS, telemetry.OFF_ROUNDS, telemetry.ERROR_TYPE} <= told_in(REQUEST)
    assert {telemetry.HTTP_STATUS, telemetry.CHOICE_COUNT} <= told_in(GATEWAY)
    assert telemetry.STEPS not in told_in(GATEWAY)
    assert told_in(PROPOSE) >= {telemetry.PROPOSE_BLOCKS, telemetry.PROPOSE_DRAFT_NS}
