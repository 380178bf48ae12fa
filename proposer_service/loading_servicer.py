"""The proposer's RPCs while its model loads: nobody is served yet, and everybody told so.

Knows what is served afterwards; does not know what is loaded. A verifier that hears UNAVAILABLE
decodes plainly and comes back.
"""

from __future__ import annotations

from typing import Any

import grpc
from speculation.v1 import proposer_pb2, proposer_pb2_grpc

from proposer_service.servicer import ProposerServicer
from proposer_service.streams import Context

LOADING = "the draft model is loading"


class LoadingServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Passes every call on to a servicer once there is one."""

    def __init__(self) -> None:
        self._servicer: ProposerServicer | None = None

    def attach(self, servicer: ProposerServicer) -> None:
        """Serve by `servicer` from now on."""
        self._servicer = servicer

    def add_to(self, server: grpc.aio.Server) -> None:
        """Make the server answer with these RPCs."""
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def drain(self) -> None:
        """See `ProposerServicer.drain`."""
        if self._servicer is not None:
            self._servicer.drain()

    async def GetCapabilities(
        self, request: proposer_pb2.GetCapabilitiesRequest, context: Any
    ) -> proposer_pb2.GetCapabilitiesResponse:
        if self._servicer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, LOADING)
            raise AssertionError("abort raises")
        return await self._servicer.GetCapabilities(request, context)

    async def Propose(self, request_iterator: Any, context: Context) -> None:
        if self._servicer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, LOADING)
            raise AssertionError("abort raises")
        await self._servicer.Propose(request_iterator, context)
