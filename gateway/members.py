"""The verifiers there are: those of the settings, and those that a name stands for at the moment.

Knows targets, lookups and each verifier's place; does not know requests or who gets them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from gateway.verifier import Verifier
from outrider.addresses import is_name, split_name
from outrider.credentials import Credentials
from outrider.names import NameWatch, Resolver

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found", str, tuple[str, ...])


class Members:
    """All verifiers that `targets` mean (`unix:PATH`, `HOST:PORT`, `dns:HOST:PORT`).

    Must be started and closed on one event loop. A name is looked up every `lookup_interval_s`.
    A verifier whose address is no longer among its names' gets no new requests, and is let go when
    its last request has ended. A name that cannot be looked up keeps the verifiers it had: a
    resolver that is down says nothing about them.

    An address keeps its `index` for as long as the gateway runs, and shares it with no other, so
    that no counter of one verifier ever goes on in the series of another.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        resolver: Resolver,
        credentials: Credentials,
        lookup_interval_s: float,
        poll_interval_s: float,
        connect_timeout_s: float,
    ) -> None:
        self._targets = list(dict.fromkeys(targets))
        self._resolver = resolver
        self._credentials = credentials
        self._lookup_interval_s = lookup_interval_s
        self._poll_interval_s = poll_interval_s
        self._connect_timeout_s = connect_timeout_s
        self._found: dict[str, tuple[str, ...]] = {
            target: () if is_name(target) else (target,) for target in self._targets
        }
        self._reasons: dict[str, str] = {}
        self._unsettled = set(filter(is_name, self._targets))
        self._settled = asyncio.Event()
        self._indices: dict[str, int] = {}
        self._verifiers: dict[str, Verifier] = {}
        self._leaving: set[str] = set()
        self._monitors: dict[str, asyncio.Task[None]] = {}
        self._names: list[NameWatch] = []
        self._started = False
        self._update()

    @property
    def known(self) -> list[Verifier]:
        """All verifiers, those that only finish what runs on them among them, by index."""
        return sorted(self._verifiers.values(), key=lambda verifier: verifier.index)

    @property
    def staying(self) -> list[Verifier]:
        """Those that may get new requests, by index."""
        return [v for v in self.known if v.address not in self._leaving]

    @property
    def reasons(self) -> list[str]:
        """Why names stand for nothing, where they do."""
        return [reason for target, reason in self._reasons.items() if not self._found[target]]

    def start(self) -> None:
        """Start watching names and verifiers."""
        self._started = True
        loop = asyncio.get_running_loop()
        for address in self._verifiers:
            self._monitor(address)
        for target in filter(is_name, self._targets):
            self._names.append(
                NameWatch(
                    target,
                    self._resolver,
                    self._lookup_interval_s,
                    found=partial(self._later, loop, self._take, target),
                    failed=partial(self._later, loop, self._fail, target),
                )
            )

    async def close(self) -> None:
        for name in self._names:
            name.close()
        for monitor in self._monitors.values():
            monitor.cancel()
        await asyncio.gather(*self._monitors.values(), return_exceptions=True)
        for verifier in self._verifiers.values():
            await verifier.close()

    async def settle(self) -> None:
        """Wait until each name was looked up once, at most as long as for a connection."""
        if not self._unsettled:
            return
        try:
            await asyncio.wait_for(self._settled.wait(), self._connect_timeout_s)
        except TimeoutError:
            for target in self._unsettled:
                self._reasons.setdefault(target, f"{target}: its lookup has not ended yet")

    @staticmethod
    def _later(
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[str, _Found], None],
        target: str,
        found: _Found,
    ) -> None:
        loop.call_soon_threadsafe(tell, target, found)

    def _take(self, target: str, addresses: tuple[str, ...]) -> None:
        if target in self._reasons:
            del self._reasons[target]
        if addresses != self._found[target]:
            logger.info("%s: %s", target, ", ".join(addresses))
            self._found[target] = addresses
            self._update()
        self._settle(target)

    def _fail(self, target: str, reason: str) -> None:
        if self._reasons.get(target) != reason:
            logger.warning("%s", reason)
            self._reasons[target] = reason
        self._settle(target)

    def _settle(self, target: str) -> None:
        self._unsettled.discard(target)
        if not self._unsettled:
            self._settled.set()

    def _update(self) -> None:
        wanted: dict[str, str | None] = {}
        for target in self._targets:
            server_name = split_name(target)[0] if is_name(target) else None
            for address in self._found[target]:
                wanted.setdefault(address, server_name)
        for address, server_name in wanted.items():
            self._leaving.discard(address)
            if address not in self._verifiers:
                index = self._indices.setdefault(address, len(self._indices))
                self._verifiers[address] = Verifier(index, address, self._credentials, server_name)
                if self._started:
                    self._monitor(address)
        for address in self._verifiers.keys() - wanted.keys() - self._leaving:
            logger.info("verifier %s left its name", address)
            self._leaving.add(address)

    def _monitor(self, address: str) -> None:
        self._monitors[address] = asyncio.create_task(self._watch(self._verifiers[address]))

    async def _watch(self, verifier: Verifier) -> None:
        while True:
            await verifier.refresh(max(self._poll_interval_s, self._connect_timeout_s))
            await asyncio.sleep(self._poll_interval_s)
            if verifier.address in self._leaving and not verifier.in_flight:
                break
        self._leaving.discard(verifier.address)
        del self._verifiers[verifier.address], self._monitors[verifier.address]
        await verifier.close()
