"""Opens the address a gRPC server listens at, and says clearly why it cannot.

Knows Unix sockets and TCP as gRPC treats them: gRPC would silently take over a Unix socket that
another process serves, and share a TCP port with it; both are refused here. Knows no service.
"""

from __future__ import annotations

import errno
import logging
import socket
import stat
from pathlib import Path

import grpc.aio

from outrider.addresses import parse_address
from outrider.credentials import PLAIN, SERVER_OPTIONS, Credentials
from outrider.errors import InputError

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 1.0

# Of every server that is bound with `bind`.
OPTIONS: tuple[tuple[str, int], ...] = (("grpc.so_reuseport", 0), *SERVER_OPTIONS)


def bind(
    server: grpc.aio.Server,
    listen: str,
    credentials: Credentials = PLAIN,
    option: str = "--listen",
) -> str:
    """Bind `unix:PATH` or `HOST:PORT` (port 0: any free one); returns where it can be reached.

    `option` is what the address is called on the command line. The socket file that a dead
    process left is replaced. Raises InputError where the address is malformed or in use, or
    reached by other machines and neither encrypted nor said to be meant so.
    """
    address = _checked(listen, option)
    credentials.check_listen(address, option)
    if not credentials.insecure and credentials.admits_strangers(address):
        logger.warning(
            "%s: %s asks peers for no certificate: whoever reaches it may use it; "
            "--tls-require-client-cert asks for one",
            option,
            address,
        )
    path = unix_path(address)
    if path is not None:
        _make_room(path, option)
    secret = credentials.of_server(address)
    try:
        if secret is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, secret)
    except RuntimeError as error:
        raise InputError(
            f"{option}: {address} cannot be listened at: it is in use, or not an address of "
            "this machine"
        ) from error
    if path is not None:
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def unix_path(address: str) -> Path | None:
    """The socket file of a `unix:` address; None for any other."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    return Path(path.removeprefix("//"))


def remove_socket(address: str) -> None:
    """Remove the socket file of an address that this process served."""
    path = unix_path(address)
    if path is not None:
        path.unlink(missing_ok=True)


def _checked(listen: str, option: str) -> str:
    host, _, port = listen.rpartition(":")
    if port == "0" and not listen.startswith("unix:"):
        # Port 0 is an address only to those who listen.
        parse_address(f"{host}:1", option)
        return listen
    return parse_address(listen, option)


def _make_room(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise InputError(f"{option}: {path.parent} is not a folder; a socket cannot be made in it")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{option}: {path} exists and is not a socket; choose another path")
    if _is_served(path, option):
        raise InputError(f"{option}: another process listens at {path}; stop it first")
    path.unlink(missing_ok=True)


def _is_served(path: Path, option: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            # A full backlog belongs to somebody who lives; what cannot be asked is left alone.
            if error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
                return True
            raise InputError(f"{option}: {path} cannot be used: {error}") from error
        return True
