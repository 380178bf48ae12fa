"""The compiled grammars of one model: tried, compiled once, kept within bounds.

Knows threads and futures; does not know requests or transports. Lives on the event loop; what
takes time happens on a thread of its own, one structure after the other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from xgrammar import CompiledGrammar, GrammarCompiler

from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.structure import HopelessStructureError, Structure
from verifier_service.grammar.trial import Trial, TrialProcess
from verifier_service.grammar.vocabulary import Vocabulary

_KEPT_BYTES = 256 << 20
_KEPT_REFUSALS = 256


class Grammars:
    """Constraints for structures. `vocabulary` is called once, on the grammar thread."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        trial: Trial | None = None,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._trial = trial or TrialProcess(lambda: self._vocabulary)
        self._kept_bytes = kept_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        # Most recently used last.
        self._grammars: OrderedDict[Structure, CompiledGrammar] = OrderedDict()
        self._bytes = 0
        self._refusals: OrderedDict[Structure, str] = OrderedDict()
        self._pending: dict[Structure, asyncio.Future[CompiledGrammar]] = {}

    @property
    def bytes(self) -> int:
        """Bytes of the grammars that are kept."""
        return self._bytes

    async def constraint(
        self, structure: Structure, stop_ids: Collection[int] = ()
    ) -> GrammarConstraint:
        """A constraint that stands at the beginning of an answer.

        Those of `stop_ids` that have no text may end it too. Raises HopelessStructureError.
        """
        grammar = self._grammars.get(structure)
        if grammar is None:
            grammar = await self._compiled(structure)
        else:
            self._grammars.move_to_end(structure)
        pieces = self._vocabulary.pieces
        textless = [i for i in stop_ids if 0 <= i < len(pieces) and not pieces[i]]
        return GrammarConstraint(grammar, textless)

    def close(self) -> None:
        """End the trial and the thread; what waits for them fails."""
        self._trial.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compiled(self, structure: Structure) -> CompiledGrammar:
        refusal = self._refusals.get(structure)
        if refusal is not None:
            raise HopelessStructureError(refusal)
        pending = self._pending.get(structure)
        if pending is None:
            loop = asyncio.get_running_loop()
            pending = loop.run_in_executor(self._thread, self._compile, structure)
            self._pending[structure] = pending
            pending.add_done_callback(lambda done: self._settle(structure, done))
        # Others may wait for the same grammar: a client that leaves must not take it from them.
        return await asyncio.shield(pending)

    def _settle(self, structure: Structure, done: asyncio.Future[CompiledGrammar]) -> None:
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

    def _keep(self, structure: Structure, grammar: CompiledGrammar) -> None:
        self._grammars[structure] = grammar
        self._bytes += _size(structure, grammar)
        while self._bytes > self._kept_bytes:
            self._bytes -= _size(*self._grammars.popitem(last=False))

    def _compile(self, structure: Structure) -> CompiledGrammar:
        """On the grammar thread. What the trial has shown to end, ends here too."""
        self._trial.check(structure)
        return compile_structure(self._compiler, structure)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return new_compiler(self._vocabulary)


def _size(structure: Structure, grammar: CompiledGrammar) -> int:
    return grammar.memory_size_bytes + len(structure.text)
