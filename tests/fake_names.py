"""A resolver whose answers a test writes."""

from __future__ import annotations

import threading

from outrider.names import NameLookupError


class FakeResolver:
    """Names and what they stand for, until the test says otherwise; counts the lookups."""

    def __init__(self, **names: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._names = {f"dns:{name}:1": addresses for name, addresses in names.items()}
        self.lookups = 0

    def set(self, name: str, *addresses: str) -> None:
        """From now on `dns:NAME:1` stands for these; for none: it is not known."""
        with self._lock:
            self._names[f"dns:{name}:1"] = addresses

    def resolve(self, target: str) -> tuple[str, ...]:
        with self._lock:
            self.lookups += 1
            addresses = self._names.get(target, ())
        if not addresses:
            raise NameLookupError(f"{target}: not known")
        return tuple(sorted(addresses))
