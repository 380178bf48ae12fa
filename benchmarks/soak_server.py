"""The server under a soak as seen from outside: its facts, and what it holds on to.

Knows GetInfo, a proposer's GetCapabilities, the gateway's metrics and the processes; judges only
whether something is still held.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import httpx
from speculation.v1 import proposer_pb2, proposer_pb2_grpc, verifier_pb2_grpc
from speculation.v1 import verifier_pb2 as pb

from benchmarks.outrider_system import ServerFailed
from benchmarks.soak_draw import Facts
from benchmarks.soak_leaks import TOLERANCES, AtEnd
from benchmarks.soak_watch import Service, Watch

SETTLE_SECONDS = 60.0
_CALL_SECONDS = 30.0
# More than the verifier has words for; figures among them would make one of every round.
_MOST_REASONS = 32
_IN_FLIGHT = "outrider:http_requests_in_flight "


class SoakedServer:
    """`outrider serve` with process id `serve_pid` at `url`."""

    def __init__(self, url: str, serve_pid: int) -> None:
        self.url = url
        self.watch = Watch(serve_pid)
        self.verifier = self.service("verifier").listen

    def service(self, name: str) -> Service:
        """Raises ServerFailed where no such process runs now."""
        for service in self.watch.services():
            if service.name == name:
                return service
        raise ServerFailed(f"outrider serve has no process {name} now")

    def proposers(self) -> list[Service]:
        """Those whose process runs now."""
        return [service for service in self.watch.services() if service.role == "proposer"]

    def names(self) -> list[str]:
        """Of all processes."""
        return ["serve", *sorted(service.name for service in self.watch.services())]

    def descriptors(self) -> dict[str, float]:
        """Open file descriptors of each process."""
        pids = {service.name: service.pid for service in self.watch.services()}
        found = {}
        for name, pid in {"serve": self.watch.serve_pid, **pids}.items():
            measured = self.watch.measure(pid)
            if measured is None:
                raise ServerFailed(f"{name} has ended")
            found[name] = measured["fds"]
        return found

    async def info(self) -> pb.GetInfoResponse:
        async with grpc.aio.insecure_channel(self.verifier) as channel:
            stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            info: pb.GetInfoResponse = await stub.GetInfo(
                pb.GetInfoRequest(), timeout=_CALL_SECONDS
            )
            return info

    async def facts(self) -> Facts:
        """Once all proposers have said their names. Raises ServerFailed where one does not."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            info = await self.info()
            names = tuple(sorted(state.name for state in info.proposers))
            if names and all(names):
                break
            if time.monotonic() > deadline:
                raise ServerFailed("a proposer did not connect to the verifier")
            await asyncio.sleep(0.1)
        return Facts(
            model=info.model,
            vocab_size=info.vocabulary_size,
            max_model_len=info.max_model_len,
            num_speculative_tokens=info.num_speculative_tokens,
            proposers=names,
        )

    async def settled(self) -> list[AtEnd]:
        """What is held once nothing is asked for any more; waits SETTLE_SECONDS at most."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            held = await self._held()
            if all(one.passed for one in held) or time.monotonic() > deadline:
                return held
            await asyncio.sleep(0.2)

    async def totals(self) -> dict[str, int]:
        """Sums since the verifier's start; empty where it does not answer."""
        try:
            info = await self.info()
        except grpc.aio.AioRpcError:
            return {}
        return {
            "prompt tokens": info.prompt_tokens_total,
            "generated tokens": info.generation_tokens_total,
            "verification steps with drafts": info.acceptance.num_spec_steps,
            "draft tokens verified": info.acceptance.num_draft_tokens,
            "draft tokens accepted": info.acceptance.num_accepted_draft_tokens,
            "requests aborted": info.finished_requests.get("abort", 0),
            "prompt tokens from the cache": info.prefix_cache_hits_total,
            "preemptions": info.preemptions_total,
            "KV blocks": info.kv_blocks_total,
        }

    async def off_reasons(self) -> dict[str, int]:
        """Rounds without drafts by the reason; empty where the verifier does not answer."""
        try:
            return dict((await self.info()).off_rounds)
        except grpc.aio.AioRpcError:
            return {}

    def lost(self, idle: dict[str, float]) -> list[AtEnd]:
        """Descriptors beyond those of the `idle` server, and processes that had to be replaced."""
        now = self.descriptors()
        descriptors = [
            AtEnd(f"descriptors of {name}", now[name], TOLERANCES["fds"].above(before))
            for name, before in idle.items()
            if name in now
        ]
        restarts = [
            AtEnd(f"restarts of {name}", max(len(self.watch.pids[name]) - 1, 0), 0)
            for name in ("serve", "gateway", "verifier")
        ]
        return [*descriptors, *restarts]

    async def _held(self) -> list[AtEnd]:
        try:
            info = await self.info()
            in_flight = await self._in_flight()
        except (grpc.aio.AioRpcError, httpx.HTTPError):
            return [AtEnd("verifier or gateway that does not answer", 1, 0)]
        alive = self.proposers()
        connected = sum(state.state in ("connected", "slow") for state in info.proposers)
        held = [
            AtEnd("running requests", info.running_requests, 0),
            AtEnd("waiting requests", info.waiting_requests, 0),
            # Cached blocks count as free: they are given to whoever needs them.
            AtEnd("KV blocks not free", info.kv_blocks_total - info.kv_blocks_free, 0),
            AtEnd("HTTP requests in flight", in_flight, 0),
            AtEnd("reasons counted by GetInfo", len(info.off_rounds), _MOST_REASONS),
            AtEnd("proposers away", len(info.proposers) - min(connected, len(alive)), 0),
        ]
        for proposer in alive:
            streams, sequences = await _open_counts(proposer)
            held.append(AtEnd(f"streams open at {proposer.name}", streams, 1))
            held.append(AtEnd(f"sequences open at {proposer.name}", sequences, 0))
        return held

    async def _in_flight(self) -> float:
        async with httpx.AsyncClient(trust_env=False, timeout=_CALL_SECONDS) as client:
            text = (await client.get(f"{self.url}/metrics")).text
        (line,) = [line for line in text.splitlines() if line.startswith(_IN_FLIGHT)]
        return float(line.removeprefix(_IN_FLIGHT))


async def _open_counts(proposer: Service) -> tuple[float, float]:
    """Streams and sequences open at a proposer; infinitely many where it does not answer now."""
    async with grpc.aio.insecure_channel(proposer.listen) as channel:
        stub: Any = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.GetCapabilities(
                proposer_pb2.GetCapabilitiesRequest(), timeout=_CALL_SECONDS
            )
        except grpc.aio.AioRpcError:
            return float("inf"), float("inf")
    return answer.open_streams, answer.open_sequences
