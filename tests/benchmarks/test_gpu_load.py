from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.gpu_load import CLIENT_CPU, Clients, LoadSystem, Sent, read_stream
from benchmarks.outrider_system import ServerFailed
from benchmarks.steady import Span
from benchmarks.systems import Work

BODY = {"prompt": [1], "max_tokens": 3}
METRICS = """\
# TYPE outrider:verify_seconds histogram
outrider:verify_seconds_bucket{{le="+Inf",step="plain"}} {n}
outrider:verify_seconds_count{{step="plain"}} {n}
outrider:verify_seconds_sum{{step="plain"}} {n}
"""


@dataclass
class Server:
    """Holds every request back until `together` are in flight, then answers them."""

    together: int = 1
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    most: int = 0
    url: str = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                length = 0
                while (header := await reader.readline()) != b"\r\n":
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                answer = await self._answer(path, body)
                status = 200 if path in ("/health", "/metrics") else self.status
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n\r\n"
                writer.write(head.encode() + answer)
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes) -> bytes:
        if path == "/health":
            return b""
        if path == "/metrics":
            return METRICS.format(n=len(self.bodies)).encode()
        asked = json.loads(body)
        self.bodies.append(asked)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        while self.most < self.together:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        self.in_flight -= 1
        sums = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 4}
        end = {
            "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
            "metrics": {"speculative_decoding": sums},
        }
        token_ids = [asked["prompt"][0]] * asked["max_tokens"]
        if not asked.get("stream"):
            return json.dumps({"choices": [{"token_ids": token_ids}], **end}).encode()
        deltas = [{"choices": [{"token_ids": [one]}]} for one in token_ids]
        return events({"choices": [{"text": ""}]}, *deltas, {"choices": [], **end})


def events(*chunks: dict[str, Any]) -> bytes:
    """A stream of server-sent events."""
    lines = [f"data: {json.dumps(chunk)}" for chunk in chunks]
    return "\n\n".join([*lines, "data: [DONE]", ""]).encode()


async def end(listening: asyncio.Server) -> None:
    listening.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture
def server() -> Iterator[Server]:
    fake = Server()
    loop = asyncio.new_event_loop()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(fake.connected, "127.0.0.1", 0)

    listening = loop.run_until_complete(start())
    fake.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield fake
    asyncio.run_coroutine_threadsafe(end(listening), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def work(prompts: int, clients: int) -> Work:
    ids = tuple((n, n) for n in range(prompts))
    return Work(ids, (3,) * prompts, 0.0, seed=10, clients=clients)


def test_answers_come_in_the_prompts_order_with_their_sums(server: Server) -> None:
    with Clients(server.url) as clients:
        answer = LoadSystem(clients, {"proposer": "ngram"}).generate(work(5, 2))
    assert answer.outputs == tuple((n,) * 3 for n in range(5))
    assert (answer.steps, answer.drafted, answer.accepted) == (10, 40, 20)
    assert answer.seconds > 0
    assert answer.readings[CLIENT_CPU] >= 0
    assert answer.readings["outrider:verify_seconds{plain}_count"] == 5


def test_every_body_has_its_span(server: Server) -> None:
    with Clients(server.url) as clients:
        sent = clients.send([json.dumps(BODY).encode()] * 5, 1)
    moments = [moment for span in sent.spans for moment in span]
    assert len(moments) == 10 and moments == sorted(moments)
    assert moments[0] >= 0 and moments[-1] <= sent.seconds


def test_the_steady_part_is_that_of_the_spans(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Clients(server.url) as clients:
        answers = clients.send([json.dumps(BODY).encode()] * 4, 2).answers
        spans = (Span(0, 4), Span(0, 1), Span(1, 3), Span(3, 7))
        monkeypatch.setattr(clients, "send", lambda *_: Sent(7.0, 0.1, answers, spans))
        answer = LoadSystem(clients, {}).generate(work(4, 2))
    assert (answer.seconds, answer.new_tokens) == (7.0, 12)
    assert (answer.steady_seconds, answer.steady_tokens) == (4, 9.75)


def test_streamed_answers_are_put_together(server: Server) -> None:
    with Clients(server.url) as clients:
        answer = LoadSystem(clients, {}, stream=True).generate(work(5, 2))
    assert answer.outputs == tuple((n,) * 3 for n in range(5))
    assert (answer.steps, answer.drafted, answer.accepted) == (10, 40, 20)
    assert all(body["stream_options"] == {"include_usage": True} for body in server.bodies)


def test_a_stream_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ServerFailed, match="no cache left"):
        read_stream(events({"choices": []}, {"error": {"message": "no cache left"}}))
    with pytest.raises(ServerFailed, match="without its usage"):
        read_stream(events({"choices": [{"token_ids": [1]}]}))


def test_all_clients_ask_at_once_and_never_more(server: Server) -> None:
    server.together = 8
    with Clients(server.url) as clients:
        LoadSystem(clients, {}).generate(work(20, 8))
    assert server.most == 8


def test_connections_are_kept_from_one_work_to_the_next(server: Server) -> None:
    with Clients(server.url) as clients:
        system = LoadSystem(clients, {})
        for _ in range(3):
            system.generate(work(4, 4))
    assert server.connections == 4


def test_requests_are_cold_seeded_and_speculate_as_told(server: Server) -> None:
    with Clients(server.url) as clients:
        LoadSystem(clients, {"enabled": False}).generate(work(2, 1))
        LoadSystem(clients, {}).generate(work(2, 1))
    assert len({body["cache_salt"] for body in server.bodies}) == 4
    assert [body["seed"] for body in server.bodies] == [10, 11, 10, 11]
    assert server.bodies[0]["speculative_decoding"] == {"enabled": False}
    assert all(body["ignore_eos"] and body["return_token_ids"] for body in server.bodies)


def test_an_error_of_the_server_ends_the_work(server: Server) -> None:
    server.status = 503
    with Clients(server.url) as clients, pytest.raises(ServerFailed, match="HTTP 503"):
        LoadSystem(clients, {}).generate(work(20, 4))


def test_a_server_that_is_gone_is_an_error() -> None:
    with Clients("http://127.0.0.1:9") as clients, pytest.raises(ServerFailed):
        LoadSystem(clients, {}).generate(work(1, 1))
