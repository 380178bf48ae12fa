"""Is a service ready? One short question, answered yes or no.

Knows the gRPC health protocol and HTTP; an unreachable service is simply not ready.
"""

from __future__ import annotations

import grpc

PROBE_TIMEOUT_S = 0.5


def grpc_is_serving(address: str) -> bool:
    """Whether the gRPC server at `address` reports SERVING for itself as a whole."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_is_healthy(url: str) -> bool:
    """Whether a GET of `url` answers 200."""
    import httpx

    try:
        return httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
