"""Who reaches an HTTP port and who reads what is dialled, and whether its operator means that.

Knows hosts and what protects a port or a channel; opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outrider.credentials import Credentials, is_loopback, leaves_machine
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


def plain_text_dialled(
    dialled: Iterable[tuple[str, str]], credentials: Credentials
) -> Iterator[str]:
    """A warning for the log about each (option, address) that others on the way can read.

    Addresses are as `parse_target` and `parse_endpoint` give them, empty for none. Collectors in
    plain text are common inside clusters, so that this is no error; `insecure` says it is meant.
    """
    for option, address in dialled:
        if not address or credentials.insecure or not _is_plain_text(address, credentials):
            continue
        yield (
            f"{option}: {address} is on another machine and is dialled in plain text: what is sent "
            "can be read on the way, and anybody there can answer; --tls-ca encrypts, --insecure "
            "says that the network is private"
        )


def _is_plain_text(address: str, credentials: Credentials) -> bool:
    if address.startswith("https://"):
        return False
    named_plain = address.startswith("http://")
    if credentials.authorities is not None and not named_plain:
        return False
    return leaves_machine(address.removeprefix("http://").removeprefix("dns:"))
