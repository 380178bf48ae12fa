"""Asks one service whether it serves and exits with 0 or 1: what containers' health checks run.

Knows the gRPC health protocol and HTTP. It is run every few seconds beside the service, so that it
imports no more than its one question needs.

    python -m outrider.health http://127.0.0.1:8000/health
    python -m outrider.health 127.0.0.1:50051
"""

from __future__ import annotations

import argparse
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 where the service serves. What is wrong goes to standard error."""
    parser = argparse.ArgumentParser(prog="outrider.health")
    parser.add_argument("target", help="an http(s) URL, HOST:PORT or unix:PATH of a gRPC service")
    parser.add_argument("--tls-ca", type=Path, help="what the service's certificate leads to")
    parser.add_argument("--tls-cert", type=Path, help="shown to services that ask for one")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--server-name", help="whom a gRPC service's certificate is for")
    options = parser.parse_args(arguments)
    try:
        if options.target.startswith(("http://", "https://")):
            _ask_http(options.target, options.tls_ca, options.tls_cert, options.tls_key)
        else:
            _ask_grpc(options)
    except NotServingError as error:
        sys.stderr.write(f"{options.target} does not serve: {error}\n")
        return 1
    return 0


class NotServingError(Exception):
    """The service does not answer, or says that it does not serve."""


def _ask_http(
    url: str, authorities: Path | None, certificate: Path | None, key: Path | None
) -> None:
    # The service is beside this process, whatever proxy the environment names.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=authorities)
            if certificate is not None:
                context.load_cert_chain(certificate, key)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_S):
            return
    except OSError as error:
        raise NotServingError(str(error)) from error


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
