"""How a verifier's failures look to a client."""

from __future__ import annotations

import grpc
import pytest

from gateway.errors import ApiError, from_rpc_error


def rpc_error(
    code: grpc.StatusCode, details: str, *metadata: tuple[str, str]
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details
    )


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.OUT_OF_RANGE, 400),
        (grpc.StatusCode.FAILED_PRECONDITION, 400),
        (grpc.StatusCode.ALREADY_EXISTS, 400),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.UNIMPLEMENTED, 501),
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNKNOWN, 500),
        (grpc.StatusCode.DATA_LOSS, 500),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.CANCELLED, 503),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    ],
)
def test_statuses(code: grpc.StatusCode, status: int) -> None:
    error = from_rpc_error(rpc_error(code, "because"), "unix:v")
    assert error.status == status
    # What a bug says is for the log, not for clients.
    assert ("because" in error.message) == (status != 500)
    assert ("Retry-After" in error.headers) == (status in (429, 503))
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}  # type: ignore[call-overload]


def test_field_and_code_that_the_verifier_names() -> None:
    metadata = (("outrider-field", "max_tokens"), ("outrider-code", "context_length_exceeded"))
    error = from_rpc_error(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "no", *metadata), "unix:v")
    assert error.body() == {
        "error": {
            "message": "no",
            "type": "BadRequestError",
            "param": "max_tokens",
            "code": "context_length_exceeded",
        }
    }


def test_code_is_the_status_where_there_is_no_word() -> None:
    assert ApiError(418, "x").body()["error"]["code"] == 418  # type: ignore[index]
