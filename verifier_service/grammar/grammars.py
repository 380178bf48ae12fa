"""The compiled grammars of one model, as constraints of requests.

Knows structures, grammars and requests; what is tried, kept and refused is tried.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Protocol

from xgrammar import CompiledGrammar, GrammarCompiler

from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.structure import Structure
from verifier_service.grammar.trial import Trial, TrialProcess
from verifier_service.grammar.tried import KEPT_BYTES, Tried
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import Request


class Structures(Protocol):
    """Holds requests to structures, wherever their grammars are compiled."""

    async def hold(self, request: Request, structure: Structure) -> None:
        """Have `request` answered in this structure. Raises HopelessStructureError."""

    def close(self) -> None:
        """End what runs; what waits fails."""


class Grammars:
    """Constraints for structures. `vocabulary` is called once, on the grammar thread."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        trial: Trial | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._tried: Tried[CompiledGrammar] = Tried(
            lambda structure: compile_structure(self._compiler, structure),
            trial or TrialProcess(lambda: self._vocabulary),
            grammar_size,
            kept_bytes,
        )

    @property
    def bytes(self) -> int:
        """Bytes of the grammars that are kept."""
        return self._tried.bytes

    async def constraint(
        self, structure: Structure, stop_ids: Collection[int] = ()
    ) -> GrammarConstraint:
        """A constraint that stands at the beginning of an answer.

        Those of `stop_ids` that have no text may end it too. Raises HopelessStructureError.
        """
        grammar = await self._tried.get(structure)
        return constrained(grammar, self._vocabulary, stop_ids)

    async def hold(self, request: Request, structure: Structure) -> None:
        """See `Structures.hold`."""
        request.constraint = await self.constraint(structure, request.sampling.stop_token_ids)

    def close(self) -> None:
        """End the trial and the thread; what waits for them fails."""
        self._tried.close()

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return new_compiler(self._vocabulary)


def constrained(
    grammar: CompiledGrammar, vocabulary: Vocabulary, stop_ids: Collection[int]
) -> GrammarConstraint:
    """A constraint that those of `stop_ids` that have no text may end, too."""
    pieces = vocabulary.pieces
    textless = [i for i in stop_ids if 0 <= i < len(pieces) and not pieces[i]]
    return GrammarConstraint(grammar, textless)


def grammar_size(structure: Structure, grammar: CompiledGrammar) -> int:
    """Bytes of a grammar that is kept under its structure."""
    return grammar.memory_size_bytes + len(structure.text)
