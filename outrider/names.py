"""What a `dns:HOST:PORT` target stands for now, and watching how that changes.

Knows lookups and threads; does not know what is reached at the addresses. Lookups block for as long
as the system's resolver likes, so they run on threads that no process waits for.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Protocol

from outrider.addresses import split_name


class NameLookupError(Exception):
    """A name has no address now; the text says why."""


class Resolver(Protocol):
    """Looks names up."""

    def resolve(self, target: str) -> tuple[str, ...]:
        """The addresses (`HOST:PORT`) of a `dns:` target, at least one, each once, sorted.

        Blocks. Raises NameLookupError.
        """


class SystemResolver:
    """The operating system's resolver: hosts file, DNS, whatever it is set up for."""

    def resolve(self, target: str) -> tuple[str, ...]:
        host, port = split_name(target)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NameLookupError(
                f"{target}: {host!r} cannot be looked up: {error.strerror or error}"
            ) from error
        addresses = {str(address[0]) for *_, address in found}
        return tuple(sorted(f"[{a}]:{port}" if ":" in a else f"{a}:{port}" for a in addresses))


class NameWatch:
    """Looks a target up every `interval_s` seconds until closed.

    `found` gets the addresses of every lookup that succeeded, `failed` the reason of every other;
    both are called on the watch's own thread, and never after `close` has returned from it.
    """

    def __init__(
        self,
        target: str,
        resolver: Resolver,
        interval_s: float,
        *,
        found: Callable[[tuple[str, ...]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._target = target
        self._resolver = resolver
        self._interval_s = interval_s
        self._found = found
        self._failed = failed
        self._ended = threading.Event()
        self._telling = threading.Lock()
        threading.Thread(target=self._run, name=f"watch {target}", daemon=True).start()

    def close(self) -> None:
        """Tell nothing more; a lookup that runs ends by itself."""
        with self._telling:
            self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                addresses, reason = self._resolver.resolve(self._target), ""
            except NameLookupError as error:
                addresses, reason = (), str(error)
            with self._telling:
                if self._ended.is_set():
                    return
                if addresses:
                    self._found(addresses)
                else:
                    self._failed(reason)
            self._ended.wait(self._interval_s)
