from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from benchmarks import measured_gain
from benchmarks.measured_gain import (
    PLAIN_PERIOD,
    Cell,
    keep_busy,
    parse,
    read_metrics,
    shares,
    to_markdown,
)
from benchmarks.outrider_system import ServerFailed
from benchmarks.prompts import Prompt
from verifier_service.refusals import PLAIN_PERIOD as DECISION

DOCUMENT = {"command": "cmd", "machine": {"cores": 2}, "versions": {}, "settings": {}}


def cell(gain: float, error: float, periods: int = 20, drafted: float = 0.5) -> Cell:
    return Cell("chat", 8, 1.0, gain, error, periods, 0.1, drafted, 50.0, 51.0)


class _Server(BaseHTTPRequestHandler):
    status = 200
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Server]]]:
    handler = type("Handler", (_Server,), {"bodies": []})
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", handler
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_the_reason_is_the_controllers() -> None:
    assert DECISION.off_reason == PLAIN_PERIOD


def test_a_loss_is_one_beyond_doubt() -> None:
    assert cell(-0.05, 0.02).loses
    assert not cell(-0.03, 0.02).loses
    assert not cell(0.05, 0.02).loses
    assert not cell(0.0, 0.0, periods=0).loses


def test_shares_are_of_all_rounds() -> None:
    page = "\n".join(
        [
            "# TYPE outrider:rounds_without_drafts_total counter",
            f'outrider:rounds_without_drafts_total{{engine="0",off_reason="{PLAIN_PERIOD}"}} 10',
            'outrider:rounds_without_drafts_total{engine="0",off_reason="no draft offered"} 60',
            "# TYPE vllm:spec_decode_num_drafts_total counter",
            'vllm:spec_decode_num_drafts_total{engine="0"} 30',
            "",
        ]
    )
    assert shares(read_metrics(page)) == (0.1, 0.3)
    assert shares({}) == (0.0, 0.0)


def test_the_page_shows_gain_and_doubt() -> None:
    page = to_markdown(DOCUMENT, [cell(0.25, 0.03), cell(-0.2, 0.01), cell(0.0, 0.0, periods=0)])
    assert "| chat | 8 | 1 | +25.0% ± 3.0% | 20 | 50% | 10% |  |" in page
    assert "| -20.0% ± 1.0% | 20 | 50% | 10% | loses |" in page
    assert "| – | 0 |" in page


def test_clients_are_kept_busy(
    server: tuple[str, type[_Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    # A clock that counts how often it is read.
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(ticks))
    monkeypatch.setattr(measured_gain, "time", clock)
    speed = keep_busy(url, [Prompt("a", (1, 2)), Prompt("b", (3,))], 2, 0.0, 0.2, 8)
    assert speed > 0.0
    assert len(handler.bodies) >= 15
    assert {b'"prompt":[1,2]' in body for body in handler.bodies} == {True, False}


def test_a_refusal_ends_the_run(server: tuple[str, type[_Server]]) -> None:
    url, handler = server
    handler.status = 503
    with pytest.raises(ServerFailed, match="HTTP 503"):
        keep_busy(url, [Prompt("a", (1,))], 2, 0.0, 30.0, 8)
    assert len(handler.bodies) <= 2


def test_everything_by_default() -> None:
    options = parse([])
    assert (options.clients, options.temperatures) == ("1,8", "0,1")
    assert options.sets.count(",") == 4
