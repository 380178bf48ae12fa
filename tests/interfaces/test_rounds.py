"""`speculative_decoding.rounds`: each round in streams and whole answers, and only where asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

from tests.interfaces.stack import MODEL, K, Stack

FIELDS = {
    *("index", "base", "offered", "drafted", "accepted", "emitted", "proposer", "off_reason"),
    *("draft_wait_ms", "verify_ms", "lookahead_hit", "draft_token_ids"),
}
CHAT = {"messages": [{"role": "user", "content": "the cat"}]}
BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "the cat",
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "speculative_decoding": {"rounds": True},
}


async def streamed(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    lines = [x.removeprefix("data: ") for x in response.text.split("\n\n") if x]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def check(rounds: Sequence[dict[str, Any]], token_ids: Sequence[int]) -> None:
    """`rounds` of one choice tell how exactly these tokens came about."""
    at = 0
    for told in rounds:
        assert set(told) == FIELDS
        assert told["base"] == at
        assert told["offered"] >= told["drafted"] == len(told["draft_token_ids"]) <= K
        assert told["accepted"] <= told["drafted"]
        kept = told["draft_token_ids"][: told["accepted"]]
        assert list(token_ids[at : at + told["accepted"]]) == kept
        assert (told["proposer"] == "toy") == (told["drafted"] > 0)
        assert (told["off_reason"] is None) == (told["drafted"] > 0)
        assert told["draft_wait_ms"] >= 0
        assert told["verify_ms"] >= 0
        at += told["emitted"]
    assert at == len(token_ids)


async def test_a_whole_answer_has_them_all(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/completions", json=BODY)).json()
    rounds = answer["speculative_decoding"]["rounds"]
    check(rounds, answer["choices"][0]["token_ids"])
    figures = answer["metrics"]["speculative_decoding"]
    steps = [r for r in rounds if r["drafted"]]
    assert len(steps) == figures["num_spec_steps"] > 3
    assert sum(r["accepted"] for r in steps) == figures["num_accepted_draft_tokens"] > 0
    assert any(r["accepted"] < r["drafted"] for r in steps)


@pytest.mark.parametrize("interval", [1, 7])
async def test_each_chunk_has_those_of_its_tokens(http: httpx.AsyncClient, interval: int) -> None:
    chunks = await streamed(http, "/v1/completions", **BODY, stream_interval=interval)
    told: list[dict[str, Any]] = []
    ids: list[int] = []
    for chunk in chunks:
        ids += [i for c in chunk["choices"] for i in c.get("token_ids") or ()]
        told += chunk.get("speculative_decoding", {"rounds": []})["rounds"]
        assert sum(r["emitted"] for r in told) == len(ids)
    check(told, ids)


async def test_a_whole_answer_is_its_stream(http: httpx.AsyncClient) -> None:
    body = {**BODY, "seed": 3, "temperature": 1}
    whole = (await http.post("/v1/completions", json=body)).json()
    chunks = await streamed(http, "/v1/completions", **body)
    ids = [i for x in chunks for c in x["choices"] for i in c.get("token_ids") or ()]
    assert ids == whole["choices"][0]["token_ids"]


async def test_several_choices_tell_theirs_by_index(http: httpx.AsyncClient) -> None:
    body = {**BODY, "n": 3, "temperature": 1, "seed": 1}
    answer = (await http.post("/v1/completions", json=body)).json()
    for choice in answer["choices"]:
        rounds = answer["speculative_decoding"]["rounds"]
        check([r for r in rounds if r["index"] == choice["index"]], choice["token_ids"])


async def test_without_speculation_each_round_says_why(http: httpx.AsyncClient) -> None:
    body = {**BODY, "speculative_decoding": {"rounds": True, "enabled": False}}
    rounds = (await http.post("/v1/completions", json=body)).json()["speculative_decoding"]
    assert {r["drafted"] for r in rounds["rounds"]} == {0}
    assert all(r["off_reason"] for r in rounds["rounds"])


async def test_rounds_come_though_no_text_is_shown(http: httpx.AsyncClient) -> None:
    # The tool-call reader holds everything back until it knows what it is.
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    chat = {**CHAT, "tools": tools, "tool_choice": "required", "max_tokens": 30}
    chunks = await streamed(
        http, "/v1/chat/completions", **chat, speculative_decoding={"rounds": True}, seed=1
    )
    silent = [x for x in chunks if not x["choices"]]
    told = [r for x in chunks for r in x.get("speculative_decoding", {"rounds": []})["rounds"]]
    assert silent
    assert told[0]["base"] == 0


@pytest.mark.parametrize("asked", [None, {"rounds": False}, {"num_speculative_tokens": 2}])
async def test_nobody_else_sees_them(http: httpx.AsyncClient, asked: Any) -> None:
    body = {**BODY, "speculative_decoding": asked}
    assert "speculative_decoding" not in (await http.post("/v1/completions", json=body)).json()
    for chunk in await streamed(http, "/v1/completions", **body):
        assert "speculative_decoding" not in chunk


async def test_the_official_client_goes_on_working(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "the cat"}],
        max_tokens=20,
        seed=1,
        stream=True,
        extra_body={"speculative_decoding": {"rounds": True}},
    )
    text = ""
    rounds: list[Any] = []
    async for chunk in stream:
        text += "".join(c.delta.content or "" for c in chunk.choices)
        rounds += (chunk.model_extra or {}).get("speculative_decoding", {"rounds": []})["rounds"]
    plain = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "the cat"}], max_tokens=20, seed=1
    )
    assert text == plain.choices[0].message.content
    assert rounds


async def test_a_wrong_value_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        "/v1/completions", json={**BODY, "speculative_decoding": {"rounds": "yes"}}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "speculative_decoding.rounds"
    assert "true or false" in answer.json()["error"]["message"]


async def test_detokenize_tells_each_ids_own_text(running: Stack, http: httpx.AsyncClient) -> None:
    ids = running.ids("the cat ü")
    body = {"tokens": ids, "return_token_texts": True}
    answer = (await http.post("/detokenize", json=body)).json()
    assert answer["prompt"] == "the cat ü"
    assert len(answer["token_texts"]) == len(ids)
    assert "".join(answer["token_texts"]).startswith("the cat")
    assert set((await http.post("/detokenize", json={"tokens": ids})).json()) == {"prompt"}
