"""The GPU benchmark's checkpoints, made on the machine that measures: a small model and a big one.

    python -m benchmarks.gpu_checkpoints --gguf FILE --padding SCRIPT --models FOLDER

Knows how they come about: the small one is a GGUF's weights, the big one what `SCRIPT SMALL BIG
--device DEVICE` makes of it, the same function in a larger shape. What is there already is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.entry import end_with
from outrider.errors import OperationError
from outrider.gguf_conversion import convert_llama_gguf

SMALL, BIG = "small", "big"


def make(gguf: Path, padding: Path | None, models: Path, device: str) -> Path:
    """The checkpoint to measure: the big one with a `padding` script, else the small one.

    Raises OperationError where the script fails.
    """
    models.mkdir(parents=True, exist_ok=True)
    small, big = models / SMALL, models / BIG
    if not small.exists():
        # A run that is cut off must leave nothing that looks whole.
        unfinished = models / f".{SMALL}"
        shutil.rmtree(unfinished, ignore_errors=True)
        convert_llama_gguf(gguf, unfinished, lambda done, total: None)
        os.replace(unfinished, small)
    if padding is None:
        return small
    if not big.exists():
        unfinished = models / f".{BIG}"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, str(padding), str(small), str(unfinished), "--device", device]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode:
            raise OperationError(f"--padding: the script ended with code {done.returncode}")
        os.replace(unfinished, big)
    return big


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_checkpoints")
    add = parser.add_argument
    add("--gguf", type=Path, required=True, help="the small model")
    add("--padding", type=Path, help="script that writes the big one")
    add("--models", type=Path, required=True, help="folder for both")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    return parser.parse_args(arguments)


def main() -> int:
    console = Console(stderr=True)
    options = parse(sys.argv[1:])

    def work() -> bool:
        made = make(options.gguf, options.padding, options.models, options.device)
        console.print(f"made {made.name}")
        return True

    return end_with(work, console)


if __name__ == "__main__":
    raise SystemExit(main())
