"""What is refused once a gateway stops, and what it waits for."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.draining import Drain, DrainMiddleware


class World:
    """An application whose work ends when the test says so."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        routes = [
            Route("/work", self._work, methods=["POST"]),
            Route("/fail", self._fail, methods=["POST"]),
            *(Route(path, self._look, methods=["GET"]) for path in ("/health", "/ping", "/seen")),
        ]
        app = DrainMiddleware(Starlette(routes=routes), self.drain)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def _work(self, request: Request) -> Response:
        self.entered.set()
        await self.leave.wait()
        return PlainTextResponse("done")

    async def _fail(self, request: Request) -> Response:
        raise RuntimeError("a bug")

    async def _look(self, request: Request) -> Response:
        return PlainTextResponse("seen")


@pytest.fixture
def world() -> World:
    return World()


async def test_nothing_is_refused_before(world: World) -> None:
    world.leave.set()
    assert (await world.http.post("/work")).text == "done"
    assert (await world.http.get("/health")).text == "seen"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/work"), ("GET", "/health"), ("GET", "/ping")]
)
async def test_new_work_and_health_are_503_that_say_when_to_come_back(
    world: World, method: str, path: str
) -> None:
    world.drain.begin()
    response = await world.http.request(method, path, json={})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.headers["connection"] == "close"
    assert response.json()["error"]["type"] == "ServiceUnavailableError"
    assert not world.entered.is_set()


async def test_what_is_only_looked_at_goes_on(world: World) -> None:
    world.drain.begin()
    assert (await world.http.get("/seen")).text == "seen"


async def test_running_work_is_waited_for(world: World) -> None:
    running = asyncio.create_task(world.http.post("/work"))
    await world.entered.wait()
    world.drain.begin()
    idle = asyncio.create_task(world.drain.wait_idle())
    assert (await world.http.post("/work")).status_code == 503
    assert not idle.done()
    world.leave.set()
    assert (await running).text == "done"
    await asyncio.wait_for(idle, 10)


async def test_an_idle_gateway_waits_for_nothing(world: World) -> None:
    assert (await world.http.get("/seen")).text == "seen"
    await asyncio.wait_for(world.drain.wait_idle(), 10)


async def test_work_that_fails_is_over(world: World) -> None:
    assert (await world.http.post("/fail")).status_code == 500
    await asyncio.wait_for(world.drain.wait_idle(), 10)
