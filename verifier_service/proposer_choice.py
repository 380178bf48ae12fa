"""Which of the proposers behind a name a verifier connects to: one that lives and has little to do.

Knows addresses and what proposers say of their load; knows no stream. It is asked anew for each
connection, so that a verifier whose proposer went moves to another one by reconnecting.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
from speculation.v1 import proposer_pb2

from outrider.addresses import is_name, split_name
from outrider.credentials import PLAIN, Credentials, open_channel
from outrider.names import Resolver, SystemResolver

METHOD = "/speculation.v1.ProposerService/GetCapabilities"
# One that takes longer to say how busy it is would miss every draft deadline too.
LOAD_TIMEOUT_S = 0.5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """How much a proposer has to do: verifiers attached, and their open sequences."""

    streams: int
    sequences: int


class LoadProbe(Protocol):
    """Asks proposers for their load."""

    def ask(self, addresses: Sequence[str], server_name: str) -> Mapping[str, Load]:
        """The load of each that answered in time. Blocks."""


class GrpcLoadProbe:
    """Asks over gRPC, all at once."""

    def __init__(self, credentials: Credentials = PLAIN, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        self._credentials = credentials
        self._timeout_s = timeout_s

    def ask(self, addresses: Sequence[str], server_name: str) -> Mapping[str, Load]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            open_channel(address, self._credentials, options, server_name) for address in addresses
        ]
        try:
            request = proposer_pb2.GetCapabilitiesRequest()
            calls = [
                channel.unary_unary(
                    METHOD,
                    request_serializer=proposer_pb2.GetCapabilitiesRequest.SerializeToString,
                    response_deserializer=proposer_pb2.GetCapabilitiesResponse.FromString,
                ).future(request, timeout=self._timeout_s)
                for channel in channels
            ]
            loads: dict[str, Load] = {}
            for address, call in zip(addresses, calls, strict=True):
                try:
                    answer = call.result()
                except grpc.RpcError as error:
                    _logger.debug("proposer %s does not tell its load: %s", address, error)
                    continue
                loads[address] = Load(answer.open_streams, answer.open_sequences)
            return loads
        finally:
            for channel in channels:
                channel.close()


@dataclass(frozen=True, slots=True)
class Choice:
    """Where to connect; `server_name` is what a certificate there is for, where it is known."""

    address: str
    server_name: str | None = None


class ProposerChoice:
    """Turns a target (`unix:PATH`, `HOST:PORT`, `dns:HOST:PORT`) into one address, at each call.

    Of a name's addresses it is the one with the fewest verifiers, then the fewest open sequences.
    Among equals each verifier has an order of its own, so that verifiers which start at once do
    not all go the same way.
    """

    def __init__(
        self,
        resolver: Resolver | None = None,
        probe: LoadProbe | None = None,
        verifier: str | None = None,
    ) -> None:
        self._resolver = resolver or SystemResolver()
        self._probe = probe or GrpcLoadProbe()
        self._verifier = verifier or uuid.uuid4().hex
        # Only for the log, which a proposer that is tried again and again must not fill.
        self._chosen: dict[str, str] = {}

    def choose(self, target: str) -> Choice:
        """Blocks for lookups and for proposers that do not answer. Raises NameLookupError."""
        if not is_name(target):
            return Choice(target)
        server_name = split_name(target)[0]
        addresses = sorted(self._resolver.resolve(target), key=self._order)
        if len(addresses) == 1:
            return Choice(addresses[0], server_name)
        loads = self._probe.ask(addresses, server_name)
        # Nobody answered: the first one's connection will say why.
        chosen = min(loads, key=lambda a: (loads[a], addresses.index(a)), default=addresses[0])
        if self._chosen.get(target) != chosen:
            self._chosen[target] = chosen
            _logger.info("%s: %s of %d proposers", target, chosen, len(addresses))
        return Choice(chosen, server_name)

    def _order(self, address: str) -> bytes:
        """Rendezvous hashing: an order of this verifier's own, whichever addresses there are."""
        return hashlib.blake2b(f"{self._verifier} {address}".encode(), digest_size=8).digest()
