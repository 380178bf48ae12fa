"""Chooses the verifier for a request: the one with the fewest requests in flight that serves.

Knows verifiers and their models; does not know what the requests ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from speculation.v1 import verifier_pb2 as pb

from gateway.errors import ApiError, unavailable
from gateway.verifier import GenerateStream, Verifier
from outrider.credentials import PLAIN, Credentials

_T = TypeVar("_T")

# A verifier that could not take a request (dead, or its queue is full) does not fail it while
# another one may take it. Safe because nothing of the answer has been seen.
_TRY_NEXT = (429, 503)


class VerifierPool:
    """All verifiers of a gateway. Must be started and closed on one event loop.

    A verifier that is away is asked for its state every `poll_interval_s` and takes requests again
    as soon as it answers; when none serves, a request waits `connect_timeout_s` for each.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        connect_timeout_s: float,
        poll_interval_s: float,
        credentials: Credentials = PLAIN,
    ) -> None:
        self.verifiers = [
            Verifier(index, address, credentials) for index, address in enumerate(addresses)
        ]
        self._connect_timeout_s = connect_timeout_s
        self._poll_interval_s = poll_interval_s
        self._monitors: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start watching the verifiers."""
        self._monitors = [asyncio.create_task(self._watch(v)) for v in self.verifiers]

    async def close(self) -> None:
        for monitor in self._monitors:
            monitor.cancel()
        await asyncio.gather(*self._monitors, return_exceptions=True)
        for verifier in self.verifiers:
            await verifier.close()

    async def refresh(self) -> list[tuple[Verifier, pb.GetInfoResponse]]:
        """Ask every verifier for its state now; those that answered, with their answers."""
        infos = await asyncio.gather(*(v.refresh(self._connect_timeout_s) for v in self.verifiers))
        return [(v, i) for v, i in zip(self.verifiers, infos, strict=True) if i is not None]

    async def serving(self) -> list[pb.GetInfoResponse]:
        """Ask every verifier for its state now; the answers of those that serve."""
        return [info for verifier, info in await self.refresh() if not verifier.problem]

    async def generate(
        self, request: pb.GenerateRequest, timeout_s: float, accepted: Callable[[], None]
    ) -> tuple[GenerateStream, pb.GenerateResponse]:
        """Start a generation; the stream and its first message. Raises ApiError.

        Calls `accepted` as soon as a verifier has taken it; another one may take it over still.
        """

        async def attempt(verifier: Verifier) -> tuple[GenerateStream, pb.GenerateResponse]:
            stream = verifier.generate(request, timeout_s)
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

        return await self._first_that_can(request.model, attempt)

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
        reasons = "; ".join(f"{v.address}: {v.problem or 'serves'}" for v in self.verifiers)
        return unavailable(f"no verifier serves ({reasons})")

    def _names(self) -> list[str]:
        return list(dict.fromkeys(v.info.model for v in self.verifiers if v.info is not None))

    async def _first_that_can(self, model: str, attempt: Callable[[Verifier], Awaitable[_T]]) -> _T:
        candidates = [v for v in self.verifiers if v.info is not None and v.info.model == model]
        candidates.sort(key=lambda v: (bool(v.problem), v.in_flight, v.index))
        failure = self.nobody_serves()
        for verifier in candidates:
            try:
                await verifier.connect(self._connect_timeout_s)
                return await attempt(verifier)
            except ApiError as error:
                if error.status not in _TRY_NEXT:
                    raise
                failure = error
        raise failure

    async def _watch(self, verifier: Verifier) -> None:
        while True:
            await verifier.refresh(max(self._poll_interval_s, self._connect_timeout_s))
            await asyncio.sleep(self._poll_interval_s)
