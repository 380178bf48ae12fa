"""What a running verifier says of itself: what a step costs, who drafts for it, its vocabulary.

Knows GetInfo, and how to find the verifier behind a gateway; knows no traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.addresses import parse_address
from outrider.credentials import PLAIN, Credentials, is_loopback, open_channel
from outrider.errors import InputError, OperationError

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """One verifier at one moment. `step_cost_ms` is by query tokens; it follows the load of late.

    `proposers` are the addresses it dials.
    """

    address: str
    model: str
    step_cost_ms: dict[int, float]
    proposers: tuple[str, ...]
    vocabulary_fingerprint: str
    vocabulary_size: int
    context_limit: int
    eos_token_ids: tuple[int, ...]


def is_http(url: str) -> bool:
    """Whether --url names an HTTP server rather than a verifier's gRPC address."""
    return url.startswith(("http://", "https://"))


def base_url(url: str) -> str:
    """The server's root, however much of the API's path was given with it."""
    return url.rstrip("/").removesuffix("/v1")


def may_be_proxied(url: str) -> bool:
    """Whether the environment's web proxy is asked for it: never for this machine's own servers.

    Raises InputError for what is no URL.
    """
    import httpx

    try:
        return not is_loopback(httpx.URL(url).host)
    except httpx.InvalidURL as error:
        raise InputError(f"--url: {url!r} is not a URL: {error}") from error


def speaks_outrider(url: str, api_key: str | None = None) -> bool:
    """Whether the HTTP server tells which verifiers are behind it. Raises OperationError."""
    return _verifiers(base_url(url), api_key) is not None


def ask_verifier(
    url: str, api_key: str | None = None, credentials: Credentials = PLAIN
) -> VerifierFacts:
    """Ask the verifier at a gRPC address, or the first that serves behind a gateway's URL.

    `api_key` is shown to the gateway, `credentials` to the verifier. Raises InputError for a
    malformed address, OperationError where nobody answers.
    """
    import grpc
    from speculation.v1 import verifier_pb2, verifier_pb2_grpc

    if is_http(url):
        address = _behind_gateway(base_url(url), api_key)
    else:
        address = parse_address(url, "--url")
    with open_channel(address, credentials) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            info = stub.GetInfo(verifier_pb2.GetInfoRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise OperationError(
                f"--url: the verifier at {address} does not answer: {error.code().name.lower()}: "
                f"{error.details()}; give --step-cost, or its own address as --url"
            ) from error
    return VerifierFacts(
        address=address,
        model=info.model,
        step_cost_ms=dict(info.step_cost_ms),
        # Those inside the verifier's own process have no address.
        proposers=tuple(proposer.address for proposer in info.proposers if proposer.address),
        vocabulary_fingerprint=info.vocabulary_fingerprint,
        vocabulary_size=info.vocabulary_size,
        context_limit=info.max_model_len,
        eos_token_ids=tuple(info.eos_token_ids),
    )


def _behind_gateway(base: str, api_key: str | None) -> str:
    verifiers = _verifiers(base, api_key)
    if verifiers is None:
        raise InputError(
            f"--url: {base} is no gateway of Outrider's, so it tells no proposers; give --proposer"
        )
    if not verifiers:
        raise OperationError(f"--url: no verifier serves behind {base}")
    return verifiers[0]


def _verifiers(base: str, api_key: str | None) -> list[str] | None:
    """Addresses of those that serve behind a gateway; None where the server is none."""
    import httpx

    try:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        answer = httpx.get(
            f"{base}/health",
            timeout=_TIMEOUT_S,
            headers=headers,
            trust_env=may_be_proxied(base),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OperationError(f"--url: {base} does not answer: {error}") from error
    if answer.status_code >= 500:
        raise OperationError(f"--url: {base}/health answers {answer.status_code}")
    try:
        content = answer.json()
    except ValueError:
        return None
    listed = content.get("verifiers") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        return None
    return [str(verifier["address"]) for verifier in listed if verifier["serves"]]
