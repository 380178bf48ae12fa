"""Models, health, version, load, tokenize, detokenize, landing page."""

from __future__ import annotations

import asyncio
import json
import re
import shlex

import httpx
import openai
import pytest

from gateway.landing import landing_page
from outrider import __version__
from tests.gateway.fake_verifier import EOS, MODEL, Answer, FakeVerifier


async def test_models(client: openai.AsyncOpenAI) -> None:
    (model,) = [entry async for entry in client.models.list()]
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "outrider")
    assert model.model_extra["max_model_len"] == 2048
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_model_names_may_have_slashes(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.model = "org/model"
    assert (await http.get("/v1/models/org/model")).json()["id"] == "org/model"
    assert (await http.get("/v1/models/org%2Fmodel")).json()["id"] == "org/model"


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health(http: httpx.AsyncClient, verifier: FakeVerifier, path: str) -> None:
    response = await http.get(path)
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "verifiers": [{"address": verifier.address, "serves": True, "problem": None}],
        "evidence": {"kind": "memory", "problem": None},
    }


async def test_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": __version__}


async def test_load_counts_running_generations(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    assert (await http.get("/load")).json() == {"server_load": 0}
    verifier.script = lambda request: Answer(wait_after=1)
    running = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
    await asyncio.wait_for(verifier.reached.wait(), 10)
    assert (await http.get("/load")).json() == {"server_load": 1}
    verifier.release.set()
    await running
    assert (await http.get("/load")).json() == {"server_load": 0}


async def test_tokenize_a_prompt(http: httpx.AsyncClient) -> None:
    response = await http.post("/tokenize", json={"model": MODEL, "prompt": "hé"})
    assert response.json() == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [EOS, ord("h"), ord("é")],
        "token_strs": None,
    }
    body = {"prompt": "hé", "add_special_tokens": False, "return_token_strs": True}
    answer = (await http.post("/tokenize", json=body)).json()
    assert answer["tokens"] == [ord("h"), ord("é")]
    assert answer["token_strs"] == ["h", "é"]


async def test_tokenize_messages(http: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    answer = (await http.post("/tokenize", json=body)).json()
    assert answer["tokens"] == [ord(c) for c in "user:x;"]


async def test_detokenize_gives_back_what_was_tokenized(http: httpx.AsyncClient) -> None:
    tokens = (await http.post("/tokenize", json={"prompt": "你好"})).json()["tokens"]
    answer = (await http.post("/detokenize", json={"model": MODEL, "tokens": tokens})).json()
    assert answer == {"prompt": chr(EOS) + "你好"}


async def test_tokenize_for_an_unknown_model(http: httpx.AsyncClient) -> None:
    response = await http.post("/tokenize", json={"model": "other", "prompt": "x"})
    assert response.status_code == 404


async def test_landing_page_shows_a_request_that_works(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert MODEL in page.text
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    curl = re.search(r"<pre><code>(.*?)</code></pre>", page.text, re.DOTALL)
    assert curl is not None
    words = shlex.split(curl[1].replace("&#x27;", "'").replace("&quot;", '"'))
    assert words[1] == str(http.base_url.join("/v1/chat/completions"))
    response = await http.post(words[1], json=json.loads(words[-1]))
    assert response.status_code == 200


def test_landing_page_escapes_what_it_shows() -> None:
    page = landing_page("http://<script>", ["<b>it's"], "0")
    assert "<script>" not in page
    assert "<b>" not in page
