"""Servers that are started for a measurement, and what is left of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest

from outrider.bench.child import fill_command, free_port, running_server, serve_command
from outrider.errors import InputError, OperationError

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *words): pass
print("starting", sys.argv[2], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_runs_while_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    port = free_port()
    template = f"{sys.executable} {tmp_path / 'server.py'} {{port}} K={{num_speculative_tokens}}"
    command = fill_command(template, port, 4)
    assert command[-1] == "K=4"
    shown: list[str] = []
    with running_server(command, port, 60, shown.append) as url:
        pid = int(httpx.get(f"{url}/health", trust_env=False).text)
        assert is_alive(pid)
    assert not is_alive(pid)
    assert shown == []


def test_a_server_that_ends_shows_its_last_words() -> None:
    command = (sys.executable, "-c", "import sys; print('no such model'); sys.exit(2)")
    shown: list[str] = []
    with (
        pytest.raises(InputError, match="server ended with exit code 2 before it was ready"),
        running_server(command, free_port(), 60, shown.append),
    ):
        raise AssertionError("it never was ready")
    assert shown == ["no such model"]


def test_a_server_that_is_never_ready_is_stopped() -> None:
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    waited: list[float] = []
    with (
        pytest.raises(OperationError, match=r"not ready after 0.2 s; .*--server-ready-timeout"),
        running_server(command, free_port(), 0.2, lambda line: None, waited.append),
    ):
        raise AssertionError("it never was ready")
    assert waited


def test_a_command_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(InputError, match="there is no command 'outrider-nowhere'"),
        running_server(("outrider-nowhere",), free_port(), 5, lambda line: None),
    ):
        raise AssertionError("it never was there")


@pytest.mark.parametrize(
    ("template", "k", "message"),
    [
        ("serve --port 8000", None, "has no {port}"),
        ("serve {port} {num_speculative_tokens}", None, "no --num-speculative-tokens is given"),
        ("serve {port} 'open", None, "No closing quotation"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, k: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fill_command(template, 1, k)


def test_braces_of_json_are_left_alone() -> None:
    template = (
        """vllm serve m --port {port} -sc '{"num_speculative_tokens": {num_speculative_tokens}}'"""
    )
    assert fill_command(template, 5, 3)[-1] == '{"num_speculative_tokens": 3}'
    assert serve_command("m", 5, ["--threads=2"])[3:] == ("serve", "m", "--port=5", "--threads=2")
