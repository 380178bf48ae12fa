"""Addresses of services: the two forms, and words for the rest."""

from __future__ import annotations

import socket

import pytest

from outrider.addresses import MAX_SOCKET_PATH_BYTES, parse_address, require_free_port
from outrider.errors import InputError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("unix:/run/o.sock", "unix:/run/o.sock"),
        ("unix:///run/o.sock", "unix:/run/o.sock"),
        ("unix:relative.sock", "unix:relative.sock"),
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("verifier:1", "verifier:1"),
        ("host.example:65535", "host.example:65535"),
        ("[::1]:50051", "[::1]:50051"),
    ],
)
def test_good_addresses(written: str, meant: str) -> None:
    assert parse_address(written, "--listen") == meant


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "is not an address"),
        ("localhost", "is not an address"),
        ("http://localhost:1", "is not an address"),
        ("localhost:x", "is not an address"),
        ("::1:80", "is not an address"),
        ("localhost:0", "is not in 1..65535"),
        ("localhost:65536", "is not in 1..65535"),
        ("unix:", "has no path"),
        ("unix://", "has no path"),
        ("unix:/" + "x" * MAX_SOCKET_PATH_BYTES, f"has {MAX_SOCKET_PATH_BYTES + 1} bytes"),
    ],
)
def test_bad_addresses_name_the_option(written: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_address(written, "--listen")
    assert str(caught.value).startswith("--listen: ")
    assert words in str(caught.value)


def test_a_taken_port_is_refused(free_port: int) -> None:
    require_free_port("127.0.0.1", free_port)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        holder.listen()
        with pytest.raises(InputError, match=rf"--port: {free_port} on 127.0.0.1 cannot be used"):
            require_free_port("127.0.0.1", free_port)


def test_a_strange_host_is_refused() -> None:
    with pytest.raises(InputError, match="--host: 'not a host'"):
        require_free_port("not a host", 8000)
    with pytest.raises(InputError, match=r"--port: .* cannot be used"):
        require_free_port("203.0.113.7", 8000)
