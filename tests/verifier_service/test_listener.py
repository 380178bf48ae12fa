from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest

from outrider.errors import InputError
from verifier_service import listener


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


async def test_a_missing_folder_and_a_long_path_are_named(socket_dir: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        await bound(f"unix:{socket_dir}/missing/v.sock")
    with pytest.raises(InputError, match="the system allows"):
        await bound(f"unix:{socket_dir}/{'x' * 120}")
    with pytest.raises(InputError, match="--listen"):
        await bound("unix:")


async def test_port_0_takes_a_free_one(socket_dir: Path) -> None:
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


def test_only_unix_addresses_have_a_path() -> None:
    assert listener.unix_path("127.0.0.1:1") is None
    assert listener.unix_path("unix:/a/b") == Path("/a/b")
    assert listener.unix_path("unix:rel.sock") == Path("rel.sock")
    listener.remove_socket("127.0.0.1:1")
