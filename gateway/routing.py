"""Chooses the verifier for a request: one that serves, is not busy and knows how it begins.

Knows verifiers, their models and which beginnings they were sent; does not know what the requests
ask for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from speculation.v1 import verifier_pb2 as pb

from gateway.affinity import PrefixAffinity, prefix_keys
from gateway.errors import ApiError, unavailable
from gateway.members import Members
from gateway.verifier import GenerateStream, Metadata, Verifier
from outrider.credentials import PLAIN, Credentials
from outrider.names import Resolver, SystemResolver

_T = TypeVar("_T")

# A verifier that could not take a request (dead, or its queue is full) does not fail it while
# another one may take it. Safe because nothing of the answer has been seen.
_TRY_NEXT = (429, 503)

# A prompt goes where its beginning is cached while that verifier has at most twice the requests of
# the least loaded one and two more. Beyond, waiting there would cost more than computing it again.
_BUSIER_FACTOR = 2
_BUSIER_BY = 2


class VerifierPool:
    """All verifiers of a gateway. Must be started and closed on one event loop.

    `targets` are `unix:PATH`, `HOST:PORT`, or `dns:HOST:PORT` for all verifiers behind a name,
    which is looked up every `lookup_interval_s`. A verifier that is away is asked for its state
    every `poll_interval_s` and takes requests again as soon as it answers; when none serves, a
    request waits `connect_timeout_s` for each.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        connect_timeout_s: float,
        poll_interval_s: float,
        lookup_interval_s: float = 2.0,
        resolver: Resolver | None = None,
        credentials: Credentials = PLAIN,
    ) -> None:
        self._members = Members(
            targets,
            resolver=resolver or SystemResolver(),
            credentials=credentials,
            lookup_interval_s=lookup_interval_s,
            poll_interval_s=poll_interval_s,
            connect_timeout_s=connect_timeout_s,
        )
        self._affinity = PrefixAffinity()
        self._turns = itertools.count(1)
        self._last_turn: dict[int, int] = {}
        self._connect_timeout_s = connect_timeout_s

    @property
    def verifiers(self) -> list[Verifier]:
        """All that are known, by index; those that left their name stay while requests run."""
        return self._members.known

    def start(self) -> None:
        """Start watching names and verifiers."""
        self._members.start()

    async def close(self) -> None:
        await self._members.close()

    async def refresh(self) -> list[tuple[Verifier, pb.GetInfoResponse]]:
        """Ask every verifier for its state now; those that answered, with their answers.

        A verifier that is reached at two addresses (a name's IPv4 and IPv6) is in it once, so that
        sums over the answers count nothing twice.
        """
        await self._members.settle()
        verifiers = self.verifiers
        infos = await asyncio.gather(*(v.refresh(self._connect_timeout_s) for v in verifiers))
        answered: dict[str, tuple[Verifier, pb.GetInfoResponse]] = {}
        for verifier, info in zip(verifiers, infos, strict=True):
            if info is not None:
                answered.setdefault(info.instance_id or verifier.address, (verifier, info))
        return list(answered.values())

    async def serving(self) -> list[pb.GetInfoResponse]:
        """Ask every verifier for its state now; the answers of those that serve."""
        return [info for verifier, info in await self.refresh() if not verifier.problem]

    async def generate(
        self,
        request: pb.GenerateRequest,
        timeout_s: float,
        accepted: Callable[[], None],
        metadata: Metadata = (),
    ) -> tuple[GenerateStream, pb.GenerateResponse]:
        """Start a generation; the stream and its first message. Raises ApiError.

        Calls `accepted` as soon as a verifier has taken it; another one may take it over still.
        `metadata` travel with each call for it.
        """

        async def attempt(verifier: Verifier) -> tuple[GenerateStream, pb.GenerateResponse]:
            stream = verifier.generate(request, timeout_s, metadata)
            try:
                if await stream.is_accepted():
                    accepted()
                first = await stream.next()
                if first is None:
                    raise unavailable(f"the verifier at {verifier.address} sent no answer")
                accepted()
            except BaseException:
                stream.close()
                raise
            return stream, first

        return await self._first_that_can(request.model, attempt, prefix_keys(request))

    async def tokenize(
        self, model: str, request: pb.TokenizeRequest, timeout_s: float
    ) -> pb.TokenizeResponse:
        """Raises ApiError."""
        return await self._first_that_can(model, lambda v: v.tokenize(request, timeout_s))

    async def detokenize(
        self, model: str, request: pb.DetokenizeRequest, timeout_s: float
    ) -> pb.DetokenizeResponse:
        """Raises ApiError."""
        return await self._first_that_can(model, lambda v: v.detokenize(request, timeout_s))

    async def resolve(self, model: str | None) -> str:
        """The served name for `model`; None takes the first verifier's. ApiError 404 or 503."""
        names = self._names()
        if not names or (model is not None and model not in names):
            await self.refresh()
            names = self._names()
        if not names:
            raise self.nobody_serves()
        if model is None:
            return names[0]
        if model not in names:
            raise ApiError(
                404,
                f"model: {model!r} is not served here; served: {', '.join(names)}",
                param="model",
            )
        return model

    def nobody_serves(self) -> ApiError:
        """A 503 that says of each verifier what is wrong."""
        reasons = [f"{v.address}: {v.problem or 'serves'}" for v in self._members.staying]
        return unavailable(f"no verifier serves ({'; '.join(reasons + self._members.reasons)})")

    def _names(self) -> list[str]:
        infos = (verifier.info for verifier in self._members.staying)
        return list(dict.fromkeys(info.model for info in infos if info is not None))

    async def _first_that_can(
        self,
        model: str,
        attempt: Callable[[Verifier], Awaitable[_T]],
        keys: Sequence[bytes] = (),
    ) -> _T:
        failure = self.nobody_serves()
        for verifier in self._by_preference(model, keys):
            self._affinity.sent(keys, verifier.address)
            self._last_turn[verifier.index] = next(self._turns)
            try:
                await verifier.connect(self._connect_timeout_s)
                return await attempt(verifier)
            except ApiError as error:
                if error.status not in _TRY_NEXT:
                    raise
                failure = error
        raise failure

    def _by_preference(self, model: str, keys: Sequence[bytes]) -> list[Verifier]:
        """Those with `model`: who serves, who is least loaded, whose turn was longest ago.

        Whoever was sent the prompt's beginning before comes first, unless it is clearly busier.
        """
        staying = self._members.staying
        candidates = [v for v in staying if v.info is not None and v.info.model == model]
        candidates.sort(
            key=lambda v: (bool(v.problem), v.in_flight, self._last_turn.get(v.index, 0), v.index)
        )
        serving = {v.address: v for v in candidates if not v.problem}
        if not serving:
            return candidates
        least = min(v.in_flight for v in serving.values())
        for address in self._affinity.addresses(keys):
            known = serving.get(address)
            if known is not None and known.in_flight <= _BUSIER_FACTOR * least + _BUSIER_BY:
                return [known, *(v for v in candidates if v is not known)]
        return candidates
