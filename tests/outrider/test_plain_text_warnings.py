"""From command lines to the lines that say what is dialled across the network in plain text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import cli
from outrider.commands import options, serving
from outrider.errors import InputError
from outrider.model_folders import Model

# The command line, and what of it is sent to others in plain text.
COMMANDS = [
    (("proposer", "--method=ngram", "--listen=unix:p", "--otlp-endpoint=c:1"), ["c:1"]),
    (
        (
            *("verifier", "MODEL", "--listen=unix:v", "--proposer=dns:p:1"),
            *("--proposer=unix:q", "--otlp-endpoint=http://c:1"),
        ),
        ["dns:p:1", "http://c:1"],
    ),
    (
        (
            *("gateway", "--verifier=v:1", "--verifier=127.0.0.1:2", "--port=PORT"),
            *("--otlp-forward=c:1", "--otlp-endpoint=https://c:2"),
        ),
        ["v:1", "c:1"],
    ),
    (
        ("serve", "MODEL", "--port=PORT", "--otlp-endpoint=c:1", "--otlp-forward=d:1"),
        ["c:1", "d:1"],
    ),
]


@pytest.fixture
def lines_of(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    free_port: int,
) -> Callable[..., list[str]]:
    """Runs a command line whose service does not start; its lines about plain text."""
    for module in ("verifier_service", "proposer_service", "gateway"):
        monkeypatch.setattr(f"{module}.server.run", lambda settings: None)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text('{"model_type": "llama"}')
    monkeypatch.setattr(serving, "resolve_model", lambda *_: Model(tmp_path, "m"))

    def refuse(*_: object) -> None:
        raise InputError("nothing is started here")

    monkeypatch.setattr(serving, "plan_services", refuse)
    filled = {"MODEL": str(tmp_path), "--port=PORT": f"--port={free_port}"}

    def run(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *(filled.get(a, a) for a in arguments)])
        with pytest.raises(SystemExit):
            cli.main()
        return [line for line in capfd.readouterr().err.splitlines() if "in plain text" in line]

    return run


@pytest.mark.parametrize(("arguments", "told"), COMMANDS, ids=[c[0][0] for c in COMMANDS])
def test_a_command_says_what_others_can_read(
    arguments: tuple[str, ...], told: list[str], lines_of: Callable[..., list[str]]
) -> None:
    lines = lines_of(*arguments)
    assert len(lines) == len(told)
    for line, address in zip(lines, told, strict=True):
        assert f": {address} is on another machine" in line and "warning" in line
    assert not lines_of(*arguments, "--insecure")


def test_what_serve_has_said_its_children_do_not_say_again(
    tmp_path: Path, lines_of: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "ending_with_parent", lambda *_: contextlib.nullcontext())
    for arguments, _ in COMMANDS[:3]:
        assert not lines_of(*arguments, f"--runtime-dir={tmp_path}")
