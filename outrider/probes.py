"""Is a service ready? One short question, answered yes or no.

Knows the gRPC health protocol and HTTP; an unreachable service is simply not ready.
"""

from __future__ import annotations

import socket

import grpc

from outrider.credentials import open_channel

PROBE_TIMEOUT_S = 0.5


def grpc_is_serving(address: str) -> bool:
    """Whether the gRPC server at `address` reports SERVING for itself as a whole."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_is_healthy(url: str) -> bool:
    """Whether a GET of `url` answers 200.

    The certificate of an https URL is not checked: it names the host that clients use, and nothing
    that is asked or answered here is worth hiding from this machine.
    """
    import httpx

    try:
        answer = httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False, verify=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


def port_is_open(host: str, port: int) -> bool:
    """Whether something takes connections there: all that can be seen without a certificate."""
    try:
        socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True
