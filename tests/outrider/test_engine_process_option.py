"""`--engine-process`: from each command line to the settings it means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider import cli, model_folders
from outrider.errors import InputError
from outrider.llm_options import check_options
from outrider.model_folders import Model
from outrider.serve_options import ServeOptions, merge_options
from outrider.serve_plan import plan_services
from verifier_service.settings import VerifierSettings

GIVEN = [("--engine-process", True), ("--no-engine-process", False)]


@pytest.mark.parametrize(("option", "means"), [*GIVEN, ("", None)])
def test_the_verifiers_option_is_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, means: bool | None
) -> None:
    served: list[VerifierSettings] = []
    monkeypatch.setattr(model_folders, "resolve_model", lambda *_: Model(tmp_path, "model"))
    monkeypatch.setattr("verifier_service.server.run", served.append)
    listen = ("--listen", f"unix:{tmp_path / 'socket'}")
    words = ["outrider", "verifier", "model", *listen, *([option] if option else [])]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        cli.main()
    assert served[-1].engine_process is means


@pytest.mark.parametrize(("option", "means"), GIVEN)
def test_serve_hands_it_on_as_it_was_given(option: str, means: bool) -> None:
    def command(value: bool | None) -> set[str]:
        services = plan_services(
            ServeOptions(engine_process=value), Model(Path("/m"), "m"), Path("/tmp/run")
        )
        (verifier,) = (service for service in services if service.name == "verifier")
        return set(verifier.command)

    assert option in command(means)
    assert not command(None) & {name for name, _ in GIVEN}


@pytest.mark.parametrize(("option", "means"), GIVEN)
def test_serves_command_line_wins_over_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, means: bool
) -> None:
    served: list[ServeOptions] = []
    monkeypatch.setattr(
        "outrider.commands.serving.serve_until_stopped", lambda options, _: served.append(options)
    )
    file = tmp_path / "serve.yaml"
    file.write_text(f"model: m\nengine-process: {str(not means).lower()}\n")
    for words, expected in ((["--config", str(file)], not means), ([option], means)):
        monkeypatch.setattr(sys, "argv", ["outrider", "serve", "m", *words])
        with pytest.raises(SystemExit):
            cli.main()
        assert served[-1].engine_process is expected


@pytest.mark.parametrize("value", ["yes", 1])
def test_another_value_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match="--engine-process: "):
        merge_options({"model": "m", "engine_process": value}, None)


def test_the_offline_engine_stays_where_its_caller_is() -> None:
    with pytest.raises(InputError, match=r"engine_process: outrider\.LLM has no such option"):
        check_options({"engine_process": True})
