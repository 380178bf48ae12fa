"""PEM files, checked before anything listens or dials: is it there, is it one, does it fit, is it
valid now?

Knows certificates and keys; does not know which port they are for. Files are read once: a renewed
certificate is taken with the next start.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import InputError

if TYPE_CHECKING:
    from cryptography import x509


def read_pair(
    certificate: Path, key: Path, options: tuple[str, str], now: datetime.datetime | None = None
) -> tuple[bytes, bytes]:
    """The PEM bytes of a certificate chain (leaf first) and of its unencrypted private key.

    `options` are what the two are called on the command line. Raises InputError naming option and
    file where one cannot be read, is no PEM, is not valid now, or the two do not belong together.
    """
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    chain = _read(certificate, options[0])
    leaf = _certificates(chain, certificate, options[0], now)[0]
    secret = _read(key, options[1])
    try:
        private = load_pem_private_key(secret, password=None)
    except TypeError:
        raise InputError(
            f"{options[1]}: {key} is encrypted; give a key without a passphrase, readable by this "
            "user only"
        ) from None
    except ValueError as error:
        raise InputError(f"{options[1]}: {key} is not a private key in PEM form") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise InputError(
            f"{options[1]}: {key} is not the key of the certificate in {certificate} ({options[0]})"
        )
    return chain, secret


def read_authorities(path: Path, option: str, now: datetime.datetime | None = None) -> bytes:
    """The PEM bytes of the certificates that the other side's certificate must lead to.

    Raises InputError naming `option` and the file.
    """
    pem = _read(path, option)
    _certificates(pem, path, option, now)
    return pem


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{option}: {path} cannot be read: {reason}") from error


def _certificates(
    pem: bytes, path: Path, option: str, now: datetime.datetime | None
) -> Sequence[x509.Certificate]:
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InputError(f"{option}: {path} has no certificate in PEM form") from error
    moment = now or datetime.datetime.now(datetime.UTC)
    for certificate in certificates:
        name = certificate.subject.rfc4514_string() or "a certificate without a subject"
        if certificate.not_valid_after_utc < moment:
            raise InputError(
                f"{option}: {path}: {name} expired at {certificate.not_valid_after_utc:%F %T} UTC"
            )
        if certificate.not_valid_before_utc > moment:
            raise InputError(
                f"{option}: {path}: {name} is valid from {certificate.not_valid_before_utc:%F %T} "
                "UTC only; is this machine's clock right?"
            )
    return certificates
