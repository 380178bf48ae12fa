"""How a benchmark's command ends: its exit code, and one clear line where it failed.

Knows the errors that are no bug of the benchmark's; knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.exact_generators import GenerationFailed
from benchmarks.machine import end_on_sigterm
from benchmarks.outrider_system import ServerFailed
from benchmarks.peer_system import PeerFailed
from outrider.errors import InputError, OperationError


def end_with(run: Callable[[], bool], console: Console) -> int:
    """0 where `run` is true, 1 where it is not or something failed, 2 for bad options."""
    end_on_sigterm()
    try:
        return 0 if run() else 1
    except (InputError, FileNotFoundError, ValueError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    except (OperationError, ServerFailed, GenerationFailed, PeerFailed) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130


def refuse_to_pull(name: str) -> Path:
    """A benchmark fetches nothing: a model that is not here is an error. Raises InputError."""
    raise InputError(f"--model: {name} is not here yet; run `outrider models pull {name}` first")
