"""Handlers of `/v1/acceptance` and `/v1/requests`.

Knows query strings, JSON and statuses; what is answered is evidence.py's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import BinaryIO, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.errors import ApiError, bad_request
from gateway.evidence.answers import answer_json
from gateway.evidence.evidence import Evidence
from gateway.evidence.export import ExportError, Format, Rows
from gateway.evidence.filters import parse_acceptance, parse_selection
from gateway.evidence.settings import NONE
from outrider.errors import InputError

logger = logging.getLogger(__name__)

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
# Each holds the file for as long as it is written.
MAX_EXPORTS: Final = 2
_CHUNK: Final = 256 * 1024

logger = logging.getLogger(__name__)

_Choice = TypeVar("_Choice", bound=Enum)


class EvidenceRoutes:
    """Handlers over a started `evidence`."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._exports = 0

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/acceptance", self.acceptance, methods=["GET"]),
            Route("/v1/acceptance/export", self.export, methods=["GET"]),
            Route("/v1/requests", self.requests, methods=["GET"]),
            Route("/v1/requests/{request_id:path}", self.request, methods=["GET"]),
        ]

    async def acceptance(self, request: Request) -> Response:
        self._require_kept()
        now_s = time.time()
        try:
            query = parse_acceptance(_pairs(request), now_s)
            answer = await self._evidence.acceptance(query)
        except InputError as error:
            raise _refused(error) from error
        except TimeoutError as error:
            raise _too_slow() from error
        return JSONResponse(
            {
                **answer_json(query, answer, now_s),
                "dropped": self._evidence.counts.dropped_by_reason(),
                "relabelled": self._evidence.relabelled,
                "reported": self._evidence.reported(),
                "store": store_json(self._evidence),
            }
        )

    async def requests(self, request: Request) -> Response:
        self._require_kept()
        pairs = _pairs(request)
        try:
            selection = parse_selection(pairs, time.time(), ("limit", "before"))
            limit = _limit(pairs)
            before = _last(pairs, "before")
            records = await self._evidence.requests(selection, limit + 1, before)
        except InputError as error:
            raise _refused(error) from error
        except TimeoutError as error:
            raise _too_slow() from error
        if records is None:
            raise bad_request(f"before: {before[:64]!r} is no request that is kept here", "before")
        page = records[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": [record.to_json() for record in page],
                "has_more": len(records) > limit,
                "last_id": page[-1].span_id if page else None,
            }
        )

    async def request(self, request: Request) -> Response:
        self._require_kept()
        name = request.path_params["request_id"]
        try:
            record = await self._evidence.request(name)
        except TimeoutError as error:
            raise _too_slow() from error
        if record is None:
            raise ApiError(404, f"request_id: {name[:128]!r} is not kept here", param="request_id")
        return JSONResponse(record.to_json(with_rounds=True))

    async def export(self, request: Request) -> Response:
        self._require_kept()
        pairs = _pairs(request)
        try:
            selection = parse_selection(pairs, time.time(), ("format", "rows"))
            format_ = _one_of(Format, pairs, "format", Format.PARQUET)
            rows = _one_of(Rows, pairs, "rows", Rows.REQUESTS)
        except InputError as error:
            raise _refused(error) from error
        if self._exports >= MAX_EXPORTS:
            raise ApiError(429, f"{self._exports} exports are being written; try again")
        self._exports += 1
        try:
            file = await self._evidence.export(rows, format_, selection)
        except TimeoutError as error:
            raise _too_slow() from error
        except ExportError as error:
            logger.error("%s", error)
            raise ApiError(
                503,
                "the gateway's temporary folder cannot take this export; narrow since and until, "
                "or give the folder more room (its log has the reason)",
            ) from error
        finally:
            self._exports -= 1
        name = f"outrider-{rows.value}.{format_.value}"
        return StreamingResponse(
            _chunks(file),
            media_type=format_.media_type,
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    def _require_kept(self) -> None:
        if not self._evidence.settings.keeps:
            raise ApiError(404, f"no evidence is kept here: --evidence-db is {NONE}")


def store_json(evidence: Evidence) -> dict[str, object]:
    """Where evidence is kept, and what is wrong with that place."""
    settings = evidence.settings
    kind = "file" if settings.path else settings.database
    return {"kind": kind, "problem": evidence.problem or None}


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
    finally:
        file.close()


def _pairs(request: Request) -> list[tuple[str, str]]:
    return list(request.query_params.multi_items())


def _last(pairs: Sequence[tuple[str, str]], name: str) -> str:
    return next((value for key, value in reversed(pairs) if key == name), "")


def _limit(pairs: Sequence[tuple[str, str]]) -> int:
    value = _last(pairs, "limit") or str(DEFAULT_LIMIT)
    # More digits than those of the limit are too many, and `int` refuses thousands of them.
    short = len(value) <= len(str(MAX_LIMIT))
    if not (short and value.isascii() and value.isdigit() and 1 <= int(value) <= MAX_LIMIT):
        raise InputError(f"limit: {value[:64]!r} is not an integer from 1 to {MAX_LIMIT}")
    return int(value)


def _one_of(
    kind: type[_Choice], pairs: Sequence[tuple[str, str]], name: str, default: _Choice
) -> _Choice:
    value = _last(pairs, name) or default.value
    allowed = [item.value for item in kind]
    if value not in allowed:
        raise InputError(f"{name}: {value[:64]!r} is not one of {', '.join(allowed)}")
    return kind(value)


def _refused(error: InputError) -> ApiError:
    return bad_request(str(error), str(error).partition(":")[0])


def _too_slow() -> ApiError:
    return ApiError(503, "the evidence file is busy; narrow since and until, or try again")
