"""Outputs for requests that have none: a running OpenAI-compatible server answers them.

Knows HTTP and the two endpoints; does not know what is done with the answers. Answers come back
in the order of the requests, whatever the server's.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

import httpx

from outrider.advise.fields import BadLineError
from outrider.advise.served import base_url, may_be_proxied
from outrider.advise.traffic import Chat, Recorded, with_response
from outrider.config import shorten
from outrider.errors import InputError, OperationError

_TIMEOUT_S = 600.0


class Generator:
    """Asks the server at `url`, `concurrency` requests at once; a context.

    `max_tokens` is for requests that name no limit. Token ids are asked for where the server is
    Outrider or vLLM (both answer /version), so that none of its answers is tokenized again.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        max_tokens: int = 256,
        concurrency: int = 4,
        api_key: str | None = None,
    ) -> None:
        self._base = base_url(url)
        self._max_tokens = max_tokens
        self._pool = ThreadPoolExecutor(concurrency)
        self._window = 2 * concurrency
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(
            base_url=self._base,
            timeout=_TIMEOUT_S,
            headers=headers,
            trust_env=may_be_proxied(self._base),
        )
        self._model = model
        self._gives_ids = False
        self._connected = False
        self.generated = 0

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def complete(
        self, requests: Iterable[Recorded | BadLineError]
    ) -> Iterator[Recorded | BadLineError]:
        """The requests, in order, those without an output with the server's; errors as they are.

        A request that the server refuses comes back as an error. Raises InputError for a model
        that is not served, OperationError where the server fails.
        """
        window: deque[Future[list[Recorded | BadLineError]]] = deque()
        for request in requests:
            if isinstance(request, Recorded) and request.output is None:
                if not self._connected:
                    self._connect()
                self.generated += 1
                window.append(self._pool.submit(self._completed, request))
            else:
                known: Future[list[Recorded | BadLineError]] = Future()
                known.set_result([request])
                window.append(known)
            if len(window) >= self._window:
                yield from window.popleft().result()
        while window:
            yield from window.popleft().result()

    def _connect(self) -> None:
        models = self._object("/v1/models", self._get("/v1/models")).get("data")
        names = [str(entry["id"]) for entry in models or () if "id" in entry]
        if not names:
            raise OperationError(f"--url: {self._base}/v1/models names no model")
        if self._model is None:
            self._model = names[0]
        elif self._model not in names:
            raise InputError(
                f"--served-model: {self._model!r} is not served at {self._base}; served: "
                f"{', '.join(names)}"
            )
        self._gives_ids = self._get("/version").status_code == 200
        self._connected = True

    def _completed(self, recorded: Recorded) -> list[Recorded | BadLineError]:
        recorded = replace(recorded, max_tokens=recorded.max_tokens or self._max_tokens)
        try:
            answered = with_response(recorded, self._ask(recorded))
        except BadLineError as error:
            return [error]
        return list(answered)

    def _ask(self, recorded: Recorded) -> dict[str, Any]:
        body: dict[str, Any] = {
            **(recorded.sampling or {}),
            "model": self._model,
            "max_tokens": recorded.max_tokens,
        }
        if self._gives_ids:
            body["return_token_ids"] = True
        if isinstance(recorded.prompt, Chat):
            path = "/v1/chat/completions"
            body["messages"] = json.loads(recorded.prompt.messages_json)
            if recorded.prompt.tools_json:
                body["tools"] = json.loads(recorded.prompt.tools_json)
        else:
            path = "/v1/completions"
            prompt = recorded.prompt
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        try:
            answer = self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise OperationError(f"--url: {self._base}{path} does not answer: {error}") from error
        if 400 <= answer.status_code < 500 and answer.status_code not in (401, 403, 404, 429):
            raise BadLineError(
                f"{recorded.where}: {self._base} refuses it: {shorten(answer.text, 300)}"
            )
        return self._object(path, answer)

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._client.get(path)
        except httpx.HTTPError as error:
            raise OperationError(f"--url: {self._base} does not answer: {error}") from error

    def _object(self, path: str, answer: httpx.Response) -> dict[str, Any]:
        if answer.status_code != 200:
            raise OperationError(
                f"--url: {self._base}{path} answers {answer.status_code}: "
                f"{shorten(answer.text, 300)}"
            )
        try:
            value = answer.json()
        except ValueError as error:
            raise OperationError(f"--url: {self._base}{path} answers no JSON") from error
        if not isinstance(value, dict):
            raise OperationError(f"--url: {self._base}{path} answers no JSON object")
        return value
