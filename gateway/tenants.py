"""Keeps tenants apart: whose cached prefixes and drafts a request may meet.

Knows key names and salts; does not know what is cached. With API keys the salt that a verifier sees
is an HMAC of the key's name and the request's own `cache_salt`: no request can name, or guess,
another tenant's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Final

from outrider.errors import InputError

MIN_SECRET_BYTES: Final = 16


class Tenants:
    """Salts under one `secret`.

    Gateways that share a secret give the same salts, and so share what their verifiers cached;
    None makes one for this process. With `shared` a request's own `cache_salt` is all there is.
    """

    def __init__(self, secret: bytes | None = None, *, shared: bool = False) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._shared = shared

    def salt(self, key_name: str, cache_salt: str) -> str:
        """The salt of a request; `key_name` is empty where the gateway has no keys."""
        if self._shared or not key_name:
            return cache_salt
        # A key's name has no zero byte, so no two pairs are one message.
        message = f"{key_name}\0{cache_salt}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


def read_salt_secret(path: Path, option: str) -> bytes:
    """The secret in a file, without a last line break. Raises InputError."""
    try:
        secret = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{option}: {path} cannot be read: {reason}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise InputError(
            f"{option}: {path} has {len(secret)} bytes; a secret needs {MIN_SECRET_BYTES} or more"
        )
    return secret
