"""The workload label that a client gives its request with a header."""

from __future__ import annotations

from starlette.datastructures import Headers

from gateway.errors import ApiError, bad_request
from outrider.telemetry import WORKLOAD_HEADER
from outrider.workload import ALLOWED, is_workload


def read_workload(headers: Headers) -> str:
    """The label, empty where there is none. Raises ApiError 400 naming the header."""
    values = headers.getlist(WORKLOAD_HEADER)
    if len(values) > 1:
        raise _refused(f"{len(values)} times in one request; it may come once")
    label = values[0] if values else ""
    if not is_workload(label):
        # repr: a header may hold anything that is not a line break.
        raise _refused(f"{label[:80]!r} is not allowed; allowed: {ALLOWED}")
    return label


def _refused(problem: str) -> ApiError:
    return bad_request(f"{WORKLOAD_HEADER}: {problem}", WORKLOAD_HEADER)
