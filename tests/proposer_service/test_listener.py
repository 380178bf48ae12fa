"""Addresses that cannot be listened at are refused in words."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc.aio
import pytest

from outrider.errors import InputError
from proposer_service import listener
from proposer_service.server import start
from proposer_service.settings import ProposerSettings
from tests.proposer_service.verifier import propose


def settings(listen: str) -> ProposerSettings:
    return ProposerSettings(listen=listen, method="ngram")


async def test_the_socket_of_a_living_process_is_not_taken(socket_dir: Path) -> None:
    address = f"unix:{socket_dir}/p.sock"
    running = await start(settings(address))
    try:
        with pytest.raises(listener.AddressInUseError, match=r"another process serves .*p\.sock"):
            await start(settings(address))
        async with propose(address) as stream:
            await stream.greet()
    finally:
        await running.stop()


async def test_a_taken_port_is_refused_as_wrong_input() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            listener.AddressInUseError, match=f"127.0.0.1:{port} is in use"
        ) as caught:
            await start(settings(f"127.0.0.1:{port}"))
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2


async def test_port_0_takes_a_free_port_that_is_told() -> None:
    running = await start(settings("127.0.0.1:0"))
    try:
        assert not running.address.endswith(":0")
        async with propose(running.address) as stream:
            await stream.greet()
    finally:
        await running.stop()


async def test_two_servers_never_share_a_port() -> None:
    running = await start(settings("127.0.0.1:0"))
    try:
        with pytest.raises(listener.AddressInUseError):
            await start(settings(running.address))
    finally:
        await running.stop()


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("unix:/no/such/folder/p.sock", "/no/such/folder.* does not exist"),
        (f"unix:/tmp/{'x' * 200}", "bytes"),
        ("unix:", "no path"),
        ("localhost", "not an address"),
        ("localhost:99999", "99999"),
    ],
)
async def test_what_is_no_address_is_refused(listen: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        listener.bind(grpc.aio.server(), listen)


async def test_a_file_is_not_replaced(socket_dir: Path) -> None:
    file = socket_dir / "notes"
    file.write_text("precious")
    with pytest.raises(InputError, match="not a socket"):
        listener.bind(grpc.aio.server(), f"unix:{file}")
    assert file.read_text() == "precious"
