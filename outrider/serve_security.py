"""What protects the ports of `outrider serve`: keys, certificates, and how children get them.

Knows the options by their names in a file and on a child's command line; does not know the other
options. Keys reach the gateway in its environment: a command line is everybody's to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from outrider.config import API_KEY_VARIABLE

if TYPE_CHECKING:
    from outrider.credentials import Credentials

# Never shown, not even to say that one is wrong.
SECRET_KEYS: Final = frozenset(("api_key",))

_FileName = Annotated[str, Field(min_length=1)]

_OF_GATEWAY: Final = (
    *("api_key_file", "cache_salt_secret_file"),
    *("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"),
)
_OF_ALL: Final = ("tls_cert", "tls_key", "tls_ca")


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


class SecurityOptions(BaseModel):
    """Options that protect ports; files are named as on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    api_key: Annotated[list[str], BeforeValidator(_several), Field(repr=False)] = []
    api_key_file: _FileName | None = None
    cache_salt_secret_file: _FileName | None = None
    share_cache_across_keys: bool = False
    ssl_certfile: _FileName | None = None
    ssl_keyfile: _FileName | None = None
    ssl_ca_certs: _FileName | None = None
    ssl_cert_reqs: Literal[0, 1, 2] = 0
    # For what leaves this machine: an OTLP endpoint or a collector.
    tls_cert: _FileName | None = None
    tls_key: _FileName | None = None
    tls_ca: _FileName | None = None
    insecure: bool = False

    @property
    def requires_client_certificate(self) -> bool:
        return self.ssl_cert_reqs == 2

    def check_security(self, host: str) -> bool:
        """Read what the options name, as the gateway will at `host`; whether requests need a key.

        Raises InputError before a model is loaded for nothing.
        """
        from gateway.tenants import read_salt_secret
        from outrider.commands.security_options import api_keys_of
        from outrider.exposure import http_exposure
        from outrider.https import load_https

        keys = bool(api_keys_of(self.api_key, _path(self.api_key_file)))
        https = load_https(
            _path(self.ssl_certfile),
            _path(self.ssl_keyfile),
            _path(self.ssl_ca_certs),
            self.ssl_cert_reqs,
        )
        http_exposure(host, keys=keys, https=https, insecure=self.insecure)
        self.credentials()
        if self.cache_salt_secret_file is not None:
            read_salt_secret(Path(self.cache_salt_secret_file), "--cache-salt-secret-file")
        return keys

    def credentials(self) -> Credentials:
        """What every child shows to what leaves this machine. Raises InputError."""
        from outrider.credentials import load_credentials

        return load_credentials(
            _path(self.tls_cert),
            _path(self.tls_key),
            _path(self.tls_ca),
            insecure=self.insecure,
        )

    def tls_arguments(self) -> list[str]:
        """What every child is told of certificates."""
        return self._named(_OF_ALL)

    def gateway_arguments(self) -> list[str]:
        """What the gateway alone is told."""
        arguments = self._named(_OF_GATEWAY)
        if self.ssl_cert_reqs:
            arguments.append(f"--ssl-cert-reqs={self.ssl_cert_reqs}")
        if self.share_cache_across_keys:
            arguments.append("--share-cache-across-keys")
        if self.insecure:
            arguments.append("--insecure")
        return arguments

    def gateway_environment(self) -> tuple[tuple[str, str], ...]:
        """Variables of the gateway beside those of this process."""
        return ((API_KEY_VARIABLE, ",".join(self.api_key)),) if self.api_key else ()

    def _named(self, fields: Sequence[str]) -> list[str]:
        return [
            f"--{field.replace('_', '-')}={getattr(self, field)}"
            for field in fields
            if getattr(self, field) is not None
        ]


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)
