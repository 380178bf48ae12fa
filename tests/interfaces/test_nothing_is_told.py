"""Prompts and answers stay between client and model: a marker in both is looked for everywhere.

The whole stack at debug level, with detailed traces, a real suffix proposer and requests that go
wrong in every way; then its logs, spans, metrics and JSON endpoints are searched.
"""

from __future__ import annotations

import json
import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gateway.evidence.settings import EvidenceSettings
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.collector import Collector, collecting
from tests.interfaces.drafted_stack import drafted_stack
from tests.interfaces.stack import MODEL, Stack

MARK = "Zx9-canary"
# In this process the tests' clients log, too; what they say is theirs.
CLIENTS = ("httpx", "httpcore", "openai", "hypothesis")
CHAT = {"messages": [{"role": "user", "content": MARK}]}
TOOL = {"type": "function", "function": {"name": "f", "description": MARK}}

# (path, body), each with the marker where text can be; most of them are refused.
REQUESTS: list[tuple[str, Any]] = [
    ("/v1/completions", {"prompt": MARK, "stream": True}),
    ("/v1/completions", {"prompt": MARK, "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": MARK, "stop": [MARK]}),
    ("/v1/completions", {"prompt": MARK, "n": 2, "temperature": 1}),
    ("/v1/completions", {"prompt": MARK, "prediction": {"type": "content", "content": MARK}}),
    ("/v1/completions", {"prompt": MARK, "bad_words": [MARK]}),
    ("/v1/completions", {"prompt": MARK * 100}),
    ("/v1/completions", {"prompt": {"text": MARK}}),
    ("/v1/completions", {"prompt": MARK, "suffix": MARK}),
    ("/v1/completions", {"prompt": MARK, "temperature": MARK}),
    ("/v1/completions", {"prompt": MARK, "structured_outputs": {"regex": f"({MARK}"}}),
    ("/v1/completions", {"prompt": MARK, "structured_outputs": {"choice": [MARK]}}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL]}),
    ("/v1/chat/completions", {**CHAT, "tools": [{**TOOL, "type": MARK}]}),
    ("/v1/chat/completions", {**CHAT, "chat_template": "{% " + MARK}),
    ("/v1/chat/completions", {**CHAT, "chat_template": "{{ '" + MARK + "' / 0 }}"}),
    ("/v1/chat/completions", {"messages": [{"role": MARK, "content": MARK}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [MARK]}]}),
    ("/tokenize", {"prompt": MARK}),
    ("/tokenize", {"messages": [{"content": MARK}]}),
]
PAGES = ["/metrics", "/health", "/load", "/v1/requests", "/v1/acceptance?group_by=proposer"]


@pytest.fixture
def collector(socket_dir: Path) -> Any:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


def running(folder: Path, trace: TraceSettings) -> AbstractAsyncContextManager[Stack]:
    return drafted_stack(
        folder,
        "suffix",
        {"trace": trace},
        trace=trace,
        trust_request_chat_template=True,
        gateway_options={
            "evidence": EvidenceSettings(listen=f"unix:{folder}/o.sock"),
            "trace": trace,
        },
    )


async def answer_of(one: Stack) -> tuple[str, list[int]]:
    """A long answer's text and token ids."""
    body = {"prompt": MARK, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    answer = (
        await one.http.post(
            "/v1/completions", json={**body, "model": MODEL, "return_token_ids": True}
        )
    ).json()
    choice = answer["choices"][0]
    return choice["text"], choice["token_ids"]


def traces_of(collector: Collector, least: int) -> str:
    """All that the collector was told, once it has at least so many spans."""
    with collector.changed:
        assert collector.changed.wait_for(lambda: len(collector.spans) >= least, 20)
        return repr(collector.spans)


async def test_neither_logs_nor_traces_nor_pages_tell_it(
    socket_dir: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    trace = TraceSettings(collector.address, TraceLevel.DETAILED)
    statuses = set()
    async with running(socket_dir, trace) as one:
        text, ids = await answer_of(one)
        for path, body in REQUESTS:
            answer = await one.http.post(path, json={"max_tokens": 8, **body})
            statuses.add(answer.status_code)
        broken = b'{"prompt": "' + MARK.encode()
        headers = {"content-type": "application/json"}
        for path in ("/v1/completions", f"/v1/chat/completions?{MARK}"):
            answer = await one.http.post(path, content=broken, headers=headers)
            statuses.add(answer.status_code)
        pages = [await one.http.get(page) for page in PAGES]
        assert [page.status_code for page in pages] == [200] * len(PAGES)
    told = {
        "spans": traces_of(collector, 10),
        "pages": "\n".join(page.text for page in pages),
        "logs": "\n".join(
            logging.Formatter().format(record)
            for record in caplog.records
            if not record.name.startswith(CLIENTS)
        ),
    }
    assert statuses >= {200, 400}
    assert "speculation.request" in told["spans"] and "speculation.round" in told["spans"]
    assert "POST /v1/completions 200" in told["logs"]
    for where, content in told.items():
        for secret in (MARK, text[:12], text[-12:], str(ids[:5])[1:-1], str(ids[-5:])[1:-1]):
            assert secret not in content, (where, secret)


async def test_only_where_it_is_asked_for(socket_dir: Path, collector: Collector) -> None:
    """The search above would find it."""
    trace = TraceSettings(collector.address, TraceLevel.DETAILED, content=True)
    async with running(socket_dir, trace) as one:
        _, ids = await answer_of(one)
        piece = one.text.decode(ids[-1:], skip_special_tokens=False)
    spans = traces_of(collector, 3)
    assert "speculation.round.emitted_texts" in spans and json.dumps(piece)[1:-1] in spans
