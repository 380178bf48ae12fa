"""The options that protect ports, called the same in every subcommand.

Knows the command line; what the files must be is outrider/certificates.py's and gateway/keys.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.keys import ApiKey
    from outrider.credentials import Credentials

_log = logging.getLogger(__name__)

TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="gRPC: this process's certificate chain, PEM; shown to those that dial and are "
        "dialled over TCP.",
    ),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="gRPC: its private key, PEM.")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="gRPC: authorities, PEM. With it every TCP address is dialled with TLS, and must "
        "show a certificate of theirs.",
    ),
]
TlsRequireClientCert = Annotated[
    bool,
    typer.Option(
        "--tls-require-client-cert",
        help="gRPC: refuse peers without a certificate of --tls-ca's authorities.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen where other machines can connect without TLS (HTTP: without API key): the "
        "network is trusted.",
    ),
]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="A key that requests must show; repeat for several. Else $OUTRIDER_API_KEY, with "
        "commas between keys.",
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="Hashed keys with names and limits, one a line; `outrider keys new` makes them.",
    ),
]
CacheSaltSecretFile = Annotated[
    Path | None,
    typer.Option(
        "--cache-salt-secret-file",
        metavar="FILE",
        help="What keeps keys' caches apart; the same at all gateways of the same verifiers.  "
        "[default: random]",
    ),
]
ShareCacheAcrossKeys = Annotated[
    bool,
    typer.Option(
        "--share-cache-across-keys",
        help="Let requests of all keys share cached prefixes and drafts.",
    ),
]
SslCertfile = Annotated[
    Path | None,
    typer.Option("--ssl-certfile", metavar="FILE", help="HTTP: certificate chain, PEM."),
]
SslKeyfile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-keyfile",
        metavar="FILE",
        help="HTTP: its private key, PEM.  [default: in the certificate's file]",
    ),
]
SslCaCerts = Annotated[
    Path | None,
    typer.Option(
        "--ssl-ca-certs", metavar="FILE", help="HTTP: authorities of clients' certificates, PEM."
    ),
]
SslCertReqs = Annotated[
    int | None,
    typer.Option(
        "--ssl-cert-reqs",
        metavar="0|1|2",
        help="HTTP: clients' certificates: 0 not asked for, 1 checked where shown, 2 required.  "
        "[default: 0]",
    ),
]


def credentials_of(
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    require_client_cert: bool = False,
    insecure: bool = False,
) -> Credentials:
    """The checked credentials of a process. Raises InputError naming the option."""
    from outrider.credentials import load_credentials

    return load_credentials(cert, key, ca, require_client_cert, insecure)


def api_keys_of(keys: Sequence[str] | None, file: Path | None) -> tuple[ApiKey, ...]:
    """The keys that requests may show, none where all may come. Raises InputError."""
    from gateway.keys import KeyRing, given_keys, read_key_file
    from outrider.config import API_KEY_VARIABLE, outrider_api_keys

    if keys:
        given = given_keys(keys, "--api-key")
    else:
        given = given_keys(outrider_api_keys(), f"${API_KEY_VARIABLE}")
    stored = () if file is None else read_key_file(file, "--api-key-file")
    return KeyRing((*given, *stored)).keys


def warn_of_plain_text(credentials: Credentials, *dialled: tuple[str, str]) -> None:
    """Log each (option, address) that is dialled across the network without TLS."""
    from outrider.exposure import plain_text_dialled

    for warning in plain_text_dialled(dialled, credentials):
        _log.warning("%s", warning)
