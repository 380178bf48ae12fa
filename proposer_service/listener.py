"""Binds a gRPC server to `unix:PATH` or `HOST:PORT`, or says in one sentence why it cannot.

gRPC itself would take over the socket of a living process, and share a TCP port with one.
"""

from __future__ import annotations

import socket
from pathlib import Path

import grpc.aio

from outrider.addresses import parse_address
from outrider.errors import InputError

OPTIONS: tuple[tuple[str, int], ...] = (("grpc.so_reuseport", 0),)
_PROBE_SECONDS = 1.0


class AddressInUseError(InputError):
    """Another process listens at the address."""


def bind(server: grpc.aio.Server, listen: str) -> str:
    """Bind the server; returns the address as clients dial it. Port 0 takes any free port.

    A socket file that nobody serves any more is replaced. Raises InputError where the address is
    malformed or cannot be used, AddressInUseError where another process has it.
    """
    host, separator, port = listen.rpartition(":")
    any_port = separator and port == "0" and not listen.startswith("unix:")
    address = parse_address(f"{host}:1" if any_port else listen, "--listen")
    if any_port:
        address = listen
    path = socket_path(address)
    if path is not None:
        _make_room(path)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressInUseError(
            f"--listen: {address} is in use by another process or not an address of this machine"
        ) from error
    return f"{host}:{bound}" if any_port else address


def socket_path(address: str) -> Path | None:
    """The socket file of a `unix:` address, None for TCP."""
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None


def _make_room(path: Path) -> None:
    if not path.parent.is_dir():
        raise InputError(f"--listen: {path.parent}, the folder of the socket, does not exist")
    if not path.exists():
        return
    if not path.is_socket():
        raise InputError(f"--listen: {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise AddressInUseError(f"--listen: {path} cannot be probed: {error}") from error
        else:
            raise AddressInUseError(f"--listen: another process serves {path}; stop it first")
