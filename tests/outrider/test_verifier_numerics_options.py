"""What `outrider verifier`'s options about weights and rounding come to."""

from __future__ import annotations

import sys

import pytest

from outrider import cli
from tests.outrider.test_verifier_controller_options import SettingsOf, settings_of
from verifier_service.engines.quantized import NAMES

__all__ = ["settings_of"]


def test_by_default_nothing_is_rounded_and_the_fastest_sums_are_taken(
    settings_of: SettingsOf,
) -> None:
    settings = settings_of()
    assert settings.quantization == "none"
    assert not settings.batch_invariant


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_of_the_engine_can_be_asked_for(settings_of: SettingsOf, name: str) -> None:
    assert settings_of("--quantization", name).quantization == name


def test_batch_invariance_can_be_asked_for(settings_of: SettingsOf) -> None:
    assert settings_of("--batch-invariant").batch_invariant


def test_an_unknown_scheme_is_refused_before_the_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["outrider", "verifier", "/no", "--listen", "unix:x", "--quantization", "awq"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "--quantization: 'awq' is not one of none, int8, fp8" in capsys.readouterr().err
