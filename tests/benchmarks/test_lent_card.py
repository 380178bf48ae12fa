"""What is sent to a machine with a card that is lent; what is queued there runs in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

from benchmarks.lent_card_wheels import TRITON, needed

SCRIPT = Path(__file__).parents[2] / "benchmarks/lent_card.sh"
# Stands for Python there: it says what it was asked to run, and fails the first time.
PYTHON = """#!/bin/bash
echo "asked: $*" >> "$HOLD/asked"
echo "$PYTHONPATH" >> "$HOLD/paths"
mkdir -p "$HOLD/out/code"
echo report > "$HOLD/out/report.md"
echo junk > "$HOLD/out/code/junk"
[ -f "$HOLD/failed" ] || { touch "$HOLD/failed"; exit 1; }
"""


def test_what_outrider_needs_is_sent_but_for_what_is_there() -> None:
    found = needed("outrider")
    assert found["torch"] == metadata.version("torch").partition("+")[0]
    # What is installed here may be another one, for tests.
    assert found["triton"] == TRITON[found["torch"]]
    assert {"grpcio", "protobuf", "pydantic", "pydantic-core", "gguf"} <= found.keys()
    assert not {"numpy", "transformers", "outrider"} & found.keys()
    assert "pytest" not in found


def lent(
    hold: Path, *arguments: str, out: Path | None = None, code: int = 0, script: Path = SCRIPT
) -> str:
    # As in a shell where the environment is activated.
    path = f"{hold}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "HOLD": str(hold), "PATH": path}
    environment |= {} if out is None else {"OUT": str(out)}
    done = subprocess.run(
        ["bash", str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_runs_that_are_queued_follow_one_another_and_reports_come_back(tmp_path: Path) -> None:
    hold, out = tmp_path / "hold", tmp_path / "out"
    for folder in (hold / "in", hold / "vin", hold / "bin", hold / "tree/src", out):
        folder.mkdir(parents=True)
    for name in ("a.00", "a.01", "g.00", "g.01"):
        (hold / "in" / name).write_text(name)
    (hold / "vin/v.00").write_text("v")
    (hold / "gpu_unpack.sh").write_text(
        'mkdir -p "$2/site/triton/bin" && cat "$1"/part.* > "$2/whole"\n'
        'touch "$2/site/triton/bin/ptxas" "$2/site/sitecustomize.py"\n'
        'echo "export LD_PRELOAD= PYTHONPATH=$2/site" > "$2/env.sh"\n'
    )
    (hold / "bin/python3").write_text(PYTHON)
    (hold / "bin/python3").chmod(0o755)
    with tarfile.open(hold / "src.tgz", "w:gz") as archive:
        archive.add(hold / "tree/src", "src")
    lent(hold, "start")
    try:
        lent(hold, "queue", "--parts", "model,engine")
        lent(hold, "queue", "--minutes", "2", "--peer-python", "a b")
        # The first of them fails, and the other is run all the same.
        lent(hold, "wait", "30", "2", out=out, code=1)
    finally:
        lent(hold, "stop")
    lent(hold, "wait", "600", "3", code=1)
    # Whatever folder a run is started in.
    there = [f"{hold}/{name}" for name in ("src", "src/protos", "env/site")]
    assert (hold / "paths").read_text().splitlines() == [":".join(there)] * 2
    asked = (hold / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert asked[0].startswith(f"asked: -m benchmarks.gpu_session --gguf {hold}/model.gguf")
    assert asked[0].endswith("--parts model,engine")
    assert asked[1].endswith("--minutes 2 --peer-python a b")
    assert (hold / "env/whole").read_text() == "a.00a.01"
    assert (hold / "vllm/whole").read_text() == "v"
    assert f"PYTHONPATH={hold}/vllm/site" in (hold / "vllm/env.sh").read_text()
    assert (hold / "env/site/sitecustomize.py").exists()
    assert not (hold / "vllm/site/sitecustomize.py").exists()
    for name in ("env", "vllm"):
        assert os.access(hold / name / "site/triton/bin/ptxas", os.X_OK)
    assert (hold / "model.gguf").read_text() == "g.00g.01"
    with tarfile.open(out / "out.tgz") as archive:
        names = set(archive.getnames())
    assert {"out/report.md", "log"} <= names
    assert "out/code/junk" not in names


def test_the_source_is_sent_with_its_version_and_what_is_generated(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    generated = checkout / "protos/speculation/v1/proposer_pb2.py"
    for folder in (checkout / "benchmarks", generated.parent, tmp_path / "sent"):
        folder.mkdir(parents=True)
    script = checkout / "benchmarks" / SCRIPT.name
    script.write_text(SCRIPT.read_text())
    (checkout / "pyproject.toml").write_text('[project]\nname = "outrider"\nversion = "7.8.9"\n')
    (generated.parent / "proposer.proto").write_text("")
    named = ["-c", "user.name=a", "-c", "user.email=b"]
    for arguments in (["init", "-q"], ["add", "."], [*named, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(checkout), *arguments], check=True)
    # Behind the commit: what is generated is in none.
    generated.write_text("made")
    lent(tmp_path / "hold", "source", str(tmp_path / "sent"), script=script)
    assert (tmp_path / "sent" / SCRIPT.name).read_text() == SCRIPT.read_text()
    with tarfile.open(tmp_path / "sent/src.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = metadata.Distribution.discover(name="outrider", path=[str(tmp_path / "src")])
    assert {one.version for one in found} == {"7.8.9"}
    assert (tmp_path / "src/protos/speculation/v1/proposer_pb2.py").read_text() == "made"
    assert (tmp_path / "src/.git").is_dir()


def test_nobody_waits_for_what_has_died(tmp_path: Path) -> None:
    hold, out = tmp_path / "hold", tmp_path / "out"
    for folder in (hold / "in", out):
        folder.mkdir(parents=True)
    lent(hold, "start")
    # Its time is longer than the test's.
    told = lent(hold, "wait", "600", out=out, code=1)
    assert "cannot stat 'a.*'" in told
