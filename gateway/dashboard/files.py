"""The page's files, read once from the package.

Knows names, media types and the headers that keep the page to itself; not what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from typing import Final

INDEX: Final = "index.html"

_MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Nothing is loaded from elsewhere and nothing is sent there; no inline script or style runs.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Asked for again each time, answered with 304 while it is the same.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file; `etag` changes with its content."""

    content: bytes
    media_type: str
    etag: str


def read_files() -> Mapping[str, StaticFile]:
    """All files of the page by name."""
    folder = resources.files("gateway.dashboard") / "static"
    files: dict[str, StaticFile] = {}
    for entry in folder.iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None and entry.is_file():
            content = entry.read_bytes()
            digest = sha256(content).hexdigest()[:16]
            files[entry.name] = StaticFile(content, media_type, f'"{digest}"')
    return files
