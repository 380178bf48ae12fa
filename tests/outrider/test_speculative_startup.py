"""From a command line to what a process runs with, and the lines that say so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import cli
from outrider.draft_schedule import DraftSchedule
from verifier_service.proposer_expectation import ExpectedProposer

Run = Callable[..., tuple[int, str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the names of a model's files."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line whose service does not start: exit code, stderr and its settings."""
    given: list[Any] = []
    monkeypatch.setattr("verifier_service.server.run", given.append)
    monkeypatch.setattr("proposer_service.server.run", given.append)

    def run(*arguments: str) -> tuple[int, str, Any]:
        given.clear()
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0), capsys.readouterr().err, (given or [None])[0]

    return run


VERIFIER = ("--listen=unix:v", "--proposer=unix:a", "--proposer=unix:b")


def test_a_verifier_runs_with_what_its_config_says(run: Run, model: Path) -> None:
    shared = {
        "rejection_sample_method": "block",
        "num_speculative_tokens_per_batch_size": [[1, 8, 2], [9, 64, 0]],
        "enable_adaptive_verification": False,
    }
    config = [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, **shared},
        {"method": "suffix", **shared},
    ]
    code, err, settings = run("verifier", str(model), *VERIFIER, "-sc", json.dumps(config))
    assert code == 0
    assert settings.num_speculative_tokens == 24
    assert settings.rejection_rule.value == "block"
    assert settings.num_speculative_tokens_per_batch_size == DraftSchedule(((1, 8, 2), (9, 64, 0)))
    assert settings.adaptive is False
    assert settings.expected_proposers == (
        ExpectedProposer("ngram", 3, {"prompt_lookup_max": 4, "prompt_lookup_min": 4}),
        ExpectedProposer("suffix", 24, {}),
    )
    lines = [line for line in err.splitlines() if "SpeculativeConfig(" in line]
    assert len(lines) == 2
    assert "SpeculativeConfig(method='ngram', num_speculative_tokens=3, " in lines[0]
    assert "is what the proposer at unix:a must be" in lines[0]
    assert "SpeculativeConfig(method='suffix', num_speculative_tokens=24, " in lines[1]
    assert "unix:b" in lines[1]


def test_a_verifier_without_a_config_takes_any_proposer(run: Run, model: Path) -> None:
    _, err, settings = run("verifier", str(model), *VERIFIER)
    assert (settings.num_speculative_tokens, settings.expected_proposers) == (8, ())
    assert (settings.adaptive, settings.rejection_rule.value) == (True, "coupled")
    assert "SpeculativeConfig" not in err
    _, _, settings = run("verifier", str(model), *VERIFIER, "--spec-tokens=3")
    assert (settings.num_speculative_tokens, settings.expected_proposers) == (3, ())
    _, _, settings = run("verifier", str(model), "--listen=unix:v")
    assert settings.num_speculative_tokens == 0


def test_a_verifier_runs_with_what_its_file_says(run: Run, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text(
        f"model: {model}\nlisten: unix:v\nproposer: unix:a\nmax-num-seqs: 8\nno-compile: true\n"
        "enable-prefix-caching: false\nprefill-stall-ms: 20\n"
        "speculative-config:\n  method: ngram\n  num-speculative-tokens: 4\n"
        "  num-speculative-tokens-per-batch-size: [[1, 4, 2]]\n"
    )
    code, _, settings = run("verifier", "--config", str(file), "--max-num-seqs", "4")
    assert code == 0
    assert settings.model == str(model)
    assert settings.proposers == ("unix:a",)
    assert (settings.max_num_seqs, settings.compile, settings.prefill_stall_ms) == (4, False, 20)
    assert settings.enable_prefix_caching is False
    assert settings.num_speculative_tokens == 4
    assert settings.num_speculative_tokens_per_batch_size == DraftSchedule(((1, 4, 2),))


def test_a_proposer_says_what_it_heeds(run: Run) -> None:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 3,
        "rejection_sample_method": "block",
    }
    code, err, settings = run("proposer", "--listen=unix:p", "-sc", json.dumps(config))
    assert code == 0
    assert (settings.method, settings.max_draft_tokens, settings.prompt_lookup_min) == (
        "ngram",
        5,
        3,
    )
    assert (
        "SpeculativeConfig(method='ngram', num_speculative_tokens=5, prompt_lookup_max=3, "
        "prompt_lookup_min=3)"
    ) in err
    assert "rejection_sample_method is the verifier's to heed" in err


@pytest.mark.parametrize("command", [("serve",), ("verifier", "--listen=unix:v")])
def test_a_drafter_is_no_target(
    run: Run, model: Path, command: tuple[str, ...], free_port: int
) -> None:
    verifier = {"name_or_path": "org/target"}
    config = {
        "model_type": "llama",
        "speculators_config": {"algorithm": "eagle3", "verifier": verifier},
    }
    (model / "config.json").write_text(json.dumps(config))
    port = (f"--port={free_port}",) if command == ("serve",) else ()
    code, err, settings = run(*command, str(model), *port)
    assert (code, settings) == (2, None)
    assert "is a drafter of the speculators library (eagle3), not a target" in err
    assert err.endswith("; serve org/target itself\n")


def test_a_verifier_expects_a_draft_model_and_waits_for_it(run: Run, model: Path) -> None:
    entry = {"model": "org/draft", "num_speculative_tokens": 3, "quantization": "int8"}
    words = ("verifier", str(model), "--listen=unix:v", "--proposer=unix:a")
    code, err, settings = run(*words, "-sc", json.dumps(entry))
    assert code == 0
    assert "SpeculativeConfig(method='draft_model', model='org/draft', num_spec" in err
    options = {"model": "org/draft", "quantization": "int8"}
    assert settings.expected_proposers == (ExpectedProposer("draft_model", 3, options),)
    assert settings.draft_deadline_ms == 1000
    assert run(*words, "--spec-method", "suffix")[2].draft_deadline_ms == 10
    assert run(*words)[2].draft_deadline_ms == 10
    given = run(*words, "-sc", json.dumps(entry), "--draft-deadline-ms=7")
    assert given[2].draft_deadline_ms == 7
