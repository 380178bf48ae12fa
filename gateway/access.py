"""One log line for each request (polls: at debug only), and the last line of defence against a bug.

Knows methods, routes, statuses and counts; never sees prompts or answers.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.body import ClientGoneError
from gateway.errors import ApiError
from gateway.metrics import GatewayMetrics
from outrider.telemetry import TRACE_ID_HEADER

if TYPE_CHECKING:
    # It brings the SDK's interface in, which an untraced gateway does without.
    from gateway.tracing import GatewayTrace

logger = logging.getLogger(__name__)

_KEY: Final = "outrider.access"

# What nginx and others log for a client that left before its answer.
CLIENT_GONE_STATUS: Final = 499

# What machines ask every few seconds; at info it would bury the requests.
_POLLED: Final = frozenset(("/health", "/metrics", "/ping", "/v1/requests"))
# One page asks for many of them.
_PAGE_FILES: Final = "/dashboard/"


@dataclass(slots=True)
class AccessRecord:
    """What is known of a request in the end. `arrived` is time.monotonic seconds."""

    arrived: float = field(default_factory=time.monotonic)
    status: int = 0
    request_id: str = "-"
    model: str = "-"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # The API key's name, where the gateway has keys and the request one of them.
    key: str = ""
    # The error's type that ended an answer, also one whose status had been sent.
    error: str = ""
    note: str = ""
    trace: GatewayTrace | None = None


def record_of(scope: Scope) -> AccessRecord:
    """The record of the request that `scope` belongs to."""
    record: AccessRecord = scope[_KEY]
    return record


class AccessMiddleware:
    """Wraps the whole application; `routes` are the paths metrics may name."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, routes: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = AccessRecord()
        scope[_KEY] = record

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if record.trace is not None and record.trace.trace_id:
                    header = (TRACE_ID_HEADER.encode(), record.trace.trace_id.encode())
                    message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except ClientGoneError:
            record.status = CLIENT_GONE_STATUS
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            record.status = 500
        finally:
            if record.trace is not None:
                record.trace.end(record.status, record.error)
            self._log(scope, record)

    def _log(self, scope: Scope, record: AccessRecord) -> None:
        path = scope["path"]
        self._metrics.response(path if path in self._routes else "other", record.status)
        if record.key:
            self._metrics.key_response(record.key, record.status)
        logger.log(
            logging.DEBUG if path in _POLLED or path.startswith(_PAGE_FILES) else logging.INFO,
            "%s %s %d %.1f ms request=%s model=%s prompt_tokens=%d completion_tokens=%d%s%s",
            scope["method"],
            # A path with line breaks would forge log lines.
            path.encode("unicode_escape").decode("ascii"),
            record.status,
            (time.monotonic() - record.arrived) * 1e3,
            record.request_id,
            record.model,
            record.prompt_tokens,
            record.completion_tokens,
            f" key={record.key}" if record.key else "",
            f" {record.note}" if record.note else "",
        )


def failed() -> JSONResponse:
    """The answer to a request that ran into a bug."""
    error = ApiError(500, "the gateway failed this request; its log has the reason")
    return JSONResponse(error.body(), status_code=500)
