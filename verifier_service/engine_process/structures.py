"""Structured answers across the two processes: tried at the edge, compiled where the engine is.

Knows structures and who compiles them; does not know how a grammar is followed. A compiled grammar
cannot be sent, so its structure travels, and the vocabulary once before the first. Compiling has a
thread of its own, beside the engine's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Lock

from xgrammar import CompiledGrammar, GrammarCompiler

from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.grammars import constrained, grammar_size
from verifier_service.grammar.structure import AskedStructure, HopelessStructureError, Structure
from verifier_service.grammar.trial import Trial, TrialProcess
from verifier_service.grammar.tried import KEPT_BYTES, Tried
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import Output, Request


class TriedStructures:
    """The edge's side: `Structures` that are sent with their requests.

    `send` gets the vocabulary before the first of them. `vocabulary` is called once, on the grammar
    thread.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        send: Callable[[Vocabulary], None],
        trial: Trial | None = None,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._send = send
        self._sent = False
        self._tried: Tried[None] = Tried(
            lambda structure: self._announce(),
            trial or TrialProcess(lambda: self._vocabulary),
            lambda structure, made: len(structure.text),
        )

    async def hold(self, request: Request, structure: Structure) -> None:
        """See `Structures.hold`."""
        await self._tried.get(structure)
        request.structure = AskedStructure(structure, tuple(request.sampling.stop_token_ids))

    def close(self) -> None:
        """End the trial and the thread; what waits for them fails."""
        self._tried.close()

    def _announce(self) -> None:
        """On the grammar thread, where a structure has passed."""
        if not self._sent:
            self._send(self._vocabulary)
            self._sent = True

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()


class StructureRoom:
    """The engine's side: requests wait here until their grammars are compiled.

    Each then goes to `submit`, or to `refuse` with what is to be told instead; both are called on
    the compiling thread.
    """

    def __init__(
        self,
        submit: Callable[[int, Request], None],
        refuse: Callable[[int, Output], None],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._submit = submit
        self._refuse = refuse
        self._kept_bytes = kept_bytes
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()
        self._waiting: dict[int, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        # Most recently used last; the compiling thread's own.
        self._grammars: OrderedDict[Structure, CompiledGrammar] = OrderedDict()
        self._bytes = 0

    def learn(self, vocabulary: Vocabulary) -> None:
        """What the ids of all structures mean; comes before the first of them."""
        self._vocabulary = vocabulary

    def submit(self, number: int, request: Request) -> None:
        """Have the request's constraint made, then submit it."""
        with self._lock:
            self._waiting[number] = request.request_id
        self._thread.submit(self._make, number, request)

    def abort(self, request_id: str) -> int:
        """Forget the requests of this id that wait here; how many those were."""
        with self._lock:
            gone = [number for number, name in self._waiting.items() if name == request_id]
            for number in gone:
                del self._waiting[number]
        return len(gone)

    def close(self) -> None:
        """Compile nothing more; what waits is refused."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            gone, self._waiting = list(self._waiting), {}
        for number in gone:
            self._refuse(number, Output(error="the verifier is shutting down"))

    def _make(self, number: int, request: Request) -> None:
        with self._lock:
            if number not in self._waiting:
                return
        refusal = None
        try:
            asked = request.structure
            if asked is None or self._vocabulary is None:
                raise ValueError("a structure came before the vocabulary")
            grammar = self._compiled(asked.structure)
            request.constraint = constrained(grammar, self._vocabulary, asked.stop_ids)
        except HopelessStructureError as error:
            refusal = Output(refusal=f"the structure cannot be used: {error}")
        except Exception as error:
            # This request's failure alone, as everywhere with constraints.
            refusal = Output(error=f"its constraint failed: {type(error).__name__}: {error}")
        # An abort that comes now finds the request either here or in the core.
        with self._lock:
            if self._waiting.pop(number, None) is None:
                return
            if refusal is None:
                self._submit(number, request)
                return
        self._refuse(number, refusal)

    def _compiled(self, structure: Structure) -> CompiledGrammar:
        grammar = self._grammars.get(structure)
        if grammar is not None:
            self._grammars.move_to_end(structure)
            return grammar
        grammar = compile_structure(self._compiler, structure)
        self._grammars[structure] = grammar
        self._bytes += grammar_size(structure, grammar)
        while self._bytes > self._kept_bytes and len(self._grammars) > 1:
            self._bytes -= grammar_size(*self._grammars.popitem(last=False))
        return grammar

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        if self._vocabulary is None:
            raise ValueError("a structure came before the vocabulary")
        return new_compiler(self._vocabulary)
