"""The pool over real gRPC: Unix sockets and TCP, restarts, threads that end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import hello, view
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState

PATIENCE_S = 20.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what background threads bring about."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "did not happen"
        time.sleep(0.005)


class Server:
    """A scripted proposer behind a gRPC port, in this process."""

    def __init__(self, address: str, make: Callable[[], ScriptedProposer]) -> None:
        self._make = make
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(self._propose)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "speculation.v1.ProposerService", {"Propose": handler}
                ),
            )
        )
        self.port = self._server.add_insecure_port(address)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

    def _propose(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        answers: list[bytes] = []
        proposer = self._make()(answers.append, lambda code, detail: None)
        for request in requests:
            proposer.received(request)
            yield from answers
            answers.clear()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/p.sock"


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_server(
        address: str, make: Callable[[], ScriptedProposer] = ScriptedProposer
    ) -> Server:
        servers.append(Server(address, make))
        return servers[-1]

    yield start_server
    for server in servers:
        server.stop()


@pytest.fixture
def attach() -> Iterator[Callable[..., ProposerPool]]:
    pools: list[ProposerPool] = []

    def make_pool(*addresses: str, parameters: HelloParameters | None = None) -> ProposerPool:
        # So long a deadline that a busy machine never misses it.
        pools.append(ProposerPool(addresses, parameters or hello(), PATIENCE_S))
        return pools[-1]

    yield make_pool
    for pool in pools:
        pool.close()


def connected(pool: ProposerPool) -> bool:
    return all(state.state is LinkState.CONNECTED for state in pool.states())


def test_drafts_travel_over_a_unix_socket(
    address: str, start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    start(address)
    pool = attach(address)
    eventually(lambda: connected(pool))
    ids = [1, 2]
    for _ in range(20):
        pool.send([view(1, ids)], [])
        (block,) = pool.collect()[1]
        assert block.token_ids[0] == ids[-1] + 1
        ids.append(ids[-1] + 1)


def test_drafts_travel_over_tcp(
    start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    server = start("127.0.0.1:0")
    pool = attach(f"127.0.0.1:{server.port}")
    eventually(lambda: connected(pool))
    pool.send([view(1, [1, 2])], [])
    assert pool.collect()[1][0].token_ids == (3, 4, 5, 6)


def test_a_long_prompt_travels_whole(
    address: str, start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    start(address)
    pool = attach(address, parameters=hello(context_limit=60_000, vocabulary_size=100_000))
    eventually(lambda: connected(pool))
    pool.send([view(1, list(range(50_000)))], [])
    assert pool.collect()[1][0].token_ids == (50_000, 50_001, 50_002, 50_003)


def test_drafts_resume_when_a_socket_is_made_anew(
    address: str, start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    first = start(address)
    pool = attach(address)
    eventually(lambda: connected(pool))
    pool.send([view(1, [1, 2])], [])
    assert pool.collect()
    first.stop()
    eventually(lambda: not connected(pool))
    pool.send([view(1, [1, 2, 3])], [])
    assert pool.collect() == {}
    start(address)
    eventually(lambda: connected(pool))
    pool.send([view(1, [1, 2, 3, 4])], [])
    assert pool.collect()[1][0].token_ids == (5, 6, 7, 8)
    assert pool.states()[0].reconnects == 1


def test_a_stop_during_the_wait_ends_it_before_the_deadline(
    address: str, start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    asked = threading.Event()

    def never(ids: object, k: int) -> list[int]:
        asked.set()
        time.sleep(0.2)
        return []

    server = start(address, lambda: ScriptedProposer(draft=never, spoil=lambda response: ()))
    pool = attach(address)
    eventually(lambda: connected(pool))
    pool.send([view(1, [1, 2])], [])
    stopper = threading.Thread(target=lambda: (asked.wait(PATIENCE_S), server.stop()))
    stopper.start()
    start_of_wait = time.monotonic()
    assert pool.collect() == {}
    assert time.monotonic() - start_of_wait < PATIENCE_S / 2
    assert not connected(pool)
    stopper.join()


def test_a_service_that_is_no_proposer_is_refused(
    address: str, attach: Callable[..., ProposerPool]
) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port(address)
    server.start()
    pool = attach(address)
    eventually(lambda: pool.states()[0].state is LinkState.REFUSED)
    assert "UNIMPLEMENTED" in pool.states()[0].detail
    server.stop(0).wait()


def test_another_vocabulary_is_refused_over_the_wire(
    address: str, start: Callable[..., Server], attach: Callable[..., ProposerPool]
) -> None:
    welcome = capabilities()
    welcome.vocabulary_fingerprint = "beef"
    start(address, lambda: ScriptedProposer(welcome=welcome))
    pool = attach(address)
    eventually(lambda: pool.states()[0].state is LinkState.REFUSED)
    assert "vocabulary beef" in pool.states()[0].detail


def threads_of_the_pool() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("propose ", "proposer-"))]


def test_close_ends_every_thread(address: str, start: Callable[..., Server]) -> None:
    start(address)
    pool = ProposerPool([address, "unix:/nonexistent/p.sock"], hello(), 0.1)
    eventually(lambda: pool.states()[0].state is LinkState.CONNECTED)
    assert threads_of_the_pool()
    pool.close()
    assert threads_of_the_pool() == []


def test_close_at_once_ends_every_thread(address: str) -> None:
    for _ in range(5):
        ProposerPool([address], hello(), 0.1).close()
    assert threads_of_the_pool() == []


def test_a_failing_listener_is_told_and_its_stream_ends(
    address: str, start: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    start(address)
    transport = GrpcTransport()
    ended = threading.Event()
    told: list[tuple[str, str]] = []

    class Failing:
        def received(self, data: bytes) -> None:
            raise RuntimeError("a fault of ours")

        def closed(self, code: str, detail: str) -> None:
            told.append((code, detail))
            ended.set()

    stream = transport.connect(address, Failing())
    stream.send(hello().to_proto().SerializeToString())
    assert ended.wait(PATIENCE_S)
    assert told == [("INTERNAL", "RuntimeError('a fault of ours')")]
    assert "a fault of ours" in caplog.text
    transport.close(PATIENCE_S)
