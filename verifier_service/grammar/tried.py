"""Structures tried once each, and what was made of those that passed, kept within bounds.

Knows threads and futures; does not know what is made of a structure. Lives on the event loop; what
takes time happens on a thread of its own, one structure after the other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from verifier_service.grammar.structure import HopelessStructureError, Structure
from verifier_service.grammar.trial import Trial

KEPT_BYTES = 256 << 20
_KEPT_REFUSALS = 256

T = TypeVar("T")


class Tried(Generic[T]):
    """What `make` returns for structures that `trial` lets pass.

    `make` is called on the grammar thread and may raise HopelessStructureError; `size` are the
    bytes of what is kept, the least recently used of which go first.
    """

    def __init__(
        self,
        make: Callable[[Structure], T],
        trial: Trial,
        size: Callable[[Structure, T], int],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._make = make
        self._trial = trial
        self._size = size
        self._kept_bytes = kept_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        # Most recently used last.
        self._made: OrderedDict[Structure, T] = OrderedDict()
        self._bytes = 0
        self._refusals: OrderedDict[Structure, str] = OrderedDict()
        self._pending: dict[Structure, asyncio.Future[T]] = {}

    @property
    def bytes(self) -> int:
        """Bytes of what is kept."""
        return self._bytes

    async def get(self, structure: Structure) -> T:
        """What was made of the structure, or is made now. Raises HopelessStructureError."""
        if structure in self._made:
            self._made.move_to_end(structure)
            return self._made[structure]
        refusal = self._refusals.get(structure)
        if refusal is not None:
            raise HopelessStructureError(refusal)
        pending = self._pending.get(structure)
        if pending is None:
            loop = asyncio.get_running_loop()
            pending = loop.run_in_executor(self._thread, self._try, structure)
            self._pending[structure] = pending
            pending.add_done_callback(lambda done: self._settle(structure, done))
        # Others may wait for the same one: a client that leaves must not take it from them.
        return await asyncio.shield(pending)

    def close(self) -> None:
        """End the trial and the thread; what waits for them fails."""
        self._trial.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _try(self, structure: Structure) -> T:
        """On the grammar thread. What the trial has shown to end, ends here too."""
        self._trial.check(structure)
        return self._make(structure)

    def _settle(self, structure: Structure, done: asyncio.Future[T]) -> None:
        del self._pending[structure]
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._keep(structure, done.result())
        elif isinstance(error, HopelessStructureError):
            self._refusals[structure] = str(error)
            while len(self._refusals) > _KEPT_REFUSALS:
                self._refusals.popitem(last=False)

    def _keep(self, structure: Structure, made: T) -> None:
        self._made[structure] = made
        self._bytes += self._size(structure, made)
        while self._bytes > self._kept_bytes:
            self._bytes -= self._size(*self._made.popitem(last=False))
