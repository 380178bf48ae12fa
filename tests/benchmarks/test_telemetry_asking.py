"""A turn of requests to an endpoint that the test plays."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import telemetry_asking
from benchmarks.outrider_system import ServerFailed
from benchmarks.processor_time import Reading
from benchmarks.systems import Work
from benchmarks.telemetry_asking import LEAD_SECONDS, TRACE_ID_HEADER, Asker
from gateway.evidence.store import BATCH_S
from outrider.errors import OperationError
from outrider.span_queue import DELAY_MS
from outrider.trace_context import read_context

WORK = Work(((1, 2), (3,)), (4, 4), 0.0, 0)


class Fake(ThreadingHTTPServer):
    """A gateway that traces what its caller samples, unless it is `deaf`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.deaf = 200, False
        self.parents: list[str] = []
        self.salts: list[str] = []
        self.stored = 0


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        assert self.path == "/v1/acceptance"
        self.server.stored += 1
        self._answer({"totals": {"requests": self.server.stored}}, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parent = self.headers["traceparent"]
        self.server.parents.append(parent)
        self.server.salts.append(body["cache_salt"])
        traced = read_context([("traceparent", parent)]).sampled and not self.server.deaf
        answer = {
            "choices": [{"token_ids": [7] * body["max_tokens"]}],
            "usage": {},
            "metrics": {"speculative_decoding": {"num_spec_steps": 2}},
        }
        self._answer(answer, {TRACE_ID_HEADER: "a" * 32} if traced else {})

    def _answer(self, document: object, headers: dict[str, str]) -> None:
        text = json.dumps(document).encode()
        self.send_response(self.server.status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    listening = Fake()
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    yield listening
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def asker(fake: Fake) -> Iterator[Asker]:
    with Asker(f"http://127.0.0.1:{fake.server_port}", 2) as made:
        yield made


def test_each_request_says_whether_it_is_traced(fake: Fake, asker: Asker) -> None:
    for traced in (True, False):
        assert asker.answer(WORK, traced).new_tokens == 8
    contexts = [read_context([("traceparent", parent)]) for parent in fake.parents]
    assert [context.sampled for context in contexts] == [True, True, False, False]
    assert len({context.trace_id for context in contexts}) == len(set(fake.salts)) == 4
    assert asker.traced == 2


@pytest.mark.parametrize("status", [404, 500])
def test_a_refusal_ends_it(fake: Fake, asker: Asker, status: int) -> None:
    fake.status = status
    with pytest.raises(ServerFailed, match=f"HTTP {status}"):
        asker.answer(WORK, False)
    with pytest.raises(ServerFailed, match=f"HTTP {status}"):
        asker.received()


def test_a_server_in_another_mode_is_no_measurement(fake: Fake, asker: Asker) -> None:
    fake.deaf = True
    asker.answer(WORK, False)
    with pytest.raises(OperationError, match="sampled"):
        asker.answer(WORK, True)


def test_a_turn_is_measured_window_by_window(asker: Asker) -> None:
    # Of two processors, ours took a tenth of the second window, and others a half of it.
    readings = iter(
        [
            Reading(0, {("gateway", 1): 0}, 0, 0),
            Reading(10**9, {("gateway", 1): 5 * 10**6}, 5 * 10**6, 0),
            Reading(2 * 10**9, {("gateway", 1): 205 * 10**6}, 1_205 * 10**6, 0),
        ]
    )
    turn = asker.turn([WORK, WORK], True, 3, lambda: next(readings), 2)
    assert (turn.clients, turn.quad, turn.traced, turn.requests) == (2, 3, True, 4)
    assert (turn.tokens, turn.rounds, turn.foreign) == ((8, 8), (4, 4), (0.0, 0.5))
    assert turn.processor_ms == {"gateway": 205.0}
    assert turn.answers[0] == turn.answers[1]
    assert all(seconds > 0 for seconds in turn.seconds)


def test_a_lead_outlasts_what_the_other_mode_left() -> None:
    assert LEAD_SECONDS > DELAY_MS / 1000 + BATCH_S


def test_a_lead_is_of_whole_windows_in_its_own_mode(
    fake: Fake, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_asking, "LEAD_SECONDS", 0.0)
    asker.lead([WORK], True)
    assert [parent[-2:] for parent in fake.parents] == ["01", "01"]


def test_evidence_is_waited_for(fake: Fake, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_asking, "EVIDENCE_PAUSE_SECONDS", 0.0)
    asker.traced = 3
    assert asker.received() == 3
    monkeypatch.setattr(telemetry_asking, "EVIDENCE_SECONDS", 0.0)
    asker.traced = 100
    assert asker.received() == 4
