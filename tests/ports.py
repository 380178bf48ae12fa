"""TCP ports for servers that must be told theirs before they run.

Test processes run side by side: a port that the system hands out may be handed to another of them
before the server takes it, and again while a server that was killed starts anew. It hands out none
of those below.
"""

from __future__ import annotations

import random
import socket

_PORTS = range(20_000, 32_000)
_TRIES = 100


def unclaimed_port() -> int:
    """A port of the loopback interface at which nothing listens."""
    for port in random.SystemRandom().sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"{_TRIES} ports of {_PORTS} are taken")
