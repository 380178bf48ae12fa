"""Addresses are bound as they are told, and never taken from another process."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from outrider import listener
from outrider.errors import InputError


async def bound(address: str) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=listener.OPTIONS)
    reached = listener.bind(server, address)
    await server.start()
    return server, reached


def left_by_a_dead_process(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
async def test_a_unix_socket_is_made_and_removed(socket_dir: Path, form: str) -> None:
    path = socket_dir / "v.sock"
    server, reached = await bound(form.format(path))
    assert reached == f"unix:{path}"
    assert path.is_socket()
    await server.stop(None)
    listener.remove_socket(reached)
    assert not path.exists()


async def test_a_dead_processs_socket_is_replaced(socket_dir: Path) -> None:
    path = socket_dir / "v.sock"
    left_by_a_dead_process(path)
    server, reached = await bound(f"unix:{path}")
    async with grpc.aio.insecure_channel(reached) as channel:
        await channel.channel_ready()
    await server.stop(None)


async def test_a_living_processs_socket_is_left_alone(socket_dir: Path) -> None:
    path = socket_dir / "v.sock"
    server, reached = await bound(f"unix:{path}")
    with pytest.raises(InputError, match="another process listens at"):
        await bound(f"unix:{path}")
    async with grpc.aio.insecure_channel(reached) as channel:
        await channel.channel_ready()
    await server.stop(None)


async def test_a_file_that_is_no_socket_is_left_alone(socket_dir: Path) -> None:
    path = socket_dir / "notes.txt"
    path.write_text("precious")
    with pytest.raises(InputError, match="is not a socket"):
        await bound(f"unix:{path}")
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("unix:/no/such/folder/p.sock", "/no/such/folder is not a folder"),
        (f"unix:/tmp/{'x' * 200}", "205 bytes; the system allows"),
        ("unix:", "no path"),
        ("localhost", "not an address"),
        ("localhost:99999", "99999"),
        ("local host:0", "not an address"),
        ("192.0.2.1:7001", "can be reached by other machines"),
    ],
)
async def test_what_cannot_be_an_address_is_refused(address: str, words: str) -> None:
    with pytest.raises(InputError, match=f"--listen: .*{words}") as caught:
        await bound(address)
    assert caught.value.exit_code == 2


async def test_port_0_takes_a_free_one() -> None:
    server, reached = await bound("127.0.0.1:0")
    host, _, port = reached.rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    async with grpc.aio.insecure_channel(reached) as channel:
        await channel.channel_ready()
    await server.stop(None)


async def test_a_tcp_port_in_use_is_refused_not_shared() -> None:
    server, reached = await bound("127.0.0.1:0")
    with pytest.raises(InputError, match="cannot be listened at"):
        await bound(reached)
    await server.stop(None)


async def test_a_port_that_no_grpc_server_holds_is_refused_too() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be listened at"):
            await bound(f"127.0.0.1:{port}")


def test_a_proposer_needs_no_torch_for_it() -> None:
    program = "import outrider.listener, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_only_unix_addresses_have_a_path() -> None:
    assert listener.unix_path("127.0.0.1:1") is None
    assert listener.unix_path("unix:/a/b") == Path("/a/b")
    assert listener.unix_path("unix:rel.sock") == Path("rel.sock")
    listener.remove_socket("127.0.0.1:1")
