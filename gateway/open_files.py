"""How many connections this process has room for.

Knows the system's limit of open files; knows no sockets. A shell's usual soft limit of 1,024 would
be reached before the gateway's own limit of connections, and whoever came then would not be told.
"""

from __future__ import annotations

import resource
from typing import Final

# Of everything that is no client: verifiers, evidence, telemetry, clients that are being refused.
RESERVED: Final = 256


def room_for_connections(wanted: int) -> int:
    """Raise the process's limit as far as `wanted` connections need; how many of them then fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return min(wanted, max(soft - RESERVED, soft // 2))
