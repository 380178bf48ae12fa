from __future__ import annotations

import subprocess
import sys

import pytest

from outrider.errors import InputError
from outrider.starting_telemetry import start_telemetry
from outrider.telemetry import TraceLevel
from outrider.trace_settings import UNTRACED, TraceSettings, parse_endpoint, parse_level


@pytest.mark.parametrize(
    "endpoint",
    ["unix:/run/o.sock", "collector:4317", "[::1]:4317", "http://collector:4317", "https://c:443"],
)
def test_endpoints(endpoint: str) -> None:
    assert parse_endpoint(endpoint) == endpoint


def test_a_slash_behind_a_url_is_not_part_of_it() -> None:
    assert parse_endpoint("http://collector:4317/") == "http://collector:4317"


@pytest.mark.parametrize(
    "endpoint", ["", "collector", "ftp://c:1", "http://c:4317/v1/traces", "c:0"]
)
def test_an_endpoint_that_is_none_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(InputError, match="--otlp-endpoint"):
        parse_endpoint(endpoint)


def test_levels() -> None:
    assert [parse_level(level.value) for level in TraceLevel] == list(TraceLevel)
    with pytest.raises(InputError, match="--trace-level: 'all' is not one of none, summary, det"):
        parse_level("all")


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(InputError, match=r"--trace-sample-ratio: .* is not in 0\.\.1"):
        TraceSettings("x:1", sample_ratio=ratio)


@pytest.mark.parametrize("level", [TraceLevel.NONE, TraceLevel.SUMMARY])
def test_content_needs_a_level_that_has_a_place_for_it(level: TraceLevel) -> None:
    with pytest.raises(InputError, match=r"--trace-content: .*--trace-level detailed"):
        TraceSettings("x:1", level, content=True)


def test_arguments_mean_the_same_settings() -> None:
    settings = TraceSettings("unix:/s", TraceLevel.DETAILED, 0.25, content=True)
    given = dict(item.partition("=")[::2] for item in settings.arguments())
    assert given == {
        "--otlp-endpoint": "unix:/s",
        "--trace-level": "detailed",
        "--trace-sample-ratio": "0.25",
        "--trace-content": "",
    }
    assert TraceSettings("unix:/s", TraceLevel.NONE).arguments() == ["--trace-level=none"]


@pytest.mark.parametrize("settings", [UNTRACED, TraceSettings("x:1", TraceLevel.NONE)])
def test_nothing_is_started_where_nothing_is_wanted(settings: TraceSettings) -> None:
    assert not settings.enabled
    assert start_telemetry(settings, "service", "instance") is None


def test_a_process_without_telemetry_does_not_import_it() -> None:
    """The gateway and a proposer, whose start and memory are counted in milliseconds and MiB."""
    code = (
        "import sys, gateway.server, proposer_service.server, outrider.starting_telemetry\n"
        "from outrider.trace_settings import UNTRACED\n"
        "assert outrider.starting_telemetry.start_telemetry(UNTRACED, 's', 'i') is None\n"
        "bad = [m for m in sys.modules if m.startswith('opentelemetry.sdk') or m == 'torch']\n"
        "assert not bad, bad[:3]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
