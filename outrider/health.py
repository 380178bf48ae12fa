"""Asks one service whether it serves and exits with 0 or 1: what containers' health checks run.

Knows the gRPC health protocol and HTTP. It is run every few seconds beside the service, so that it
imports no more than its one question needs.

    python -m outrider.health http://127.0.0.1:8000/health
    python -m outrider.health 127.0.0.1:50051
"""

from __future__ import annotations

import argparse
import http.client
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 where the service serves. What is wrong goes to standard error."""
    parser = argparse.ArgumentParser(prog="outrider.health")
    parser.add_argument("target", help="an http(s) URL, HOST:PORT or unix:PATH of a gRPC service")
    parser.add_argument("--tls-ca", type=Path, help="what the service's certificate leads to")
    parser.add_argument("--tls-cert", type=Path, help="shown to services that ask for one")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--server-name", help="whom the service's certificate is for")
    options = parser.parse_args(arguments)
    try:
        if options.target.startswith(("http://", "https://")):
            _ask_http(options)
        else:
            _ask_grpc(options)
    except NotServingError as error:
        sys.stderr.write(f"{options.target} does not serve: {error}\n")
        return 1
    return 0


class NotServingError(Exception):
    """The service does not answer, or says that it does not serve."""


class _Https(http.client.HTTPSConnection):
    """To an address whose certificate may be for another name."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S, context=context)
        self._name = name
        self._secrets = context

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), TIMEOUT_S)
        self.sock = self._secrets.wrap_socket(plain, server_hostname=self._name)


def _ask_http(options: argparse.Namespace) -> None:
    try:
        # Past whatever proxy the environment names: the service is beside this process.
        url = urlsplit(options.target)
        host = url.hostname or ""
        connection = http.client.HTTPConnection(host, url.port, timeout=TIMEOUT_S)
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=options.tls_ca)
            if options.tls_cert is not None:
                context.load_cert_chain(options.tls_cert, options.tls_key)
            connection = _Https(host, url.port, context, options.server_name or host)
        try:
            connection.request("GET", url.path or "/")
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotServingError(str(error) or type(error).__name__) from error
    if status != http.client.OK:
        raise NotServingError(f"it answers {status}")


def _ask_grpc(options: argparse.Namespace) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from outrider.credentials import load_credentials, open_channel
    from outrider.errors import InputError

    try:
        credentials = load_credentials(options.tls_cert, options.tls_key, options.tls_ca)
    except InputError as error:
        raise NotServingError(str(error)) from error
    with open_channel(options.target, credentials, server_name=options.server_name) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise NotServingError(str(error)) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise NotServingError(
            f"it is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
        )


if __name__ == "__main__":
    sys.exit(main())
