"""Errors as OpenAI's clients expect them.

Knows HTTP statuses, the error object and how a gRPC status maps to them; does not know who failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, cast

import grpc

logger = logging.getLogger(__name__)

# Trailing metadata in which a verifier names the request field it refuses.
FIELD_METADATA_KEY: Final = "outrider-field"
# ... and OpenAI's own error code, where clients look for one.
CODE_METADATA_KEY: Final = "outrider-code"

# Seconds a client is asked to wait before it tries again.
RETRY_AFTER_S: Final = 1

_TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}

_STATUS_BY_GRPC: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ALREADY_EXISTS: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: 503,
    grpc.StatusCode.ABORTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class ApiError(Exception):
    """Answers a request with `status` and OpenAI's error object.

    `message` is one sentence for the client; `param` is the request field at fault, if one is;
    `code` is OpenAI's word for the error, if it has one that clients look for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, HTTPStatus(self.status).phrase.replace(" ", "") + "Error")

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same with the verifier's name of a field replaced by the one this client used."""
        theirs = names.get(self.param or "")
        if theirs is None:
            return self
        message = self.message
        if self.param and message.startswith(self.param):
            message = theirs + message.removeprefix(self.param)
        return ApiError(self.status, message, param=theirs, code=self.code, headers=self.headers)

    def body(self) -> dict[str, object]:
        """`{"error": {"message", "type", "param", "code"}}`; `code` falls back to the status."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code or self.status,
            }
        }


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A 400 for `param`."""
    return ApiError(400, message, param=param)


def unavailable(message: str) -> ApiError:
    """A 503 with `Retry-After`."""
    return ApiError(503, message)


def from_rpc_error(error: grpc.aio.AioRpcError, address: str) -> ApiError:
    """The client's view of a verifier's failure; what is not meant for clients goes to the log."""
    code = error.code()
    details = (error.details() or "").strip()
    status = _STATUS_BY_GRPC.get(code, 500)
    if status == 500:
        logger.error("verifier %s failed a request: %s: %s", address, code.name, details)
        return ApiError(500, "the verifier failed this request; its log has the reason")
    if status == 503:
        return unavailable(f"the verifier at {address} is not available: {details or code.name}")
    if status == 504:
        return ApiError(504, f"the request ran out of time: {details or code.name}")
    return ApiError(
        status,
        details or code.name,
        param=_metadata(error, FIELD_METADATA_KEY),
        code=_metadata(error, CODE_METADATA_KEY),
    )


def _metadata(error: grpc.aio.AioRpcError, wanted: str) -> str | None:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in metadata:
        if key == wanted:
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return None
