"""Grammars of one model: compiled once, kept within bounds, shared by those who wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from tests.verifier_service.grammar.toy_grammar import OTHER_STOP, STOP, VOCABULARY, ids_of
from tests.verifier_service.serving import until
from verifier_service.grammar.grammars import Grammars
from verifier_service.grammar.structure import HopelessStructureError, Kind, Structure


@dataclass
class FakeTrial:
    """Refuses patterns that begin with `x`; waits where it is told to hold."""

    seen: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def __post_init__(self) -> None:
        self.go.set()

    def check(self, structure: Structure) -> None:
        self.seen.append(structure.text)
        assert self.go.wait(20)
        if structure.text.startswith("x"):
            raise HopelessStructureError(f"{structure.text} is hopeless")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def trial() -> FakeTrial:
    return FakeTrial()


@pytest.fixture
async def grammars(trial: FakeTrial) -> AsyncIterator[Grammars]:
    made = Grammars(lambda: VOCABULARY, trial)
    yield made
    made.close()


def pattern(text: str) -> Structure:
    return Structure(Kind.REGEX, text)


async def test_a_structure_is_tried_and_compiled_once(grammars: Grammars, trial: FakeTrial) -> None:
    first = await grammars.constraint(pattern("ab"))
    second = await grammars.constraint(pattern("ab"))
    assert trial.seen == ["ab"]
    first.advance([0])
    assert ids_of(second.masks([])[0]) == {0, 3}


async def test_flags_are_part_of_a_structure(grammars: Grammars, trial: FakeTrial) -> None:
    await grammars.constraint(Structure(Kind.JSON_SCHEMA, '{"enum": [1]}'))
    await grammars.constraint(Structure(Kind.JSON_SCHEMA, '{"enum": [1]}', compact=True))
    assert len(trial.seen) == 2


async def test_a_hopeless_structure_is_tried_once(grammars: Grammars, trial: FakeTrial) -> None:
    for _ in range(3):
        with pytest.raises(HopelessStructureError, match="xa is hopeless"):
            await grammars.constraint(pattern("xa"))
    assert trial.seen == ["xa"]
    assert (await grammars.constraint(pattern("a"))).admitted([0]) == 1


async def test_those_who_wait_for_one_grammar_share_it(
    grammars: Grammars, trial: FakeTrial
) -> None:
    trial.go.clear()
    waiting = [asyncio.create_task(grammars.constraint(pattern("a"))) for _ in range(8)]
    await until(lambda: trial.seen == ["a"])
    waiting[0].cancel()
    trial.go.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(result.admitted([0]) == 1 for result in results[1:])  # type: ignore[union-attr]
    assert trial.seen == ["a"]


async def test_a_known_grammar_does_not_wait_for_others(
    grammars: Grammars, trial: FakeTrial
) -> None:
    await grammars.constraint(pattern("a"))
    trial.go.clear()
    slow = asyncio.create_task(grammars.constraint(pattern("b")))
    await until(lambda: trial.seen == ["a", "b"])
    assert (await grammars.constraint(pattern("a"))).admitted([0]) == 1
    assert not slow.done()
    trial.go.set()
    await slow


async def test_the_least_recently_used_grammar_is_let_go(trial: FakeTrial) -> None:
    measuring = Grammars(lambda: VOCABULARY, trial)
    await measuring.constraint(pattern("a{1}"))
    one = measuring.bytes
    measuring.close()
    grammars = Grammars(lambda: VOCABULARY, trial, kept_bytes=int(2.5 * one))
    for text in ("a{1}", "b{1}", "a{1}", "c{1}"):
        await grammars.constraint(pattern(text))
        assert grammars.bytes <= 2.5 * one
    trial.seen.clear()
    for text in ("a{1}", "c{1}", "b{1}"):
        await grammars.constraint(pattern(text))
    assert trial.seen == ["b{1}"]
    grammars.close()


async def test_only_textless_stop_ids_may_end_an_answer(grammars: Grammars) -> None:
    constraint = await grammars.constraint(pattern("a+"), [1, OTHER_STOP, 10**6, -1])
    constraint.advance([0])
    assert ids_of(constraint.masks([])[0]) == {0, STOP, OTHER_STOP}


async def test_a_failure_of_the_machinery_is_not_remembered(trial: FakeTrial) -> None:
    makes: list[Callable[[], object]] = []

    def vocabulary() -> object:
        makes.append(vocabulary)
        if len(makes) == 1:
            raise OSError("the tokenizer cannot be read now")
        return VOCABULARY

    grammars = Grammars(vocabulary, trial)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="cannot be read now"):
        await grammars.constraint(pattern("a"))
    assert (await grammars.constraint(pattern("a"))).admitted([0]) == 1
    grammars.close()


async def test_closing_ends_the_trial(grammars: Grammars, trial: FakeTrial) -> None:
    grammars.close()
    assert trial.closed
