"""The process in which structures are tried: `python -m verifier_service.grammar.trial_process FD`.

Speaks lines of JSON over the socket FD: the vocabulary and limits first, then one structure after
the other, each answered by what speaks against it. It may be killed at any time; it also ends
itself, by the processor time and memory that it is allowed.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from typing import Any

from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.prospects import check_prospects
from verifier_service.grammar.structure import HopelessStructureError, Kind, Structure
from verifier_service.grammar.vocabulary import Vocabulary


def main(descriptor: int) -> None:
    """Try structures until the other side is gone."""
    # The terminal's Ctrl-C is for the verifier, whose end closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as connection:
        lines = connection.makefile("rb")
        start = json.loads(lines.readline())
        pieces = tuple(piece.encode("latin-1") for piece in start["pieces"])
        compiler = new_compiler(Vocabulary(pieces, tuple(start["stop_ids"])))
        _limit_memory(start["memory_bytes"])
        connection.sendall(b'{"ready": true}\n')
        for line in lines:
            _limit_time(start["seconds"])
            reason = _reason(compiler, json.loads(line), start["compiled_bytes"])
            connection.sendall(json.dumps({"reason": reason}).encode() + b"\n")


def _reason(compiler: Any, message: dict[str, Any], most: int) -> str:
    """What speaks against the structure; empty where nothing does."""
    structure = Structure(
        Kind(message["kind"]), message["text"], message["compact"], message["closed"]
    )
    try:
        grammar = compile_structure(compiler, structure)
        if grammar.memory_size_bytes > most:
            return f"its grammar has {grammar.memory_size_bytes} bytes; at most {most} are allowed"
        check_prospects(grammar)
    except HopelessStructureError as error:
        return str(error)
    return ""


def _limit_memory(more: int) -> None:
    """Allow so many bytes of address space beyond what is used now.

    Other systems than Linux accept such a limit and do not keep it.
    """
    if sys.platform != "linux":
        return
    with open("/proc/self/statm", "rb") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))


def _limit_time(more: float) -> None:
    """End the process once it has used so many more processor seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + more) + 2, hard))


if __name__ == "__main__":
    main(int(sys.argv[1]))
