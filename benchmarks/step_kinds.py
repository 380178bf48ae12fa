"""How the steps of a load came about: begun ahead, planned though they could have been, or neither.

Knows what the loop tells the controller of each step; knows neither device nor drafts. Counts by
wrapping the controller's methods, only while the context is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

# The counts that a call of one of the controller's methods adds to.
_Counted = Callable[..., tuple[str, ...]]


@dataclass(slots=True)
class StepKinds:
    """Steps of a load. One that was begun ahead may have prompts beside it: it counts as both.

    `held`: planned with drafts that look-ahead knew, though a plain step could have been begun;
    `waited`: proposers were waited for.
    """

    steps: int = 0
    blindly: int = 0
    looked: int = 0
    held: int = 0
    waited: int = 0
    prompts: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, int]) -> StepKinds:
        return cls(**values)

    def describe(self) -> str:
        return (
            f"{self.steps} steps: {self.blindly} begun blindly, {self.looked} begun after a look, "
            f"{self.held} planned with drafts that were known (held), {self.waited} waited for "
            f"proposers, {self.prompts} had prompts"
        )


@contextmanager
def counting(controller: type) -> Iterator[StepKinds]:
    """Count what controllers of this class are told. Raises AttributeError where a method is gone.

    A count that is missing would read as one of nothing.
    """
    found = StepKinds()
    methods: dict[str, _Counted] = {
        "observe_step": _step,
        "observe_begun": _begun,
        "observe_held": _held,
        "observe_waited": _waited,
    }
    originals = {name: getattr(controller, name) for name in methods}
    try:
        for name, counted in methods.items():
            setattr(controller, name, _counted(originals[name], counted, found))
        yield found
    finally:
        for name, original in originals.items():
            setattr(controller, name, original)


def _counted(function: Callable[..., Any], names: _Counted, found: StepKinds) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        for name in names(*arguments, **keywords):
            setattr(found, name, getattr(found, name) + 1)
        return function(*arguments, **keywords)

    return wrapped


def _step(*_: object, prefill_tokens: int = 0) -> tuple[str, ...]:
    return ("steps", "prompts") if prefill_tokens else ("steps",)


def _begun(_: object, looked: float | None) -> tuple[str, ...]:
    return ("blindly",) if looked is None else ("looked",)


def _held(*_: object) -> tuple[str, ...]:
    return ("held",)


def _waited(_: object, unknown: int, seconds: float) -> tuple[str, ...]:
    return ("waited",) if unknown > 0 else ()
