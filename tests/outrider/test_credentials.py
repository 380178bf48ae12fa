"""TLS between services over real sockets: who is let in, who is not, and what needs no word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from outrider import listener
from outrider.credentials import (
    PLAIN,
    Credentials,
    is_loopback,
    leaves_machine,
    load_credentials,
    open_aio_channel,
    open_channel,
)
from outrider.errors import InputError
from tests.certificates import Authority

CHECK = health_pb2.HealthCheckRequest()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@asynccontextmanager
async def serving(credentials: Credentials, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = grpc.aio.server(options=listener.OPTIONS)
    service = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await service.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    address = listener.bind(server, listen, credentials)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def asks(address: str, credentials: Credentials, server_name: str | None = None) -> str:
    """What a client with these credentials gets: SERVING, or the status of its refusal."""
    async with open_aio_channel(address, credentials, server_name=server_name) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(CHECK, timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_the_right_authority_is_let_in(authority: Authority) -> None:
    async with serving(authority.server()) as address:
        assert await asks(address, authority.client()) == "SERVING"

        def blocking() -> int:
            with open_channel(address, authority.client()) as channel:
                return int(health_pb2_grpc.HealthStub(channel).Check(CHECK, timeout=10).status)

        assert await asyncio.to_thread(blocking) == health_pb2.HealthCheckResponse.SERVING


async def test_a_server_of_another_authority_is_not_believed(
    authority: Authority, stranger: Authority
) -> None:
    async with serving(stranger.server()) as address:
        assert await asks(address, authority.client()) == "UNAVAILABLE"


async def test_plain_text_and_tls_do_not_talk(authority: Authority) -> None:
    async with serving(authority.server()) as address:
        assert await asks(address, PLAIN) == "UNAVAILABLE"
    async with serving(PLAIN) as address:
        # Never falls back to plain text.
        assert await asks(address, authority.client()) == "UNAVAILABLE"


async def test_a_peer_without_a_certificate_is_refused_where_one_is_required(
    authority: Authority, stranger: Authority
) -> None:
    foreign = stranger.issue("client")
    posing = load_credentials(foreign.cert, foreign.key, authority.ca)
    async with serving(authority.server(mutual=True)) as address:
        assert await asks(address, authority.client()) == "UNAVAILABLE"
        assert await asks(address, posing) == "UNAVAILABLE"
        own = authority.client(shows=authority.issue("client"))
        assert await asks(address, own) == "SERVING"


async def test_a_peer_whose_certificate_expired_is_refused(authority: Authority) -> None:
    old = authority.issue("old", days=(-3, -1))
    # As if it had expired since it was read.
    credentials = Credentials(
        old.cert.read_bytes(), old.key.read_bytes(), authority.ca.read_bytes()
    )
    async with serving(authority.server(mutual=True)) as address:
        assert await asks(address, credentials) == "UNAVAILABLE"
    async with serving(credentials) as address:
        assert await asks(address, authority.client()) == "UNAVAILABLE"


async def test_a_certificate_for_another_host_is_not_believed(authority: Authority) -> None:
    pair = authority.issue("elsewhere", "verifier.example")
    async with serving(load_credentials(pair.cert, pair.key)) as address:
        assert await asks(address, authority.client()) == "UNAVAILABLE"
        # An address that the name was resolved to.
        assert await asks(address, authority.client(), "verifier.example") == "SERVING"


async def test_a_unix_socket_needs_no_certificate(authority: Authority, socket_dir: Path) -> None:
    credentials = authority.server(mutual=True)
    async with serving(credentials, f"unix:{socket_dir}/h.sock") as address:
        assert await asks(address, PLAIN) == "SERVING"
        assert await asks(address, authority.client()) == "SERVING"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:1", "verifier:1"])
def test_plain_text_beyond_this_machine_needs_a_word(listen: str) -> None:
    with pytest.raises(InputError) as caught:
        PLAIN.check_listen(listen)
    text = str(caught.value)
    assert text.startswith(f"--listen: {listen} can be reached by other machines")
    assert "--tls-cert" in text and "--insecure" in text
    assert caught.value.exit_code == 2
    Credentials(insecure=True).check_listen(listen)


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:1", "[::1]:0", "localhost:5", "unix:/x", "127.9.9.9:1"]
)
def test_plain_text_within_this_machine_needs_none(listen: str) -> None:
    PLAIN.check_listen(listen)


def test_tls_needs_no_word(authority: Authority) -> None:
    authority.server().check_listen("0.0.0.0:1")


async def test_an_address_in_use_is_told_with_tls_too(authority: Authority) -> None:
    credentials = authority.server()
    async with serving(credentials) as address:
        with pytest.raises(InputError, match="cannot be listened at"):
            listener.bind(grpc.aio.server(options=listener.OPTIONS), address, credentials)
    with pytest.raises(InputError, match=r"--otlp-listen: 192\.0\.2\.1:9 cannot be listened at"):
        insecure = Credentials(insecure=True)
        listener.bind(grpc.aio.server(), "192.0.2.1:9", insecure, "--otlp-listen")


@pytest.mark.parametrize(
    ("credentials", "address", "admits"),
    [
        (Credentials(b"c", b"k"), "0.0.0.0:1", True),
        (Credentials(b"c", b"k", b"a", True), "0.0.0.0:1", False),
        (Credentials(insecure=True), "0.0.0.0:1", True),
        (PLAIN, "127.0.0.1:1", False),
        (PLAIN, "unix:/x", False),
    ],
)
def test_who_may_be_a_stranger(credentials: Credentials, address: str, admits: bool) -> None:
    assert credentials.admits_strangers(address) is admits


@given(st.ip_addresses())
def test_only_loopback_addresses_stay_on_the_machine(address: object) -> None:
    text = f"[{address}]" if ":" in str(address) else str(address)
    assert leaves_machine(f"{text}:1") is not address.is_loopback  # type: ignore[attr-defined]


@given(st.text())
def test_no_name_but_localhost_is_loopback(name: str) -> None:
    if is_loopback(name):
        bare = name.strip("[]").partition("%")[0].lower()
        assert bare == "localhost" or bare.startswith("127.") or ":" in bare


async def test_a_peer_with_endless_metadata_is_refused(authority: Authority) -> None:
    async with serving(PLAIN) as address, open_aio_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        metadata = [(f"x-{n}", "y" * 1024) for n in range(64)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(CHECK, timeout=10, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(CHECK, timeout=10)).status


@pytest.mark.parametrize(("mutual", "told"), [(False, 1), (True, 0)])
async def test_a_port_that_encrypts_but_knows_nobody_is_told_of(
    authority: Authority, mutual: bool, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority.server(mutual=mutual), "0.0.0.0:0"):
        pass
    lines = [record.getMessage() for record in caplog.records if "certificate" in record.message]
    assert len(lines) == told
    assert all("--listen: 0.0.0.0:0 asks peers for no certificate" in line for line in lines)
