"""Looking names up, once and again and again."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from outrider.addresses import is_name, parse_target, split_name
from outrider.errors import InputError
from outrider.names import NameLookupError, NameWatch, SystemResolver
from tests.fake_names import FakeResolver

PATIENCE_S = 20


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("dns:verifier:50051", "verifier", 50051),
        ("dns:verifiers.example:1", "verifiers.example", 1),
        ("dns:[::1]:80", "::1", 80),
    ],
)
def test_targets_that_are_names(written: str, host: str, port: int) -> None:
    target = parse_target(written, "--verifier")
    assert is_name(target)
    assert split_name(target) == (host, port)


@pytest.mark.parametrize("written", ["unix:/run/o.sock", "127.0.0.1:50051", "verifier:1"])
def test_targets_that_are_addresses(written: str) -> None:
    assert parse_target(written, "--verifier") == written
    assert not is_name(written)


@pytest.mark.parametrize(
    "written", ["dns:", "dns:verifier", "dns:verifier:0", "dns:unix:/run/o.sock", "dns:dns:a:1"]
)
def test_bad_names_are_told_the_form(written: str) -> None:
    with pytest.raises(InputError, match=r"--verifier: .*behind dns: comes HOST:PORT"):
        parse_target(written, "--verifier")


def found_by(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[Any, ...]) -> tuple[str, ...]:
    def getaddrinfo(host: str, port: int, **hints: object) -> list[tuple[Any, ...]]:
        assert (host, port) == ("verifier", 50051)
        return [(0, 0, 0, "", address) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return SystemResolver().resolve("dns:verifier:50051")


def test_every_address_is_found_once_and_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_by(
        monkeypatch,
        ("10.0.0.9", 50051),
        ("fd00::2", 50051, 0, 0),
        ("10.0.0.10", 50051),
        ("10.0.0.9", 50051),
    )
    assert found == ("10.0.0.10:50051", "10.0.0.9:50051", "[fd00::2]:50051")


def test_the_system_finds_this_machine() -> None:
    assert "127.0.0.1:80" in SystemResolver().resolve("dns:127.0.0.1:80")


def test_an_unknown_name_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*arguments: object, **hints: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(NameLookupError, match=r"dns:nobody:1: 'nobody' .*Name or service"):
        SystemResolver().resolve("dns:nobody:1")


class Heard:
    """What a watch told."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ...]] = []
        self.failed: list[str] = []
        self._told = threading.Condition()

    def on_found(self, addresses: tuple[str, ...]) -> None:
        with self._told:
            self.found.append(addresses)
            self._told.notify_all()

    def on_failed(self, reason: str) -> None:
        with self._told:
            self.failed.append(reason)
            self._told.notify_all()

    def wait(self, founds: int, fails: int) -> None:
        with self._told:
            assert self._told.wait_for(
                lambda: len(self.found) >= founds and len(self.failed) >= fails, PATIENCE_S
            )


def test_a_watch_tells_every_lookup_until_it_is_closed() -> None:
    resolver, heard = FakeResolver(verifier=("b:1", "a:1")), Heard()
    watch = NameWatch(
        "dns:verifier:1", resolver, 0.001, found=heard.on_found, failed=heard.on_failed
    )
    heard.wait(2, 0)
    assert heard.found[0] == ("a:1", "b:1")
    resolver.set("verifier")
    heard.wait(2, 1)
    assert heard.failed[0] == "dns:verifier:1: not known"
    resolver.set("verifier", "c:1")
    heard.wait(len(heard.found) + 1, 1)
    assert heard.found[-1] == ("c:1",)
    watch.close()
    told = len(heard.found)
    lookups = resolver.lookups
    resolver.set("verifier", "d:1")
    assert len(heard.found) == told
    assert resolver.lookups - lookups <= 1


def test_a_lookup_that_ends_after_close_tells_nothing() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def resolve(self, target: str) -> tuple[str, ...]:
            entered.set()
            assert leave.wait(PATIENCE_S)
            return ("a:1",)

    heard = Heard()
    watch = NameWatch("dns:x:1", Slow(), 0.001, found=heard.on_found, failed=heard.on_failed)
    assert entered.wait(PATIENCE_S)
    (thread,) = [t for t in threading.enumerate() if t.name == "watch dns:x:1"]
    watch.close()
    leave.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not heard.found
