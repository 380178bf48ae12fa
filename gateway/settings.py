"""The gateway's options, already parsed by the command line; plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gateway.connections import DEFAULT_LIMITS, ConnectionLimits
from gateway.evidence.settings import NO_FILE, EvidenceSettings
from gateway.keys import ApiKey, KeyRing
from gateway.tools.parsers import Notation
from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError
from outrider.https import Https
from outrider.trace_settings import UNTRACED, TraceSettings


class SpecDecodeMetrics(Enum):
    """How much of a request's acceptance its response shows (`metrics.speculative_decoding`)."""

    NONE = "none"
    SUMMARY = "summary"
    DETAILED = "detailed"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Options of one gateway process.

    `verifiers` are gRPC addresses (`unix:PATH`, `HOST:PORT`, or `dns:HOST:PORT` for all addresses
    of a name, looked up every `lookup_interval_s`); gateway/routing.py tells which one a request
    goes to. `port` 0 takes a free one. `max_body_bytes` is the largest request body;
    `body_timeout_s` is how long a client may take to send it. `request_timeout_s` is the
    longest a generation may run. `connect_timeout_s` is how long a request waits for a verifier
    that is not connected before the next one is tried, `poll_interval_s` how often each is asked
    for its state. `max_choices` bounds prompts x n of one request.
    `tool_call_parser` is how the model writes tool calls. `drain_timeout_s` is how long
    running requests may go on after a stop was asked for.

    `credentials` are shown to verifiers; `https` is the port's own TLS, None plain HTTP. Without
    `api_keys` every request is let in. `cache_salt_secret` keeps keys' tenants apart in the same
    way at all gateways that have it, None for this process alone; `share_cache_across_keys` does
    not keep them apart. `connections` are limits of each connection. `trace` is what is
    told of requests, and where. `evidence` is what is received of it, and where it is kept.

    Raises InputError naming the option, its value and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    verifiers: tuple[str, ...] = ()
    per_request_spec_decode_metrics: SpecDecodeMetrics = SpecDecodeMetrics.SUMMARY
    force_include_usage: bool = False
    max_body_bytes: int = 10 * 1024 * 1024
    body_timeout_s: float = 60.0
    request_timeout_s: float = 1800.0
    connect_timeout_s: float = 1.0
    poll_interval_s: float = 1.0
    lookup_interval_s: float = 2.0
    drain_timeout_s: float = 10.0
    max_choices: int = 256
    tool_call_parser: Notation = Notation.HERMES
    log_level: str = "info"
    credentials: Credentials = PLAIN
    https: Https | None = None
    api_keys: tuple[ApiKey, ...] = ()
    cache_salt_secret: bytes | None = field(default=None, repr=False)
    share_cache_across_keys: bool = False
    connections: ConnectionLimits = DEFAULT_LIMITS
    trace: TraceSettings = UNTRACED
    evidence: EvidenceSettings = NO_FILE

    def __post_init__(self) -> None:
        if not self.verifiers:
            raise InputError("verifiers: the gateway needs at least one verifier address")
        KeyRing(self.api_keys)
        if not 0 <= self.port <= 65535:
            raise InputError(f"port: {self.port} is not in 0..65535")
        for option in (
            "max_body_bytes",
            "body_timeout_s",
            "request_timeout_s",
            "connect_timeout_s",
            "poll_interval_s",
            "lookup_interval_s",
            "max_choices",
        ):
            if not getattr(self, option) > 0:
                raise InputError(f"{option}: {getattr(self, option)} must be above 0")
        if self.drain_timeout_s < 0:
            raise InputError(f"drain_timeout_s: {self.drain_timeout_s} must be 0 or above")
