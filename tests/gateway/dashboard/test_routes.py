"""/dashboard, its files and /v1/live over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import gateway.dashboard
from gateway.dashboard.files import read_files
from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

STATIC = Path(gateway.dashboard.__file__).parent / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())


async def first_event(http: httpx.AsyncClient) -> dict[str, Any]:
    async with http.stream("GET", "/v1/live") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            told: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return told
    raise AssertionError("the feed ended before it began")


async def test_the_page_may_load_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    answer = await http.get("/dashboard")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", NAMES)
def test_files_name_no_other_host(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    hosts = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", text)
    assert [h for h in hosts if h != "http://www.w3.org"] == []
    assert " style=" not in text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert len(text.splitlines()) < 300


def test_every_file_of_the_package_is_served() -> None:
    assert sorted(read_files()) == NAMES


async def test_the_files_that_the_page_names_exist(http: httpx.AsyncClient) -> None:
    page = (await http.get("/dashboard")).text
    links = re.findall(r'(?:src|href)="(dashboard/[^"]+)"', page)
    assert len(links) > 4
    for link in links:
        assert (await http.get(f"/{link}")).status_code == 200, link
    for name in (n for n in NAMES if n.endswith(".js")):
        for module in re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text("utf-8")):
            assert module in NAMES, f"{name} imports {module}"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("main.js", "text/javascript"), ("base.css", "text/css"), ("icon.svg", "image/svg+xml")],
)
async def test_files_have_their_type_and_are_not_sent_twice(
    http: httpx.AsyncClient, name: str, kind: str
) -> None:
    answer = await http.get(f"/dashboard/{name}")
    assert answer.headers["content-type"].startswith(kind)
    again = await http.get(f"/dashboard/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


@pytest.mark.parametrize(
    "path", ["/dashboard/other.js", "/dashboard/..%2froutes.py", "/dashboard/%2e%2e%2ffeed.py"]
)
async def test_other_files_are_not_there(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


async def test_a_slash_at_the_end_leads_to_the_page(http: httpx.AsyncClient) -> None:
    answer = await http.get("/dashboard/", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == "/dashboard"


async def test_the_landing_page_leads_there(http: httpx.AsyncClient) -> None:
    assert 'href="dashboard"' in (await http.get("/")).text


async def test_the_feed_shows_verifiers_and_running_requests(
    verifier: FakeVerifier, http: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    verifier.script = lambda request: Answer(wait_after=2)
    request = asyncio.create_task(
        client.completions.create(model=MODEL, prompt="a secret", extra_body={"request_id": "r1"})
    )
    await asyncio.wait_for(verifier.reached.wait(), 10)
    async with asyncio.timeout(10):
        # The last round is sent when the verifier waits, and may be on its way.
        while (told := await first_event(http))["running"][0]["completion_tokens"] < len("Hello"):
            pass
    (shown,) = told["verifiers"]
    assert shown["address"] == verifier.address
    assert shown["info"]["speculation_state"] == "off: drafts do not pay"
    (running,) = told["running"]
    assert running["request_id"] == "r1"
    assert running["model"] == MODEL
    assert running["completion_tokens"] == len("Hello")
    assert "secret" not in json.dumps(told)
    assert "Hel" not in json.dumps(told)
    verifier.release.set()
    await request
    assert (await first_event(http))["running"] == []


async def test_rates_come_from_the_verifiers_totals(
    gateway: RunningGateway, verifier: FakeVerifier, http: httpx.AsyncClient
) -> None:
    async with http.stream("GET", "/v1/live") as feed, client_of(gateway) as client:
        lines = feed.aiter_lines()
        await anext(lines)
        await client.completions.create(model=MODEL, prompt="x")
        added = accepted = 0
        while added < len("Hello!"):
            line = await asyncio.wait_for(anext(lines), 10)
            if not line:
                continue
            told = json.loads(line.removeprefix("data: "))
            for sample in told.get("history", [told["sample"]]):
                for part in sample["verifiers"].values():
                    added += part["generation_tokens"]
                    accepted += part["accepted"]
        assert added == len("Hello!")
        assert accepted == verifier.totals.num_accepted_draft_tokens > 0


async def test_the_feed_lives_on_without_verifiers(
    start_gateway: StartGateway, socket_dir: Path
) -> None:
    lonely = await start_gateway(f"unix:{socket_dir}/nobody.sock")
    async with httpx.AsyncClient(base_url=lonely.url, trust_env=False, timeout=30) as http:
        (shown,) = (await first_event(http))["verifiers"]
    assert shown["serves"] is False
    assert shown["info"] is None
    assert shown["problem"]


async def test_a_listener_does_not_hold_back_the_gateways_end(
    start_gateway: StartGateway, verifier: FakeVerifier
) -> None:
    gateway = await start_gateway(verifier.address, drain_timeout_s=60.0)
    async with (
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as http,
        http.stream("GET", "/v1/live") as feed,
    ):
        lines = feed.aiter_lines()
        await anext(lines)
        await asyncio.wait_for(gateway.stop(), 30)
        async for _ in lines:
            pass
