"""`outrider serve` end to end: real processes, a real model, and nothing left when it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ports import unclaimed_port
from tests.serve_process import Serve, until

pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def serve(smollm2: Path, temporary: Path) -> Iterator[Serve]:
    """One server for all tests of this file; the tests that end it come last."""
    serve = Serve(smollm2, unclaimed_port(), temporary)
    try:
        serve.wait_until_ready()
        yield serve
    finally:
        serve.kill()


def test_says_what_it_chose_and_what_to_try(serve: Serve) -> None:
    assert "SpeculativeConfig(method='ngram', num_speculative_tokens=8" in serve.text
    assert "SpeculativeConfig(method='suffix', num_speculative_tokens=8" in serve.text
    assert f"curl -N {serve.url}/v1/chat/completions" in serve.text


def test_runs_each_part_as_a_process_of_its_own(serve: Serve) -> None:
    assert sorted(serve.children()) == ["gateway", "ngram", "suffix", "verifier"]


def test_the_suggested_curl_streams_a_chat(serve: Serve) -> None:
    start = serve.output.index("Try:")
    command = "\n".join(serve.output[start + 1 : start + 3])
    command = command.replace("curl -N", "curl --silent --fail -N --noproxy '*'")
    command = command.replace('"max_tokens": 64', '"max_tokens": 16')
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    pieces = [c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]]
    assert len([piece for piece in pieces if piece]) > 1
    assert chunks[0]["model"] == "smollm2"


def test_speculation_is_seen_and_changes_nothing(serve: Serve) -> None:
    first = serve.chat().json()
    metrics = first["metrics"]["speculative_decoding"]
    assert metrics["num_spec_tokens"] == 8
    assert len(metrics["acceptance_histogram"]) == 9
    again = serve.chat().json()
    assert again["choices"][0]["message"] == first["choices"][0]["message"]


def test_info_shows_both_proposers(serve: Serve) -> None:
    (runtime,) = serve.temporary.glob("outrider-*")
    assert runtime.stat().st_mode & 0o777 == 0o700
    done = subprocess.run(
        [sys.executable, "-m", "outrider.cli", "info", "--json", f"unix:{runtime}/verifier.sock"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    proposers = json.loads(done.stdout)["proposers"]
    assert {item["name"]: item["method"] for item in proposers} == {
        "ngram": "ngram",
        "suffix": "suffix",
    }
    # A busy machine makes a proposer slow; the connection is what is asked for.
    assert {item["state"] for item in proposers} <= {"connected", "slow"}


@pytest.mark.parametrize(
    ("mark", "says"),
    [("from openai import", "'num_spec_tokens': 8"), ("verifier_pb2_grpc", "drafts accepted")],
    ids=["openai", "grpc"],
)
def test_the_readmes_clients_work(serve: Serve, mark: str, says: str) -> None:
    (runtime,) = serve.temporary.glob("outrider-*")
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    (code,) = [block for block in blocks if mark in block]
    for written, real in {
        "http://127.0.0.1:8000": serve.url,
        "127.0.0.1:7100": f"unix:{runtime}/verifier.sock",
        "smollm2-135m": "smollm2",
        "max_tokens=64": "max_tokens=16",
    }.items():
        code = code.replace(written, real)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


@pytest.mark.parametrize("name", ["ngram", "gateway", "verifier"])
def test_a_killed_part_comes_back(serve: Serve, name: str) -> None:
    before = serve.children()[name]
    expected = serve.chat().json()["choices"][0]["message"]
    os.kill(before, signal.SIGKILL)
    until(lambda: serve.children().get(name, before) != before, 60, f"{name} to come back")
    assert f"{name:>10} | was killed by SIGKILL; it is started again in" in serve.text

    def answers() -> bool:
        try:
            answer = serve.chat()
        except httpx.TransportError:
            return False
        if answer.status_code == 503:
            assert "verifier" in answer.json()["error"]["message"]
            return False
        return answer.json()["choices"][0]["message"] == expected

    until(answers, 300, "the same answer as before")


def test_a_second_server_on_the_port_is_refused(serve: Serve, smollm2: Path) -> None:
    port = serve.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "outrider.cli", "serve", str(smollm2), "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: {port} on 127.0.0.1 cannot be used")


def test_interrupt_leaves_nothing(serve: Serve) -> None:
    serve.end(signal.SIGINT)
    assert serve.process.returncode == 0, serve.text
    assert "Traceback" not in serve.text


def test_killed_serve_leaves_nothing(smollm2: Path, temporary: Path, free_port: int) -> None:
    serve = Serve(smollm2, free_port, temporary, "--no-compile")
    try:
        serve.wait_until_ready()
        assert serve.chat(max_tokens=2).status_code == 200
        serve.end(signal.SIGKILL)
    finally:
        serve.kill()


def test_interrupted_start_leaves_nothing(smollm2: Path, temporary: Path, free_port: int) -> None:
    serve = Serve(smollm2, free_port, temporary)
    try:
        until(lambda: "verifier" in serve.children(), 60, "the verifier's process")
        serve.end(signal.SIGTERM)
        assert "Try:" not in serve.text
    finally:
        serve.kill()
