"""Who may speak to whom: TLS of every gRPC port, and the one place where channels are opened.

Knows which addresses leave the machine and what a peer must show; knows no service. TCP is
protected by TLS, Unix sockets by their folder: a `unix:` address is never encrypted. The HTTP
port's side is gateway/tls.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from outrider.certificates import read_authorities, read_pair
from outrider.errors import InputError

ChannelOptions = Sequence[tuple[str, int | str]]

# Of every server: a peer that stalls in its handshake, or sends headers without end, is let go.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)

TLS_CERT, TLS_KEY, TLS_CA = "--tls-cert", "--tls-key", "--tls-ca"
TLS_REQUIRE_CLIENT_CERT = "--tls-require-client-cert"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a process shows and demands at its gRPC ports; PEM bytes.

    `certificate` (leaf first) with `private_key` is its own, as a server and as a client. Peers
    that it dials over TCP must lead to `authorities`: where these are given, every TCP address is
    dialled with TLS. `require_client_certificate` demands the same of who dials it. `insecure`
    is the operator's word that the network itself is trusted.
    """

    certificate: bytes | None = None
    private_key: bytes | None = None
    authorities: bytes | None = None
    require_client_certificate: bool = False
    insecure: bool = False

    def __repr__(self) -> str:
        """Without the key, which must not reach a log."""
        return (
            f"Credentials(tls={self.certificate is not None}, "
            f"authorities={self.authorities is not None}, "
            f"require_client_certificate={self.require_client_certificate}, "
            f"insecure={self.insecure})"
        )

    def of_server(self, address: str) -> grpc.ServerCredentials | None:
        """What a port at `address` demands; None for plain text."""
        if is_unix(address) or self.certificate is None or self.private_key is None:
            return None
        return grpc.ssl_server_credentials(
            [(self.private_key, self.certificate)],
            root_certificates=self.authorities if self.require_client_certificate else None,
            require_client_auth=self.require_client_certificate,
        )

    def of_channel(self, address: str) -> grpc.ChannelCredentials | None:
        """How `address` is dialled; None for plain text."""
        if is_unix(address) or self.authorities is None:
            return None
        return grpc.ssl_channel_credentials(self.authorities, self.private_key, self.certificate)

    def check_listen(self, address: str, option: str = "--listen") -> None:
        """Raises InputError for a port that other machines reach in plain text, unless told to."""
        if self.insecure or self.certificate is not None or not leaves_machine(address):
            return
        raise InputError(
            f"{option}: {address} can be reached by other machines, and without TLS anybody there "
            f"can read and send what services say to each other; give {TLS_CERT} and {TLS_KEY} "
            f"(and {TLS_REQUIRE_CLIENT_CERT} with {TLS_CA}), listen at 127.0.0.1 or unix:PATH, or "
            "say --insecure where the network itself is private"
        )

    def admits_strangers(self, address: str) -> bool:
        """Whether somebody on another machine is answered without having shown a certificate."""
        return leaves_machine(address) and not self.require_client_certificate


PLAIN = Credentials()


def load_credentials(
    certificate: Path | None = None,
    key: Path | None = None,
    authorities: Path | None = None,
    require_client_certificate: bool = False,
    insecure: bool = False,
) -> Credentials:
    """Read and check the files that the command line names.

    Raises InputError naming the option: half of a pair, a missing or malformed file, a key that is
    another certificate's, a certificate that is not valid now.
    """
    for given, other, names in (
        (certificate, key, (TLS_CERT, TLS_KEY)),
        (key, certificate, (TLS_KEY, TLS_CERT)),
    ):
        if given is not None and other is None:
            raise InputError(f"{names[0]}: {given} needs {names[1]} beside it")
    if require_client_certificate and (authorities is None or certificate is None):
        raise InputError(
            f"{TLS_REQUIRE_CLIENT_CERT}: needs {TLS_CA}, which clients' certificates must lead to, "
            f"and {TLS_CERT} with {TLS_KEY}"
        )
    own: tuple[bytes | None, bytes | None] = (None, None)
    if certificate is not None and key is not None:
        own = read_pair(certificate, key, (TLS_CERT, TLS_KEY))
    return Credentials(
        certificate=own[0],
        private_key=own[1],
        authorities=None if authorities is None else read_authorities(authorities, TLS_CA),
        require_client_certificate=require_client_certificate,
        insecure=insecure,
    )


def open_channel(
    address: str,
    credentials: Credentials = PLAIN,
    options: ChannelOptions = (),
    server_name: str | None = None,
) -> grpc.Channel:
    """A blocking channel; the caller closes it.

    `server_name` is what the certificate must be for where `address` says it otherwise (an
    address that a name was resolved to).
    """
    secret = credentials.of_channel(address)
    if secret is None:
        return grpc.insecure_channel(address, _all(options))
    return grpc.secure_channel(address, secret, _all(options, server_name))


def open_aio_channel(
    address: str,
    credentials: Credentials = PLAIN,
    options: ChannelOptions = (),
    server_name: str | None = None,
) -> grpc.aio.Channel:
    """As `open_channel`, for the running event loop."""
    secret = credentials.of_channel(address)
    if secret is None:
        return grpc.aio.insecure_channel(address, _all(options))
    return grpc.aio.secure_channel(address, secret, _all(options, server_name))


def is_unix(address: str) -> bool:
    """Whether an address is a socket file."""
    return address.startswith("unix:")


def leaves_machine(address: str) -> bool:
    """Whether others than this machine's own processes reach (or are reached at) an address."""
    return not is_unix(address) and not is_loopback(address.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Whether a host means this machine alone; of names, only localhost does."""
    bare = host.strip("[]").partition("%")[0]
    if bare.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _all(options: ChannelOptions, server_name: str | None = None) -> list[tuple[str, int | str]]:
    # Services are never behind a web proxy, whatever the environment says.
    chosen: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0), *options]
    if server_name is not None:
        chosen.append(("grpc.ssl_target_name_override", server_name))
    return chosen
