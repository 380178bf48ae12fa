"""Throw-away authorities and certificates, written where options can name them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

from outrider.credentials import Credentials, load_credentials


@dataclass(frozen=True)
class Pair:
    """The files of one certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority with a folder of its own; `ca` is its certificate's file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str = "server", *hosts: str, days: tuple[float, float] = (-1, 1)) -> Pair:
        """A certificate for `hosts` (127.0.0.1 and localhost), valid between days from now."""
        now = datetime.datetime.now(datetime.UTC)
        begin, end = (now + datetime.timedelta(days=day) for day in days)
        issued = self._authority.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")), not_before=begin, not_after=end
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pair.key))
        return pair

    def server(self, *, mutual: bool = False, name: str = "server") -> Credentials:
        """Of a server that demands, where `mutual`, a certificate of this authority's."""
        pair = self.issue(name)
        return load_credentials(pair.cert, pair.key, self.ca, mutual)

    def client(self, *, shows: Pair | None = None) -> Credentials:
        """Of a client that trusts this authority, and shows a certificate where it has one."""
        return load_credentials(shows and shows.cert, shows and shows.key, self.ca)
