"""Who reaches an HTTP port, and whether that is what its operator means.

Knows hosts and what protects a port; opens nothing.
"""

from __future__ import annotations

from outrider.credentials import is_loopback
from outrider.errors import InputError
from outrider.https import Https


def http_exposure(host: str, *, keys: bool, https: Https | None, insecure: bool) -> str:
    """A warning for the log about a port at `host`, empty where there is nothing to say.

    `keys` is whether requests must show one. Raises InputError for a port that is open to the
    network with nothing at all in front of it, unless `insecure` says so.
    """
    if is_loopback(host):
        return ""
    known = keys or (https is not None and https.requires_client_certificate)
    if not known and https is None and not insecure:
        raise InputError(
            f"--host: {host} can be reached by other machines, and anybody there could use and "
            "read along; give --api-key or --api-key-file (and --ssl-certfile), listen at "
            "127.0.0.1, or say --insecure where the network itself is private"
        )
    if https is None:
        sent = "prompts, answers and API keys" if keys else "prompts and answers"
        return f"{host} is not encrypted: {sent} can be read on the way; --ssl-certfile encrypts"
    if not known:
        return f"{host} asks for no API key: whoever reaches it may use it; --api-key asks for one"
    return ""
