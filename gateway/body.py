"""Reads a request's body within limits and parses it as JSON.

Knows bytes and JSON; does not know what the object means.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from gateway.errors import ApiError, bad_request

# A JSON escape of one half of a surrogate pair; alone it is no character.
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


async def read_json_object(request: Request, max_bytes: int, timeout_s: float) -> dict[str, Any]:
    """The body as a JSON object.

    Raises ApiError: 400 for what is not a JSON object in UTF-8, 408 for a body that does not come,
    413 for one above `max_bytes` (refused by its announced length, or as soon as more has arrived),
    415 for another media type. Raises ClientGoneError when the client leaves.
    """
    _require_json_media_type(request)
    try:
        async with asyncio.timeout(timeout_s):
            raw = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"the request body did not arrive within {timeout_s:g} s", headers=_CLOSE
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return parse_json_object(raw)


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """`raw` as a JSON object without NaN, Infinity or unpaired surrogates; ApiError 400 else."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"the body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise bad_request("the body is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request(f"the body must be a JSON object, not {_json_type(value)}")
    if _SURROGATE_ESCAPE.search(raw):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise bad_request("the body holds an unpaired surrogate (\\ud800 to \\udfff)") from None
        except RecursionError:
            raise bad_request("the body is not valid JSON: it is nested too deeply") from None
    return value


# The unread rest of a refused body would be taken for the next request.
_CLOSE = {"Connection": "close"}


def _require_json_media_type(request: Request) -> None:
    content_type = request.headers.get("content-type")
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"Content-Type: {media_type!r} is not supported; send 'application/json'",
            headers=_CLOSE,
        )


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the request body is larger than the {max_bytes} bytes allowed", headers=_CLOSE
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a string" if isinstance(value, str) else "an array"
