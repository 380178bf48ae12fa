"""What `outrider verifier`'s options about the controller come to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import cli, model_folders
from outrider.draft_schedule import DraftSchedule
from verifier_service.settings import VerifierSettings

SettingsOf = Callable[..., VerifierSettings]


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SettingsOf:
    """Runs `outrider verifier MODEL ...` up to the server; the settings it would serve with."""
    model = model_folders.Model(tmp_path, "model")
    served: list[VerifierSettings] = []
    monkeypatch.setattr(model_folders, "resolve_model", lambda *_: model)
    monkeypatch.setattr("verifier_service.server.run", served.append)
    monkeypatch.setenv("OUTRIDER_CACHE_DIR", str(tmp_path / "cache"))

    def run(*options: str) -> VerifierSettings:
        listen = ("--listen", f"unix:{tmp_path / 'socket'}")
        monkeypatch.setattr(sys, "argv", ["outrider", "verifier", "model", *listen, *options])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code in (0, None)
        return served[-1]

    return run


def test_by_default_verification_adapts_and_no_schedule_holds(settings_of: SettingsOf) -> None:
    settings = settings_of()
    assert settings.adaptive
    assert settings.num_speculative_tokens_per_batch_size is None


def test_the_options_reach_the_settings(settings_of: SettingsOf) -> None:
    settings = settings_of(
        "--no-enable-adaptive-verification",
        "--num-speculative-tokens-per-batch-size",
        "[[1, 4, 8], [5, 64, 2]]",
    )
    assert not settings.adaptive
    assert settings.num_speculative_tokens_per_batch_size == DraftSchedule(((1, 4, 8), (5, 64, 2)))
    assert settings_of("--enable-adaptive-verification").adaptive


def test_a_bad_schedule_is_refused_before_the_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--num-speculative-tokens-per-batch-size"
    arguments = ["outrider", "verifier", "/no", "--listen", "unix:x", option, "[[2, 4, 8]]"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert f"{option}: the first range is [2, 4, 8]; one must start at 1" in capsys.readouterr().err


def test_rounds_are_recorded_where_asked_for(settings_of: SettingsOf, tmp_path: Path) -> None:
    assert settings_of().record_rounds is None
    path = tmp_path / "rounds.jsonl.gz"
    assert settings_of("--record-rounds", str(path)).record_rounds == str(path)


def test_a_recording_that_cannot_be_written_is_refused_before_the_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--listen", "unix:x", "--record-rounds", str(tmp_path / "no" / "rounds.jsonl")]
    monkeypatch.setattr(sys, "argv", ["outrider", "verifier", "/no", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "--record-rounds: cannot write" in capsys.readouterr().err
