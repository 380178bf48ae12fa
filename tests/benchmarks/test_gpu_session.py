from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bars import NGRAM, PLAIN
from benchmarks.gpu_bars import VLLM_PLAIN
from benchmarks.gpu_session import CUT_OFF, attempts, end_process, parse, read_state, run, run_part
from benchmarks.gpu_session_parts import parts
from tests.benchmarks.gpu_fakes import item, report

QUIET = Console(quiet=True)


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    given = ["--model", "m", "--data", "d", "--out", str(tmp_path), "--peer-python", "py"]
    return parse([*given, *arguments])


class Runs:
    """Notes what is run and when; each part takes `seconds` and ends with its code."""

    def __init__(self, tmp_path: Path, seconds: float = 100.0, **codes: int) -> None:
        self.ran: list[str] = []
        self.limits: list[float] = []
        self.commands: list[Sequence[str]] = []
        self.now = 0.0
        self._out, self._seconds, self._codes = tmp_path, seconds, codes

    def __call__(self, command: Sequence[str], log: Path, seconds: float) -> int:
        name = log.stem.removeprefix("session-")
        self.ran.append(name)
        self.limits.append(seconds)
        self.commands.append(command)
        self.now += min(self._seconds, seconds)
        if name in ("ours", "vllm"):
            written = command[list(command).index("--name") + 1]
            rows = {"ours": (PLAIN, NGRAM), "vllm": (VLLM_PLAIN,)}[name]
            document = report(*(item(row, 100.0) for row in rows)).to_json()
            (self._out / f"{written}.json").write_text(json.dumps(document))
        return self._codes.get(name, 0)

    def clock(self) -> float:
        return self.now


def test_the_most_telling_parts_come_first_and_all_are_done(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert run(options(tmp_path), QUIET, runs, runs.clock) is True
    assert runs.ran == [
        "engine",
        "ours",
        "vllm",
        "variants",
        "trace",
        "churn",
        "uncaptured",
        "every-draft",
        "llm",
    ]
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["rows"] == [PLAIN, NGRAM, VLLM_PLAIN]
    assert any(bar["verdict"] == "met" for bar in document["bars"])


def test_a_session_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = Runs(tmp_path, vllm=CUT_OFF)
    assert run(options(tmp_path, "--minutes", "5"), QUIET, first, first.clock) is False
    assert first.ran == ["engine", "ours", "vllm"]
    again = Runs(tmp_path)
    assert run(options(tmp_path), QUIET, again, again.clock) is True
    assert again.ran == ["vllm", "variants", "trace", "churn", "uncaptured", "every-draft", "llm"]
    # A second attempt does not overwrite what the first one had.
    assert [path.name for path in attempts(tmp_path, "vllm")] == ["vllm-1.json", "vllm-2.json"]
    assert read_state(tmp_path / "session.json")["vllm"].attempts == 2


def test_what_is_done_again_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--parts", "ours", "--again")
    for _ in range(2):
        runs = Runs(tmp_path)
        assert run(chosen, QUIET, runs, runs.clock) is True
        assert runs.ran == ["ours"]
    assert [path.name for path in attempts(tmp_path, "ours")] == ["ours-1.json", "ours-2.json"]


def test_no_part_goes_on_longer_than_the_session(tmp_path: Path) -> None:
    runs = Runs(tmp_path, seconds=1000.0)
    run(options(tmp_path, "--minutes", "6"), QUIET, runs, runs.clock)
    assert runs.limits == [200, 160]


def test_a_part_that_fails_does_not_end_the_others_but_a_missing_model_does(tmp_path: Path) -> None:
    runs = Runs(tmp_path, engine=1)
    assert run(options(tmp_path), QUIET, runs, runs.clock) is False
    assert len(runs.ran) == 9
    chosen = options(tmp_path / "x", "--gguf", "g", "--models", "ms", "--padding", "p.py")
    runs = Runs(tmp_path / "x", model=1)
    assert run(chosen, QUIET, runs, runs.clock) is False
    assert runs.ran == ["model"]


def test_what_is_made_here_is_what_is_measured(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--gguf", "g", "--models", "ms", "--padding", "p.py")
    model, engine = parts(chosen)[:2]
    assert model.command(1)[1:3] == ["-m", "benchmarks.gpu_checkpoints"]
    assert str(Path("ms/big")) in engine.command(1)


def test_the_small_model_drafts_for_the_big_one_where_there_are_both(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--gguf", "g", "--models", "ms", "--padding", "p.py")
    command = {part.name: part for part in parts(chosen)}["draft-model"].command(1)
    (config,) = json.loads(command[command.index("--speculative-config") + 1])
    assert config["method"] == "draft_model"
    assert config["model"] == str(Path("ms/small"))
    assert "draft-model" not in [part.name for part in parts(options(tmp_path))]


def test_reports_of_different_cards_are_left_apart(tmp_path: Path) -> None:
    (tmp_path / "ours-7.json").write_text(json.dumps(report(item(PLAIN, 1), gpu="A").to_json()))
    runs = Runs(tmp_path)
    run(options(tmp_path, "--parts", "ours"), QUIET, runs, runs.clock)
    assert not (tmp_path / "gpu.json").exists()
    assert (tmp_path / "ours-1.json").exists()


def test_ceilings_are_told_once_the_engine_was_measured(tmp_path: Path) -> None:
    def given() -> list[str]:
        return {part.name: part for part in parts(options(tmp_path))}["ours"].command(1)

    assert "--engine-table" not in given()
    (tmp_path / "gpu_engine.json").write_text("{}")
    assert "--engine-table" in given()


def test_every_command_is_one_that_its_benchmark_takes(tmp_path: Path) -> None:
    from benchmarks import gpu_engine, gpu_llm_smoke, gpu_options, gpu_trace

    parsers = {
        "gpu": gpu_options.parse,
        "gpu_engine": gpu_engine.parse,
        "gpu_trace": gpu_trace.parse,
        "gpu_llm_smoke": gpu_llm_smoke.parse,
    }
    chosen = (), ("--quick", "--device", "cpu"), ("--chrome", "c", "--peer-env", "e")
    for arguments in chosen:
        for part in parts(options(tmp_path, *arguments)):
            _, _, module, *given = part.command(1)
            parsers[module.removeprefix("benchmarks.")](given)


def test_a_part_is_told_to_end_and_what_it_started_ends_too() -> None:
    script = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "try:\n    print(child.pid, flush=True)\n    child.wait()\n"
        "except KeyboardInterrupt:\n    print('ended', flush=True)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        end_process(process)
        # Everybody who could write is gone: the child, too.
        assert process.stdout.read() == b"ended\n"
    deadline = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_part_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert run_part(command, tmp_path / "log", 0.0) == CUT_OFF


def test_an_exit_code_is_the_parts_own(tmp_path: Path) -> None:
    assert run_part([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", 60.0) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "all"], "'all' is not one of engine, ours"),
        (["--gguf", "g"], "--gguf needs --models"),
    ],
)
def test_bad_options_are_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(tmp_path, *arguments)
    assert said in capsys.readouterr().err
