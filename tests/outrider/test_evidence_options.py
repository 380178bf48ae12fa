"""What is said of evidence on the command line, and what `serve` makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.evidence.settings import EvidenceSettings
from outrider import cli
from outrider.commands.evidence_options import evidence_settings_of
from outrider.errors import InputError
from outrider.model_folders import Model
from outrider.serve_options import ServeOptions, merge_options
from outrider.serve_plan import plan_services
from outrider.supervisor import Service

RUN = Path("/tmp/run")
OTLP = "unix:/tmp/run/otlp.sock"


def plan(**options: Any) -> dict[str, Service]:
    model = Model(Path("/models/m"), "m")
    return {s.name: s for s in plan_services(ServeOptions(**options), model, RUN)}


def option(service: Service, name: str) -> list[str]:
    return [
        item.removeprefix(f"{name}=") for item in service.command if item.startswith(f"{name}=")
    ]


def test_the_options_become_settings() -> None:
    settings = evidence_settings_of("unix:/run/o.sock", "https://host:4317", "/x.db", 9, "12h")
    assert settings == EvidenceSettings(
        listen="unix:/run/o.sock",
        forward="https://host:4317",
        database="/x.db",
        max_mb=9,
        max_age_s=43_200.0,
    )
    assert evidence_settings_of(None, None, "memory", 512, "30d") == EvidenceSettings()
    assert evidence_settings_of("", "", "memory", 512, "30d") == EvidenceSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--otlp-listen", "nowhere"),
        ("--otlp-forward", "host"),
        ("--evidence-max-mb", "3"),
        ("--evidence-max-age", "30"),
        ("--evidence-max-age", "1s"),
        ("--evidence-db", ""),
    ],
)
def test_a_wrong_one_is_one_line(
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["outrider", "gateway", "--verifier", "unix:/nowhere", f"{name}={value}"]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {name}: ")
    assert len(err.splitlines()) == 1


def test_serve_keeps_evidence_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DATA_DIR", "/data")
    services = plan()
    gateway = services.pop("gateway")
    assert option(gateway, "--otlp-listen") == [OTLP]
    assert option(gateway, "--otlp-endpoint") == []
    assert option(gateway, "--evidence-db") == ["/data/evidence.duckdb"]
    for service in services.values():
        assert option(service, "--otlp-endpoint") == [OTLP]


def test_serves_options_are_the_gateways() -> None:
    gateway = plan(
        evidence_db="/e.db", evidence_max_mb=7, evidence_max_age="2d", otlp_forward="host:4317"
    )["gateway"]
    assert option(gateway, "--evidence-db") == ["/e.db"]
    assert option(gateway, "--evidence-max-mb") == ["7"]
    assert option(gateway, "--evidence-max-age") == ["2d"]
    assert option(gateway, "--otlp-forward") == ["host:4317"]


@pytest.mark.parametrize("options", [{"evidence_db": "none"}, {"trace_level": "none"}])
def test_what_nobody_wants_is_not_sent(options: dict[str, Any]) -> None:
    for service in plan(**options).values():
        assert option(service, "--otlp-listen") == []
        assert option(service, "--otlp-endpoint") == []


def test_what_is_only_passed_on_is_still_received() -> None:
    services = plan(evidence_db="none", otlp_forward="host:4317")
    assert option(services["gateway"], "--otlp-listen") == [OTLP]
    assert option(services["verifier"], "--otlp-endpoint") == [OTLP]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evidence_max_mb", 3),
        ("evidence_max_age", "soon"),
        ("otlp_forward", "host"),
        ("evidence_db", ""),
    ],
)
def test_serve_refuses_what_is_wrong(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^--{name.replace('_', '-')}: "):
        merge_options({"model": "m", name: value}, None)
