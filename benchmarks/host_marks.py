"""What the engine's thread did and when: named stretches of time, taken by wrapping methods.

Knows classes, modules and the names in them, and the garbage collector; knows nothing of what they
do. Times are ns since the epoch, as torch's profiler tells its own. Only while the context is open
are classes and modules changed.
"""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from benchmarks.intervals import Mark

GARBAGE = "garbage collection"


@dataclass(frozen=True, slots=True)
class Watched:
    """A class's methods or a module's functions, and what a reader calls them: method -> name."""

    kind: type | ModuleType
    methods: dict[str, str]


@dataclass(slots=True)
class HostMarks:
    """What was marked; `missing` are methods that the classes do not have (any more)."""

    marks: list[Mark] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@contextmanager
def marking(watched: Sequence[Watched], thread: str) -> Iterator[HostMarks]:
    """Mark every call of the methods on threads called `thread`, and the collector's pauses."""
    found = HostMarks()
    with ExitStack() as stack:
        for one in watched:
            for method, name in one.methods.items():
                function = getattr(one.kind, method, None)
                if function is None:
                    found.missing.append(f"{one.kind.__name__}.{method}")
                    continue
                own = method in vars(one.kind)
                setattr(one.kind, method, _marked(function, name, thread, found.marks))
                stack.callback(_restore, one.kind, method, function if own else None)
        watcher = _collections(thread, found.marks)
        gc.callbacks.append(watcher)
        stack.callback(gc.callbacks.remove, watcher)
        yield found


def _marked(
    function: Callable[..., Any], name: str, thread: str, marks: list[Mark]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if threading.current_thread().name != thread:
            return function(*arguments, **keywords)
        began = time.time_ns()
        try:
            return function(*arguments, **keywords)
        finally:
            marks.append(Mark(name, began, time.time_ns()))

    return wrapped


def _collections(thread: str, marks: list[Mark]) -> Callable[[str, dict[str, int]], None]:
    began = 0

    def called(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if threading.current_thread().name != thread:
            return
        if phase == "start":
            began = time.time_ns()
        elif began:
            marks.append(Mark(f"{GARBAGE}, generation {info['generation']}", began, time.time_ns()))
            began = 0

    return called


def _restore(kind: type | ModuleType, method: str, function: Callable[..., Any] | None) -> None:
    if function is None:
        delattr(kind, method)
    else:
        setattr(kind, method, function)
