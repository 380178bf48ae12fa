from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.outrider_system import OutriderSystem, ServerFailed
from benchmarks.systems import Work


class Fake(ThreadingHTTPServer):
    """An endpoint that answers every completion alike and keeps the bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.lock = threading.Lock()
        self.at_once = self.most_at_once = 0


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Fake)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        with self.server.lock:
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        answer = {
            "choices": [{"token_ids": [5] * body["max_tokens"]}],
            "usage": {"prompt_tokens_details": {"cached_tokens": 3}},
            "metrics": {
                "speculative_decoding": {
                    "num_spec_steps": 2,
                    "num_draft_tokens": 8,
                    "num_accepted_draft_tokens": 4,
                }
            },
        }
        data = json.dumps(answer).encode()
        with self.server.lock:
            self.server.at_once -= 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


WORK = Work(prompts=((1, 2), (3,)), lengths=(4, 4), temperature=1.0, seed=10)


def system(fake: Fake, speculation: dict[str, Any], warm: bool = False) -> OutriderSystem:
    return OutriderSystem(f"http://127.0.0.1:{fake.server_port}", speculation, warm=warm)


def test_one_request_a_prompt_with_its_own_seed(fake: Fake) -> None:
    answer = system(fake, {"proposer": "ngram"}).generate(WORK)
    bodies = sorted(fake.bodies, key=lambda body: body["seed"])
    assert [(body["prompt"], body["seed"]) for body in bodies] == [([1, 2], 10), ([3], 11)]
    assert all(body["ignore_eos"] is True for body in bodies)
    assert all(body["speculative_decoding"] == {"proposer": "ngram"} for body in bodies)
    assert answer.outputs == ((5,) * 4, (5,) * 4)
    assert (answer.steps, answer.drafted, answer.accepted) == (4, 16, 8)
    assert answer.cached_prompt_tokens == 6


def test_no_more_clients_ask_than_there_are(fake: Fake) -> None:
    work = Work(tuple((n,) for n in range(6)), (4,) * 6, 0.0, 1, clients=2)
    assert work.at_once == 2
    assert len(system(fake, {}).generate(work).outputs) == 6
    assert fake.most_at_once <= 2


def test_cold_requests_never_share_a_salt(fake: Fake) -> None:
    system(fake, {}).generate(WORK)
    system(fake, {}).generate(WORK)
    salts = [body["cache_salt"] for body in fake.bodies]
    assert len(set(salts)) == len(salts) == 4


def test_warm_requests_repeat_the_work_under_one_salt(fake: Fake) -> None:
    answer = system(fake, {}, warm=True).generate(WORK)
    assert [body["cache_salt"] for body in fake.bodies] == ["warm"] * 4
    assert answer.steps == 4


def test_an_error_of_the_server_is_not_measured(fake: Fake) -> None:
    fake.status = 503
    with pytest.raises(ServerFailed, match="HTTP 503"):
        system(fake, {}).generate(WORK)
