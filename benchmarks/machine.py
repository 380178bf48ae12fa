"""The machine and the software a report was made on (no paths, no host names), and its signals."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

# Instruction sets that decide how fast bf16 and int8 products are.
TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def describe_cpu(cpuinfo: str) -> dict[str, str]:
    """Model and telling instruction sets, from the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.machine()),
        "cpu_flags": " ".join(flag for flag in TELLING_FLAGS if flag in flags),
    }


def describe_machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        **describe_cpu(Path("/proc/cpuinfo").read_text()),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{memory:.0f}",
        "python": platform.python_version(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(Path(__file__).parent),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}


def commit(folder: Path) -> str:
    """The checked-out commit, marked where the tree has changes; `unknown` outside a checkout."""
    described = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def public_command(module: str, arguments: Sequence[str], placeholders: dict[str, str]) -> str:
    """The command as a report may show it: `placeholders` maps options to words for their values.

    Paths are the reader's own; both `--option VALUE` and `--option=VALUE` are replaced.
    """
    shown: list[str] = []
    hide_next = ""
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide_next:
            shown.append(hide_next)
            hide_next = ""
        elif option in placeholders and equals:
            shown.append(f"{option}={placeholders[option]}")
        else:
            shown.append(argument if " " not in argument else f"'{argument}'")
            hide_next = placeholders.get(argument, "")
    return " ".join(["python", "-m", module, *shown])


def end_on_sigterm() -> None:
    """Let SIGTERM end the program as Ctrl-C does: what it started is stopped first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
