"""The newest requests in memory, for gateways without a file and for the live view.

Knows bounds and order; does not know where records come from.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.evidence.filters import Selection
from gateway.evidence.records import RequestRecord

MAX_REQUESTS: Final = 2_000
MAX_ROUNDS: Final = 200_000
# Of spans as they came: texts and names can be long.
MAX_BYTES: Final = 128 * 1024 * 1024


class RecentRequests:
    """The last records given to `add`, bounded in number, rounds and bytes; for one thread."""

    def __init__(
        self,
        max_requests: int = MAX_REQUESTS,
        max_rounds: int = MAX_ROUNDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_requests = max_requests
        self._max_rounds = max_rounds
        self._max_bytes = max_bytes
        self._records: deque[RequestRecord] = deque()
        self._num_rounds = 0
        self._bytes = 0

    def add(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._num_rounds += len(record.rounds)
        self._bytes += record.size
        while len(self._records) > 1 and (
            len(self._records) > self._max_requests
            or self._num_rounds > self._max_rounds
            or self._bytes > self._max_bytes
        ):
            oldest = self._records.popleft()
            self._num_rounds -= len(oldest.rounds)
            self._bytes -= oldest.size

    def all(self) -> list[RequestRecord]:
        """In the order of their arrival."""
        return list(self._records)

    def find(self, name: str) -> RequestRecord | None:
        """The newest with that span or request id."""
        named = [r for r in self._records if name in (r.span_id, r.request_id)]
        return max(named, key=_order, default=None)

    def select(
        self, selection: Selection, limit: int, before: str = ""
    ) -> list[RequestRecord] | None:
        """The newest of the selection; with `before`, those older than that request.

        None where there is no request with the id `before`.
        """
        found = sorted((r for r in self._records if _matches(r, selection)), key=_order)[::-1]
        if before:
            place = self.find(before)
            if place is None:
                return None
            found = [record for record in found if _order(record) < _order(place)]
        return found[:limit]


def _order(record: RequestRecord) -> tuple[int, str]:
    return record.started_ns, record.span_id


def _matches(record: RequestRecord, selection: Selection) -> bool:
    if selection.since_ns is not None and record.ended_ns < selection.since_ns:
        return False
    if selection.until_ns is not None and record.ended_ns >= selection.until_ns:
        return False
    values = {
        "model": [record.model],
        "verifier": [record.verifier],
        "workload": [record.workload],
        "temperature": [record.temperature_bucket],
        "proposer": [share.name for share in record.proposers],
        "method": [share.method for share in record.proposers],
    }
    return all(value in values[name] for name, value in selection.equals.items())
