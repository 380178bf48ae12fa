"""Telemetry's options on every subcommand, in serve's file, and from serve to its parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from outrider.cli import app
from outrider.commands.trace_options import trace_settings_of
from outrider.errors import InputError
from outrider.model_folders import Model
from outrider.serve_options import ServeOptions, merge_options
from outrider.serve_plan import plan_services
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings

OPTIONS = ("--otlp-endpoint", "--trace-level", "--trace-sample-ratio", "--trace-content")
RUN = Path("/tmp/run")


def told(**options: object) -> dict[str, list[str]]:
    """Each service's telemetry options as `serve` gives them."""
    services = plan_services(ServeOptions(**options), Model(Path("/m"), "m"), RUN)
    return {
        service.name: [item for item in service.command if item.startswith(OPTIONS)]
        for service in services
    }


@pytest.mark.parametrize("name", ["gateway", "verifier", "proposer", "serve"])
def test_every_service_has_them(name: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    known = {option for parameter in commands[name].params for option in parameter.opts}
    assert set(OPTIONS) <= known


def test_serve_tells_its_gateway_by_default() -> None:
    sent = ["--otlp-endpoint=unix:/tmp/run/otlp.sock", "--trace-level=summary"]
    ratio = "--trace-sample-ratio=1.0"
    assert told() == {
        "ngram": [*sent, ratio],
        "suffix": [*sent, ratio],
        "verifier": [*sent, ratio],
        "gateway": [sent[1], ratio],
    }


def test_serve_tells_whom_it_is_told_to() -> None:
    everywhere = [
        "--otlp-endpoint=collector:4317",
        "--trace-level=detailed",
        "--trace-sample-ratio=0.5",
        "--trace-content",
    ]
    given = told(
        otlp_endpoint="collector:4317",
        trace_level="detailed",
        trace_sample_ratio=0.5,
        trace_content=True,
    )
    assert all(options == everywhere for options in given.values())


def test_none_is_none_everywhere() -> None:
    assert set(map(tuple, told(trace_level="none").values())) == {("--trace-level=none",)}


def test_the_file_has_them_too(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "otlp-endpoint: https://collector:4317\ntrace-level: detailed\n"
        "trace-sample-ratio: 1\ntrace-content: true\n"
    )
    trace = merge_options({}, file).trace("unix:/x")
    assert trace == TraceSettings("https://collector:4317", TraceLevel.DETAILED, 1.0, content=True)
    assert merge_options({"trace_sample_ratio": 0.25}, file).trace("").sample_ratio == 0.25


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("otlp-endpoint: nowhere", "otlp_endpoint: 'nowhere': 'nowhere' is not an address"),
        ("trace-level: all", "trace_level: 'all': input should be 'none', 'summary' or 'detailed'"),
        ("trace-sample-ratio: 2", "trace_sample_ratio: 2: input should be less than"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(line)
    with pytest.raises(InputError) as caught:
        merge_options({}, file)
    assert message in str(caught.value)


def test_texts_need_a_level_that_tells_rounds() -> None:
    with pytest.raises(InputError, match="--trace-content"):
        merge_options({"trace_content": True}, None)


def test_settings_of_a_subcommand() -> None:
    assert trace_settings_of(None, "summary", 1.0, False) == TraceSettings()
    assert trace_settings_of("c:1", "detailed", 0.5, True) == TraceSettings(
        "c:1", TraceLevel.DETAILED, 0.5, content=True
    )
    with pytest.raises(InputError, match="--otlp-endpoint: 'c' is not an address"):
        trace_settings_of("c", "summary", 1.0, False)
