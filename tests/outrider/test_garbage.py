"""A loaded server's collector."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outrider import garbage


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_loaded_is_not_looked_at_again() -> None:
    loaded: list[object] = []
    loaded.append(loaded)
    before = gc.get_freeze_count()
    garbage.settle()
    assert gc.get_freeze_count() > before
    assert not any(kept is loaded for kept in gc.get_objects())


def test_a_steps_objects_do_not_start_a_collection() -> None:
    garbage.settle()
    collections = gc.get_stats()[0]["collections"]
    step = [[number] for number in range(5_000)]
    del step
    assert gc.get_stats()[0]["collections"] == collections
    assert gc.isenabled()


def test_the_interpreter_frees_it_at_its_end() -> None:
    code = (
        "import atexit, gc\n"
        "from outrider import garbage\n"
        "atexit.register(lambda: print(gc.get_freeze_count()))\n"
        "garbage.settle()\n"
        "assert gc.get_freeze_count() > 0\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "0\n"
