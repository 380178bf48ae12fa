"""TLS of the HTTP port; options are called as uvicorn and vLLM call them.

Knows files and the standard library's SSL contexts; knows no server.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from outrider.certificates import read_authorities, read_pair
from outrider.errors import InputError

CERTFILE, KEYFILE = "--ssl-certfile", "--ssl-keyfile"
CA_CERTS, CERT_REQS = "--ssl-ca-certs", "--ssl-cert-reqs"


@dataclass(frozen=True, slots=True)
class Https:
    """PEM files of an HTTPS port, already checked; `keyfile` may be `certfile` itself.

    `cert_reqs` is the standard library's: clients' certificates are not asked for (CERT_NONE),
    checked where shown (CERT_OPTIONAL) or required (CERT_REQUIRED).
    """

    certfile: Path
    keyfile: Path
    ca_certs: Path | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE

    @property
    def requires_client_certificate(self) -> bool:
        return self.cert_reqs is ssl.CERT_REQUIRED

    def context(self) -> ssl.SSLContext:
        """A server's context, TLS 1.2 and up."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certfile, self.keyfile)
        if self.ca_certs is not None:
            context.load_verify_locations(self.ca_certs)
        context.verify_mode = self.cert_reqs
        context.set_alpn_protocols(["http/1.1"])
        return context


def load_https(
    certfile: Path | None,
    keyfile: Path | None = None,
    ca_certs: Path | None = None,
    cert_reqs: int = 0,
) -> Https | None:
    """Check what the command line names; None where it asks for plain HTTP.

    Raises InputError naming the option and the file.
    """
    allowed = {int(mode) for mode in ssl.VerifyMode}
    if cert_reqs not in allowed:
        raise InputError(
            f"{CERT_REQS}: {cert_reqs} is not 0 (none), 1 (checked where shown) or 2 (required)"
        )
    if certfile is None:
        for option, value in ((KEYFILE, keyfile), (CA_CERTS, ca_certs)):
            if value is not None:
                raise InputError(f"{option}: {value} needs {CERTFILE} beside it")
        if cert_reqs:
            raise InputError(f"{CERT_REQS}: {cert_reqs} needs {CERTFILE} beside it")
        return None
    if cert_reqs and ca_certs is None:
        raise InputError(
            f"{CERT_REQS}: {cert_reqs} needs {CA_CERTS}, which clients' certificates must lead to"
        )
    key = keyfile or certfile
    read_pair(certfile, key, (CERTFILE, KEYFILE if keyfile else CERTFILE))
    if ca_certs is not None:
        read_authorities(ca_certs, CA_CERTS)
    return Https(certfile, key, ca_certs, ssl.VerifyMode(cert_reqs))
