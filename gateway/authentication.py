"""Lets requests in that show a key, and keeps each key within its limits.

Knows the Authorization header and which paths are open to all; does not know what is behind them.
Without keys everything is open.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import record_of
from gateway.errors import ApiError
from gateway.key_limits import KeyLimits
from gateway.keys import ApiKey, KeyRing
from gateway.linger import LingeringResponse

# For load balancers and supervisors; they tell strangers no more than whether it serves.
ALWAYS_OPEN: Final = frozenset(("/health", "/ping"))

# What only reads does not count against a limit: it costs no step of a model.
_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))


class Authentication:
    """Wraps an application behind `gateway.access.AccessMiddleware`.

    `open_prefixes` are paths that everybody may read, with all below them (static files).
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, open_prefixes: Collection[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._limits = KeyLimits(keys.keys)
        self._open_prefixes = tuple(open_prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys:
            await self._app(scope, receive, send)
            return
        key: ApiKey | None = None
        try:
            key = self._key_of(scope)
            record_of(scope).key = key.name
        except ApiError as error:
            if not self._is_open(scope):
                await _refuse(error, scope, receive, send)
                return
        if key is None or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        try:
            self._limits.enter(key)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._limits.leave(key)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path in ALWAYS_OPEN:
            return True
        return scope["method"] in _READING and any(
            path == prefix or path.startswith(f"{prefix}/") for prefix in self._open_prefixes
        )

    def _key_of(self, scope: Scope) -> ApiKey:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            raise _unauthorized(
                "this server needs an API key; send it as the header 'Authorization: Bearer KEY'"
            )
        scheme, _, presented = given[0].partition(b" ")
        if len(given) > 1 or scheme.lower() != b"bearer" or not presented.strip():
            raise _unauthorized("the header Authorization is not of the form 'Bearer KEY'")
        key = self._keys.find(presented.strip().decode("utf-8", "surrogateescape"))
        if key is None:
            raise _unauthorized("the API key is not known here")
        return key


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        code="invalid_api_key",
        headers={"WWW-Authenticate": 'Bearer realm="outrider"'},
    )


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without the body having been read; what of it comes is thrown away, for a moment."""
    headers = {**error.headers, "Connection": "close"}
    response = LingeringResponse(error.body(), status_code=error.status, headers=headers)
    await response(scope, receive, send)
