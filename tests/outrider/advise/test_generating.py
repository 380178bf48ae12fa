"""Outputs that a server generates, and what its verifier says of itself."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from outrider.advise.fields import BadLineError
from outrider.advise.generating import Generator
from outrider.advise.methods import ngram
from outrider.advise.run import Options, Outcome, run
from outrider.advise.served import (
    ask_verifier,
    base_url,
    is_http,
    may_be_proxied,
    speaks_outrider,
)
from outrider.advise.traffic import Chat, Recorded
from outrider.errors import InputError, OperationError
from tests.interfaces.stack import stack

USER = Chat(json.dumps([{"role": "user", "content": "the cat"}]))


def asked(**changes: Any) -> Recorded:
    fields: dict[str, Any] = {"where": "line 1", "prompt": "the cat", "output": None}
    return Recorded(**(fields | changes))


class Foreign:
    """An OpenAI-compatible server of another kind; `bodies` are what it was sent."""

    def __init__(self, *, status: int = 200, version: bool = False) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = status
        self.version = version

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "theirs"}]}
        if path == "/version":
            return (200, {"version": "1"}) if self.version else (404, {})
        if path == "/health":
            return 200, None
        self.bodies.append(body)
        if self.status != 200:
            return self.status, {"error": "no"}
        text = f"answer {body.get('prompt', '')}"
        choice = {"text": text} if "prompt" in body else {"message": {"content": text}}
        return 200, {"choices": [{**choice, "finish_reason": "length"}]}


@contextmanager
def served(foreign: Foreign) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._respond(json.loads(self.rfile.read(length)))

        def _respond(self, body: dict[str, Any]) -> None:
            status, value = foreign.answer(self.path, body)
            data = json.dumps(value).encode() if value is not None else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


def test_urls_and_addresses_are_told_apart() -> None:
    assert is_http("http://a:1") and is_http("https://a") and not is_http("a:1")
    assert base_url("http://a:1/v1/") == base_url("http://a:1/") == "http://a:1"


def test_this_machine_s_server_is_asked_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with served(Foreign()) as url, Generator(url) as generator:
        (answered,) = generator.complete([asked()])
        assert isinstance(answered, Recorded) and answered.output == "answer the cat"
        assert not speaks_outrider(url)
    assert may_be_proxied("http://models.example") and not may_be_proxied("http://[::1]:8000")
    with pytest.raises(InputError, match="--url: 'http://h:x' is not a URL"):
        may_be_proxied("http://h:x")


def test_answers_come_in_the_order_of_the_requests() -> None:
    requests = [asked(prompt=str(n), where=f"line {n}") for n in range(9)]
    known = asked(output="known")
    with served(Foreign()) as url, Generator(url, concurrency=3) as generator:
        answered = list(generator.complete([*requests, known, BadLineError("line 11: bad")]))
        assert generator.generated == 9
    outputs = [one.output for one in answered[:-1] if isinstance(one, Recorded)]
    assert outputs == [*(f"answer {n}" for n in range(9)), "known"]
    assert str(answered[-1]) == "line 11: bad"


def test_requests_are_sent_as_the_line_says() -> None:
    foreign = Foreign()
    recorded = asked(prompt=USER, max_tokens=5, sampling={"temperature": 0.5, "seed": 1})
    with served(foreign) as url, Generator(url, max_tokens=99) as generator:
        (first, second) = generator.complete([recorded, asked(prompt=(1, 2))])
    assert isinstance(first, Recorded) and first.finish_reason == "length"
    assert isinstance(second, Recorded) and second.max_tokens == 99
    bodies = sorted(foreign.bodies, key=lambda body: "prompt" in body)
    messages = [{"role": "user", "content": "the cat"}]
    assert bodies[0] == {
        "model": "theirs",
        "messages": messages,
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 1,
    }
    assert bodies[1] == {"model": "theirs", "prompt": [1, 2], "max_tokens": 99}


def test_ids_are_asked_for_only_where_the_server_may_know_them() -> None:
    foreign = Foreign(version=True)
    with served(foreign) as url, Generator(url) as generator:
        list(generator.complete([asked()]))
    assert foreign.bodies[0]["return_token_ids"] is True


def test_nothing_is_connected_while_nothing_is_missing() -> None:
    with Generator("http://127.0.0.1:9") as generator:
        assert list(generator.complete([asked(output="known")]))


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_request_is_a_bad_line(status: int) -> None:
    with served(Foreign(status=status)) as url, Generator(url) as generator:
        (error,) = generator.complete([asked(where="line 3")])
    assert isinstance(error, BadLineError) and str(error).startswith("line 3: ")


@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_failing_server_ends_the_command(status: int) -> None:
    with (
        served(Foreign(status=status)) as url,
        Generator(url) as generator,
        pytest.raises(OperationError, match=f"answers {status}"),
    ):
        list(generator.complete([asked()]))


def test_a_model_that_is_not_served_is_told() -> None:
    with (
        served(Foreign()) as url,
        Generator(url, model="ours") as generator,
        pytest.raises(InputError, match=r"'ours' is not served .* served: theirs"),
    ):
        list(generator.complete([asked()]))


def test_a_foreign_server_tells_no_costs() -> None:
    with served(Foreign()) as url:
        assert not speaks_outrider(url)
        with pytest.raises(InputError, match="no gateway of Outrider's"):
            ask_verifier(url)


def test_nobody_there_is_told() -> None:
    with pytest.raises(OperationError, match=r"--url: .* does not answer"):
        speaks_outrider("http://127.0.0.1:9")
    with pytest.raises(OperationError, match=r"--url: the verifier at 127\.0\.0\.1:9 does"):
        ask_verifier("127.0.0.1:9")


async def test_prompts_alone_are_answered_by_our_own_server_as_ids(
    tmp_path: Path, socket_dir: Path
) -> None:
    """No tokenizer is given: prompts and outputs come back as the ids that the target saw."""
    path = tmp_path / "t.jsonl"
    lines = [
        {"prompt": "the cat sat on", "temperature": 0},
        {"messages": [{"role": "user", "content": "a dog"}], "temperature": 0, "max_tokens": 9},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    async with stack(socket_dir) as running:
        url = str(running.http.base_url)

        def advise(url: str) -> Outcome:
            options = Options(path, (ngram(1, 2),), (4,), (1,), url=url, max_tokens=30)
            return run(options, lambda stage, done, total: None)

        outcome = await asyncio.to_thread(advise, url)
        facts = await asyncio.to_thread(ask_verifier, running.address)
        assert await asyncio.to_thread(ask_verifier, url) == facts
    assert (outcome.counts.requests, outcome.counts.generated) == (2, 2)
    assert outcome.counts.output_tokens <= 39
    assert outcome.cost.source == "verifier"
    assert outcome.cost.milliseconds == facts.step_cost_ms and facts.step_cost_ms
    assert facts.model == "toy" and facts.proposers == ()
