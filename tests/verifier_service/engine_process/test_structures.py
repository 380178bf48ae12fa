"""Structures are tried at the edge and compiled by the engine's side, once each."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from tests.verifier_service.engine_process.joined import WAIT_S
from tests.verifier_service.grammar.test_grammars import FakeTrial, pattern
from tests.verifier_service.grammar.toy_grammar import OTHER_STOP, STOP, VOCABULARY, ids_of
from verifier_service.engine_process import structures, wire
from verifier_service.engine_process.structures import StructureRoom, TriedStructures
from verifier_service.grammar.compiling import compile_structure
from verifier_service.grammar.structure import AskedStructure, HopelessStructureError, Structure
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import Output, Request, Sampling


def request(name: str = "a", stop_ids: tuple[int, ...] = ()) -> Request:
    return Request(name, [1], Sampling(stop_token_ids=frozenset(stop_ids)))


def asked(text: str, name: str = "a", stop_ids: tuple[int, ...] = ()) -> Request:
    made = request(name)
    made.structure = AskedStructure(pattern(text), stop_ids)
    return made


@dataclass
class Edge:
    """The edge's side, what it sent, and its trial."""

    trial: FakeTrial = field(default_factory=FakeTrial)
    sent: list[Vocabulary] = field(default_factory=list)
    made: list[Vocabulary] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.structures = TriedStructures(self._vocabulary, self.sent.append, self.trial)

    def _vocabulary(self) -> Vocabulary:
        self.made.append(VOCABULARY)
        return VOCABULARY


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    made = Edge()
    yield made
    made.structures.close()
    assert made.trial.closed


async def test_a_structure_travels_with_its_request_and_the_vocabulary_once(edge: Edge) -> None:
    for text in ("ab", "b+", "ab"):
        made = request(stop_ids=(STOP, OTHER_STOP))
        await edge.structures.hold(made, pattern(text))
        assert made.constraint is None
        assert made.structure is not None
        assert made.structure.structure == pattern(text)
        assert set(made.structure.stop_ids) == {STOP, OTHER_STOP}
        assert wire.decode(wire.encode(made)) == made
    assert edge.trial.seen == ["ab", "b+"]
    assert edge.sent == edge.made == [VOCABULARY]


async def test_a_hopeless_structure_is_refused_at_the_edge(edge: Edge) -> None:
    for _ in range(2):
        with pytest.raises(HopelessStructureError, match="xa is hopeless"):
            await edge.structures.hold(request(), pattern("xa"))
    assert edge.trial.seen == ["xa"]
    assert edge.sent == []


@dataclass
class Room:
    """The engine's side, what it passed on and what it refused."""

    submitted: list[tuple[int, Request]] = field(default_factory=list)
    refused: list[tuple[int, Output]] = field(default_factory=list)
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.room = StructureRoom(self._submit, self._refuse)
        self.room.learn(VOCABULARY)

    def _submit(self, number: int, made: Request) -> None:
        self.submitted.append((number, made))
        self.done.release()

    def _refuse(self, number: int, output: Output) -> None:
        self.refused.append((number, output))
        self.done.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.done.acquire(timeout=WAIT_S)


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.room.close()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled, in order."""
    seen: list[str] = []

    def noted(compiler: object, structure: Structure) -> object:
        seen.append(structure.text)
        return compile_structure(compiler, structure)  # type: ignore[arg-type]

    monkeypatch.setattr(structures, "compile_structure", noted)
    return seen


def test_a_request_gets_its_constraint_and_then_goes_on(room: Room, compiled: list[str]) -> None:
    room.room.submit(7, asked("ab", stop_ids=(OTHER_STOP, 0)))
    room.room.submit(8, asked("ab"))
    room.wait(2)
    assert [number for number, _ in room.submitted] == [7, 8]
    assert compiled == ["ab"]
    first, second = (made.constraint for _, made in room.submitted)
    assert first is not None and second is not None
    first.advance([3])
    # Of the stop ids asked for, the one with text does not end an answer.
    assert ids_of(first.masks([])[0]) == {STOP, OTHER_STOP}
    assert ids_of(second.masks([])[0]) == {0, 3}


def test_what_cannot_be_compiled_is_refused_in_words_and_harms_no_other(room: Room) -> None:
    room.room.submit(1, asked("a(", "bad"))
    room.room.submit(2, asked("a", "good"))
    room.wait(2)
    ((number, output),) = room.refused
    assert number == 1 and "cannot be used" in output.refusal
    assert [number for number, _ in room.submitted] == [2]


def test_a_structure_before_the_vocabulary_fails_its_request_alone() -> None:
    made = Room()
    made.room = StructureRoom(made._submit, made._refuse)
    made.room.submit(1, asked("a"))
    made.wait()
    assert "before the vocabulary" in made.refused[0][1].error
    made.room.close()


def test_an_abort_takes_out_what_waits(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = threading.Event(), threading.Event()

    def held(compiler: object, structure: Structure) -> object:
        entered.set()
        assert go.wait(WAIT_S)
        return compile_structure(compiler, structure)  # type: ignore[arg-type]

    monkeypatch.setattr(structures, "compile_structure", held)
    room.room.submit(1, asked("a", "compiling"))
    assert entered.wait(WAIT_S)
    room.room.submit(2, asked("b", "behind"))
    room.room.submit(3, asked("c", "stays"))
    assert room.room.abort("compiling") == 1
    assert room.room.abort("behind") == 1
    assert room.room.abort("unknown") == 0
    go.set()
    room.wait()
    assert [number for number, _ in room.submitted] == [3]
    assert room.refused == []


def test_the_end_refuses_what_waits(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = threading.Event(), threading.Event()

    def held(compiler: object, structure: Structure) -> object:
        entered.set()
        assert go.wait(WAIT_S)
        raise HopelessStructureError("too late to matter")

    monkeypatch.setattr(structures, "compile_structure", held)
    room.room.submit(1, asked("a"))
    assert entered.wait(WAIT_S)
    room.room.submit(2, asked("b"))
    room.room.close()
    go.set()
    assert [(number, output.error) for number, output in room.refused] == [
        (1, "the verifier is shutting down"),
        (2, "the verifier is shutting down"),
    ]
