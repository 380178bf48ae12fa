"""A running `outrider serve` for tests: output and children, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

START_S = 600.0
STOP_S = 120.0
CHAT = {
    "messages": [{"role": "user", "content": "Repeat: one two three one two three one two three"}],
    "max_tokens": 16,
    "temperature": 0,
}


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Serve:
    """A running `outrider serve`, its output and its children."""

    def __init__(self, model: Path, port: int, temporary: Path, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.temporary = temporary
        self.output: list[str] = []
        command = [sys.executable, "-m", "outrider.cli", "serve", str(model), f"--port={port}"]
        command += ["--served-model-name=smollm2", "--max-model-len=1024", *options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.decode(errors="replace").rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.output)

    def wait_until_ready(self) -> None:
        until(
            lambda: "Try:" in self.text or self.process.poll() is not None,
            START_S,
            f"the start; it said:\n{self.text}",
        )
        assert self.process.poll() is None, self.text

    def children(self) -> dict[str, int]:
        """The children's subcommands (a proposer's by its name) and process ids."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = {}
        for pid in map(int, task.split()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except FileNotFoundError:
                continue
            if len(command) < 4:
                continue  # It has ended, or has not begun to run Outrider.
            names = [item.removeprefix("--name=") for item in command if item.startswith("--name=")]
            found[names[0] if names else command[3]] = pid
        return found

    def chat(self, **changes: object) -> httpx.Response:
        return httpx.post(
            f"{self.url}/v1/chat/completions",
            json={"model": "smollm2", **CHAT, **changes},
            timeout=300,
            trust_env=False,
        )

    def end(self, number: signal.Signals) -> None:
        """Send a signal, wait for the end, require that nothing is left."""
        pids = list(self.children().values())
        assert pids
        self.process.send_signal(number)
        self.process.wait(STOP_S)
        until(lambda: not any(map(alive, pids)), STOP_S, f"children {pids} to end:\n{self.text}")
        until(lambda: not list(self.temporary.glob("outrider-*")), STOP_S, "sockets to go")

    def kill(self) -> None:
        """For teardown only."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(STOP_S)
        self._reader.join(STOP_S)
