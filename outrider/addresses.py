"""Where a service listens, `unix:PATH` or `HOST:PORT`, and where others reach it.

Knows these forms, and `dns:HOST:PORT` for everything that a name stands for; looks nothing up.
"""

from __future__ import annotations

import re
import socket

from outrider.errors import InputError

# sun_path is 108 bytes on Linux and 104 on macOS, the closing zero included.
MAX_SOCKET_PATH_BYTES = 103

_NAME_PREFIX = "dns:"
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d+)")


def parse_address(value: str, option: str) -> str:
    """The address as gRPC takes it. Raises InputError naming `option`, the value and the forms."""
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if path.startswith("//"):
            path = path[2:]
        if not path:
            raise InputError(f"{option}: {value!r} has no path; write unix:/run/outrider/x.sock")
        if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
            raise InputError(
                f"{option}: the socket path has {len(path.encode())} bytes; the system allows "
                f"{MAX_SOCKET_PATH_BYTES}: {path}"
            )
        return f"unix:{path}"
    match = _HOST_PORT.fullmatch(value)
    if match is None:
        raise InputError(f"{option}: {value!r} is not an address; write HOST:PORT or unix:PATH")
    if not 1 <= int(match["port"]) <= 65535:
        raise InputError(f"{option}: port {match['port']} of {value!r} is not in 1..65535")
    return value


def parse_target(value: str, option: str) -> str:
    """An address to connect to: as `parse_address`, or `dns:HOST:PORT`, all addresses of a name.

    Raises InputError naming `option`, the value and the forms.
    """
    if not is_name(value):
        return parse_address(value, option)
    try:
        address = parse_address(value.removeprefix(_NAME_PREFIX), option)
        if address.startswith("unix:"):
            raise InputError(f"{option}: {value!r} is not an address")
    except InputError as error:
        raise InputError(f"{error} (behind dns: comes HOST:PORT)") from error
    return f"{_NAME_PREFIX}{address}"


def is_name(target: str) -> bool:
    """Whether `target` stands for all addresses of a name, looked up again and again."""
    return target.startswith(_NAME_PREFIX)


def split_name(target: str) -> tuple[str, int]:
    """Host and port of a `dns:` target that `parse_target` took."""
    host, _, port = target.removeprefix(_NAME_PREFIX).rpartition(":")
    return host.strip("[]"), int(port)


def require_free_port(host: str, port: int) -> None:
    """Raises InputError when `port` cannot be listened on at `host`."""
    try:
        candidates = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise InputError(f"--host: {host!r} is not a known host or address: {error}") from error
    for family, kind, protocol, _, address in candidates[:1]:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                reason = error.strerror or str(error)
                raise InputError(
                    f"--port: {port} on {host} cannot be used ({reason.lower()}); "
                    "stop what holds it or choose another --port"
                ) from error
