"""Options of the bench commands that say which server is asked, and how it is reached.

Knows the command line; the names are those of `vllm bench serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.commands.bench_options import DEFAULT_URL, read_backend
from outrider.errors import InputError

if TYPE_CHECKING:
    from outrider.bench.samples import Backend

_HOST = "127.0.0.1"
_PORT = 8000

Host = Annotated[
    str | None, typer.Option(help=f"Its host, instead of --base-url.  [default: {_HOST}]")
]
Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help=f"Its port, instead of --base-url.  [default: {_PORT}]"),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="Path of the requests.  [default: the backend's, /v1/chat/completions]"),
]
BackendOrEndpoint = Annotated[
    str | None,
    typer.Option(
        help="openai-chat (chat completions), openai or vllm (completions).  [default: what "
        "--endpoint says, else openai-chat]"
    ),
]
ServedModelName = Annotated[
    str | None, typer.Option(help="The name in requests, where --model says something else.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Take any certificate of an https server.")
]


def server_url(base_url: str | None, host: str | None, port: int | None) -> str:
    """The server's URL by either way of naming it. Raises InputError where both are used."""
    if host is None and port is None:
        return base_url or DEFAULT_URL
    if base_url is not None:
        given = "--host" if host is not None else "--port"
        raise InputError(f"{given}: --base-url says where the server is; give one of them")
    name = host or _HOST
    if "/" in name:
        raise InputError(f"--host: {name!r} is not a host; --base-url takes a whole URL")
    bracketed = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{bracketed}:{port or _PORT}"


def backend_and_endpoint(backend: str | None, endpoint: str | None) -> tuple[Backend, str]:
    """The kind of request, and its path (empty: the kind's own).

    Raises InputError for an unknown backend, or a path that is not of its kind.
    """
    from outrider.bench.samples import Backend

    if endpoint is None:
        return read_backend(backend or Backend.CHAT), ""
    if not endpoint.startswith("/"):
        raise InputError(f"--endpoint: {endpoint!r} is not a path; write /v1/completions")
    path = endpoint.rstrip("/")
    of_path = Backend.CHAT if path.endswith("/chat/completions") else Backend.COMPLETIONS
    if not path.endswith("/completions"):
        raise InputError(
            f"--endpoint: {endpoint!r} ends neither in /completions nor in /chat/completions"
        )
    kind = of_path if backend is None else read_backend(backend)
    if (kind is Backend.CHAT) is not (of_path is Backend.CHAT):
        raise InputError(
            f"--endpoint: {endpoint!r} is not of --backend {kind.value}; leave one of them out"
        )
    return kind, endpoint
