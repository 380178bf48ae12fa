"""Where `outrider traces` gets its answers: a running gateway, or an evidence file.

Knows HTTP's side and the file's side of the same questions; both give the JSON of
docs/evidence.md. Does not know how answers are shown.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from outrider.errors import CommandError, InputError, OperationError

if TYPE_CHECKING:
    import duckdb
    import httpx

Pairs = Sequence[tuple[str, str]]

_TIMEOUT_S: Final = 60.0


class TracesSource(Protocol):
    """Answers questions; the pairs are those of the gateway's query strings.

    Every method raises InputError for a wrong question and OperationError where there is no answer.
    """

    def acceptance(self, pairs: Pairs) -> dict[str, Any]: ...

    def requests(self, pairs: Pairs) -> dict[str, Any]: ...

    def request(self, request_id: str) -> dict[str, Any]: ...

    def export(self, pairs: Pairs, target: BinaryIO) -> None:
        """Write the file's bytes to `target`."""


class GatewaySource:
    """The gateway at `url`; `api_key` is sent as a bearer token, `authorities` check its TLS."""

    def __init__(self, url: str, api_key: str | None, authorities: Path | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._authorities = authorities

    def acceptance(self, pairs: Pairs) -> dict[str, Any]:
        return self._get("/v1/acceptance", pairs)

    def requests(self, pairs: Pairs) -> dict[str, Any]:
        return self._get("/v1/requests", pairs)

    def request(self, request_id: str) -> dict[str, Any]:
        from urllib.parse import quote

        return self._get(f"/v1/requests/{quote(request_id, safe='')}", ())

    def export(self, pairs: Pairs, target: BinaryIO) -> None:
        with (
            self._asking() as client,
            client.stream("GET", "/v1/acceptance/export", params=list(pairs)) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise self._refusal(response)
            for chunk in response.iter_bytes():
                target.write(chunk)

    def _get(self, path: str, pairs: Pairs) -> dict[str, Any]:
        with self._asking() as client:
            response = client.get(path, params=list(pairs))
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            body: dict[str, Any] = response.json()
        except json.JSONDecodeError as error:
            raise OperationError(f"--url: {self._url} is no Outrider gateway: {error}") from error
        return body

    @contextlib.contextmanager
    def _asking(self) -> Iterator[httpx.Client]:
        import ssl

        import httpx

        try:
            verify = (
                ssl.create_default_context(cafile=str(self._authorities))
                if self._authorities
                else True
            )
            # A gateway is never behind a web proxy, whatever the environment says.
            with httpx.Client(
                base_url=self._url,
                headers=self._headers,
                timeout=_TIMEOUT_S,
                trust_env=False,
                verify=verify,
            ) as client:
                yield client
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OperationError(f"--url: {self._url} does not answer: {error}") from error
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"--ca-cert: {self._authorities} cannot be used: {error}") from error

    def _refusal(self, response: httpx.Response) -> CommandError:
        try:
            message = str(response.json()["error"]["message"])
        except (json.JSONDecodeError, KeyError, TypeError):
            message = f"{self._url} answered {response.status_code}; is it an Outrider gateway?"
        kind = InputError if response.status_code in (400, 401, 404) else OperationError
        return kind(message)


class FileSource:
    """The evidence file at `path`, which no gateway may have open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def acceptance(self, pairs: Pairs) -> dict[str, Any]:
        from gateway.evidence import queries
        from gateway.evidence.answers import answer_json
        from gateway.evidence.filters import parse_acceptance

        now_s = time.time()
        query = parse_acceptance(pairs, now_s)
        with self._reading() as connection:
            return answer_json(query, queries.acceptance(connection, query), now_s)

    def requests(self, pairs: Pairs) -> dict[str, Any]:
        from gateway.evidence import queries
        from gateway.evidence.filters import parse_selection

        selection = parse_selection(pairs, time.time(), ("limit", "before"))
        named = dict(pairs)
        limit, before = int(named["limit"]), named.get("before", "")
        with self._reading() as connection:
            records = queries.recent_requests(connection, selection, limit + 1, before)
        if records is None:
            raise InputError(f"--before: {before!r} is no request that is kept here")
        return {
            "object": "list",
            "data": [record.to_json() for record in records[:limit]],
            "has_more": len(records) > limit,
            "last_id": records[:limit][-1].span_id if records else None,
        }

    def request(self, request_id: str) -> dict[str, Any]:
        from gateway.evidence import queries

        with self._reading() as connection:
            record = queries.one_request(connection, request_id)
        if record is None:
            raise InputError(f"REQUEST_ID: {request_id!r} is not kept in {self._path}")
        return record.to_json(with_rounds=True)

    def export(self, pairs: Pairs, target: BinaryIO) -> None:
        from gateway.evidence.export import ExportError, Format, Rows, export
        from gateway.evidence.filters import parse_selection

        selection = parse_selection(pairs, time.time(), ("format", "rows"))
        named = dict(pairs)
        rows, format_ = Rows(named["rows"]), Format(named["format"])
        try:
            with (
                self._reading() as connection,
                export(connection, rows, format_, selection) as file,
            ):
                shutil.copyfileobj(file, target)
        except ExportError as error:
            raise OperationError(f"--db: {error}") from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        import duckdb

        from gateway.evidence.file import FileUnusableError, open_to_read

        try:
            with open_to_read(self._path) as connection:
                yield connection
        except FileUnusableError as error:
            hint = "; ask the gateway that has it open with --url" if "in use" in str(error) else ""
            raise OperationError(f"--db: {error}{hint}") from error
        except duckdb.Error as error:
            raise OperationError(f"--db: {self._path}: {error}") from error
