"""The options that protect ports, called the same in every subcommand.

Knows the command line; what the files must be is outrider/certificates.py's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.credentials import Credentials

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
