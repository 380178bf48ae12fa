"""/tokenize and /detokenize over the real verifier: the ids a generation would be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interfaces.stack import MAX_MODEL_LEN, MODEL, Stack, stack

MESSAGES = [{"role": "user", "content": "a cat"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


async def ids_of(http: httpx.AsyncClient, **body: Any) -> list[int]:
    response = await http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    tokens: list[int] = answer["tokens"]
    return tokens


async def test_a_prompt_and_its_way_back(running: Stack, http: httpx.AsyncClient) -> None:
    tokens = await ids_of(http, model=MODEL, prompt="über the cat 🙂<|end|>")
    assert tokens == running.ids("über the cat 🙂<|end|>")
    back = await http.post("/detokenize", json={"model": MODEL, "tokens": tokens})
    assert back.json() == {"prompt": "über the cat 🙂<|end|>"}


async def test_strings_only_where_asked(http: httpx.AsyncClient) -> None:
    plain = (await http.post("/tokenize", json={"prompt": "the cat"})).json()
    asked = (
        await http.post("/tokenize", json={"prompt": "the cat", "return_token_strs": True})
    ).json()
    assert plain["token_strs"] is None
    assert len(asked["token_strs"]) == asked["count"]
    assert "".join(asked["token_strs"]).replace("Ġ", " ") == "the cat"


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        ({}, "<|start|>user\na cat<|end|><|start|>assistant\n"),
        ({"add_generation_prompt": False}, "<|start|>user\na cat<|end|>"),
        (
            {"add_generation_prompt": False, "chat_template_kwargs": {"mood": "!"}},
            "<|start|>user\na cat<|end|>!",
        ),
        ({"add_generation_prompt": False, "tools": TOOLS}, "<|start|>user\na cat<|end|>TOOLS1"),
    ],
)
async def test_messages_go_through_the_template(
    running: Stack, http: httpx.AsyncClient, extras: dict[str, Any], text: str
) -> None:
    assert await ids_of(http, messages=MESSAGES, **extras) == running.ids(text)


async def test_they_are_the_ids_that_are_generated_from(
    running: Stack, http: httpx.AsyncClient
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert answer["prompt_token_ids"] == await ids_of(http, messages=MESSAGES)
    body = {"prompt": "a cat", "max_tokens": 1, "return_token_ids": True}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["prompt_token_ids"] == await ids_of(http, prompt="a cat")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "none", "content": "x"}]}, 400, "messages"),
        ("/tokenize", {"messages": MESSAGES, "tools": "f"}, 400, "tools"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "chat_template"),
        (
            "/tokenize",
            {"messages": MESSAGES, "chat_template_kwargs": 1},
            400,
            "chat_template_kwargs",
        ),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, 400, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a " * 1_000_000}, 400, "prompt"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "1"}, 400, "tokens"),
        ("/detokenize", {"tokens": [302]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_bad_input_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)


async def test_there_is_no_tokenizer_info(http: httpx.AsyncClient) -> None:
    response = await http.get("/tokenizer_info")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "NotFoundError"


async def test_a_trusted_template(socket_dir: Path) -> None:
    template = "{{ messages[0].content }}{% for d in documents %}{{ d.title }}{% endfor %}"
    body = {"messages": MESSAGES, "chat_template": template, "documents": [{"title": " the cat"}]}
    async with stack(socket_dir, trust_request_chat_template=True) as trusting:
        expected = trusting.ids("a cat the cat")
        assert await ids_of(trusting.http, **body) == expected
        answer = await trusting.http.post(
            "/v1/chat/completions", json={**body, "max_tokens": 2, "return_token_ids": True}
        )
    assert answer.json()["prompt_token_ids"] == expected
