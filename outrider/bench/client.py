"""HTTP to one OpenAI-compatible server.

Knows endpoints, bodies and how answers fail; does not know which requests are sent when. Times
are the running event loop's, in seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from outrider.bench.drafts import DraftCounts, from_exposition
from outrider.bench.reading import Reading, error_message
from outrider.bench.records import Record
from outrider.bench.samples import Backend, Sample
from outrider.bench.sse import event_data
from outrider.config import shorten
from outrider.credentials import is_loopback
from outrider.errors import InputError, OperationError

_CONNECT_S = 10.0


class RefusedError(Exception):
    """The server answered with an HTTP error; `status` and the server's own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}" if message else f"HTTP {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    """How every request of a run is asked; `body` is merged into each request's own.

    `running_usage` asks for `stream_options.continuous_usage_stats`, which is vLLM's and ours;
    `seed` makes a seed of its own for each prompt, the same for every arm (None: none is sent);
    `endpoint` is a path instead of the backend's own (empty).
    """

    backend: Backend
    output_len: int
    body: Mapping[str, Any] = field(default_factory=dict)
    running_usage: bool = True
    seed: int | None = None
    endpoint: str = ""

    @property
    def path(self) -> str:
        """Where requests go."""
        return self.endpoint or self.backend.path


class Server(AbstractAsyncContextManager["Server"]):
    """One server; `base_url` with or without `/v1`. Use it as an async context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        insecure: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout_s` is the longest silence of an answer that is waited for; `insecure` takes any
        certificate.

        Raises InputError where `base_url` is no HTTP URL.
        """
        self.url = root_url(base_url)
        loopback = is_loopback(httpx.URL(self.url).host)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=dict(headers or {}),
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=not loopback,
            verify=not insecure,
            transport=transport,
        )

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[Mapping[str, Any]]:
        """The served models, as `GET /v1/models` lists them. Raises OperationError."""
        try:
            response = await self._http.get("/v1/models")
            listed = _json(response).get("data")
        except httpx.HTTPError as error:
            raise OperationError(
                f"{self.url} cannot be reached: {reason(error)}; start a server (outrider serve "
                "MODEL) or give the running one's --base-url"
            ) from error
        except RefusedError as error:
            raise OperationError(
                f"{self.url}/v1/models answers {error}; --ready-check-timeout-sec waits for a "
                "server that is still starting"
            ) from error
        if not isinstance(listed, list) or not listed:
            raise OperationError(f"{self.url}/v1/models lists no model")
        return [entry for entry in listed if isinstance(entry, dict) and entry.get("id")]

    async def version(self) -> str:
        """What `/version` says; empty where it says nothing."""
        try:
            return str(_json(await self._http.get("/version")).get("version") or "")
        except (httpx.HTTPError, RefusedError):
            return ""

    async def draft_counters(self, model: str) -> DraftCounts | None:
        """What `/metrics` counts of `model`; None where there is no such page or no counters."""
        try:
            response = await self._http.get("/metrics")
            if response.status_code != httpx.codes.OK:
                return None
            return from_exposition(response.text, model)
        except (httpx.HTTPError, ValueError):
            return None

    async def stream(
        self, model: str, index: int, sample: Sample, ask: Ask, extra: Mapping[str, Any]
    ) -> tuple[float, Reading, bool]:
        """One streamed answer: when it was sent, what was read, whether the server closed it.

        Raises RefusedError, httpx.HTTPError or ValueError (an answer that is no such stream).
        """
        body = request_body(model, index, sample, ask, extra)
        loop = asyncio.get_running_loop()
        reading, closed = Reading(), False
        sent = loop.time()
        async with self._http.stream("POST", ask.path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise RefusedError(response.status_code, _words(response))
            async for data in event_data(response.aiter_bytes()):
                if data.strip() == "[DONE]":
                    closed = True
                    continue
                _take(reading, loop.time(), data)
        return sent, reading, closed

    async def record(
        self, model: str, index: int, sample: Sample, ask: Ask, extra: Mapping[str, Any]
    ) -> Record:
        """One streamed answer as a record; whatever fails is its `error`."""
        began = asyncio.get_running_loop().time()
        try:
            sent, reading, closed = await self.stream(model, index, sample, ask, extra)
        except RefusedError as error:
            return Record(index, sample.name, began, error=str(error))
        except httpx.HTTPError as error:
            return Record(index, sample.name, began, error=reason(error))
        except ValueError as error:
            return Record(index, sample.name, began, error=f"not a stream of answers: {error}")
        return reading.record(index, sample.name, sent, closed=closed)


def root_url(base_url: str) -> str:
    """The server's root: without a closing `/` or `/v1`. Raises InputError."""
    try:
        url = httpx.URL(base_url)
        usable = url.scheme in ("http", "https") and bool(url.host)
        usable = usable and (url.port is None or 0 < url.port < 65536)
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise InputError(f"--base-url: {base_url!r} is not a URL; write http://HOST:PORT")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def request_body(
    model: str, index: int, sample: Sample, ask: Ask, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The request's JSON; `extra` is the arm's own part.

    It goes over `ask.body`, object by object. Raises InputError where the sample does not fit the
    endpoint.
    """
    options = {"include_usage": True}
    if ask.running_usage:
        options["continuous_usage_stats"] = True
    limit = "max_completion_tokens" if ask.backend is Backend.CHAT else "max_tokens"
    body: dict[str, Any] = {
        "model": model,
        **sample.prompt_fields(ask.backend),
        limit: sample.output_len or ask.output_len,
        "stream": True,
        "stream_options": options,
    }
    if ask.seed is not None:
        body["seed"] = ask.seed + index
    return merged(merged(body, ask.body), extra)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; objects that both have are merged in turn."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def reason(error: httpx.HTTPError) -> str:
    """Why an exchange failed, in a few words that are the same for all of its kind."""
    if isinstance(error, httpx.TimeoutException):
        kind = "connecting" if isinstance(error, httpx.ConnectTimeout) else "waiting for the answer"
        return f"timed out while {kind}"
    if isinstance(error, httpx.RemoteProtocolError):
        return "the server broke off the connection"
    text = shorten(" ".join(str(error).split()), 120)
    return text[:1].lower() + text[1:] if text else type(error).__name__


def _json(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != httpx.codes.OK:
        raise RefusedError(response.status_code, _words(response))
    try:
        content = response.json()
    except ValueError as error:
        raise RefusedError(response.status_code, "the answer is not JSON") from error
    if not isinstance(content, dict):
        raise RefusedError(response.status_code, "the answer is not an object")
    return content


def _words(response: httpx.Response) -> str:
    try:
        return error_message(response.json())
    except ValueError:
        return error_message(response.text)


def _take(reading: Reading, at: float, data: str) -> None:
    try:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("not an object")
        reading.event(at, event)
    except (ValueError, TypeError, AttributeError) as error:
        # Whatever a foreign server sends is its own; only the request that got it fails.
        raise ValueError(shorten(data)) from error
