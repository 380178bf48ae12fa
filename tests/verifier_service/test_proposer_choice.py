"""Which proposer of a name is connected to, and what happens when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import grpc
import pytest
from speculation.v1 import proposer_pb2, proposer_pb2_grpc

from outrider.names import NameLookupError
from proposer_service.server import RunningServer, start
from proposer_service.settings import ProposerSettings
from tests.fake_names import FakeResolver
from tests.verifier_service.proposer_world import hello, view
from verifier_service.messages import DraftBlock
from verifier_service.proposer_choice import Choice, GrpcLoadProbe, Load, ProposerChoice
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState

NAME = "dns:ngram:1"
PATIENCE_S = 20.0
# Its last two tokens occurred before, so that an n-gram proposer drafts what followed.
IDS = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]


class FakeProbe:
    """Loads that a test writes; who has none does not answer."""

    def __init__(self, **loads: Load) -> None:
        self.loads = loads
        self.asked: list[tuple[list[str], str]] = []

    def ask(self, addresses: Sequence[str], server_name: str) -> Mapping[str, Load]:
        self.asked.append((sorted(addresses), server_name))
        return {a: self.loads[a] for a in addresses if a in self.loads}


def choice(probe: FakeProbe, *addresses: str, verifier: str = "v") -> ProposerChoice:
    return ProposerChoice(FakeResolver(ngram=addresses), probe, verifier)


def test_an_address_is_itself_and_nobody_is_asked() -> None:
    probe = FakeProbe()
    assert choice(probe).choose("unix:/run/p.sock") == Choice("unix:/run/p.sock")
    assert choice(probe).choose("host:50052") == Choice("host:50052")
    assert not probe.asked


def test_a_name_of_one_address_needs_no_question() -> None:
    probe = FakeProbe()
    assert choice(probe, "a").choose(NAME) == Choice("a", "ngram")
    assert not probe.asked


def test_the_one_with_the_fewest_verifiers_then_sequences_is_taken() -> None:
    probe = FakeProbe(a=Load(2, 0), b=Load(1, 9), c=Load(1, 8), d=Load(3, 0))
    assert choice(probe, "a", "b", "c", "d").choose(NAME) == Choice("c", "ngram")
    assert probe.asked == [(["a", "b", "c", "d"], "ngram")]


def test_one_that_does_not_answer_is_not_taken() -> None:
    for verifier in ("v", "w", "x", "y"):
        probe = FakeProbe(b=Load(7, 70))
        assert choice(probe, "a", "b", "c", verifier=verifier).choose(NAME).address == "b"


def test_where_none_answers_one_is_tried() -> None:
    assert choice(FakeProbe(), "a", "b").choose(NAME).address in ("a", "b")


def test_verifiers_that_start_at_once_spread_over_idle_ones() -> None:
    idle = Load(0, 0)
    chosen = [
        choice(FakeProbe(a=idle, b=idle, c=idle), "a", "b", "c", verifier=f"v{number}")
        .choose(NAME)
        .address
        for number in range(60)
    ]
    assert all(chosen.count(address) >= 8 for address in "abc")


def test_an_order_does_not_depend_on_who_else_is_there() -> None:
    idle = Load(0, 0)
    for number in range(20):
        verifier = f"v{number}"
        of_three = choice(FakeProbe(a=idle, b=idle, c=idle), "a", "b", "c", verifier=verifier)
        first = of_three.choose(NAME).address
        if first != "c":
            of_two = choice(FakeProbe(a=idle, b=idle), "a", "b", verifier=verifier)
            assert of_two.choose(NAME).address == first


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(NameLookupError, match=NAME):
        choice(FakeProbe()).choose(NAME)


class Proposers:
    """Real n-gram proposers at sockets, named by letters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, RunningServer] = {}

    def address(self, letter: str) -> str:
        return f"unix:{self._folder}/{letter}.sock"

    async def start(self, letter: str) -> None:
        settings = ProposerSettings(
            listen=self.address(letter),
            method="ngram",
            prompt_lookup_min=2,
            prompt_lookup_max=2,
            drain_seconds=0.0,
        )
        self.running[letter] = await start(settings)

    async def stop(self, letter: str) -> None:
        await self.running.pop(letter).stop()

    async def open_streams(self, letter: str) -> int:
        async with grpc.aio.insecure_channel(self.address(letter)) as channel:
            stub = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
        return int(answer.open_streams)


@pytest.fixture
async def proposers(tmp_path: Path) -> AsyncIterator[Proposers]:
    found = Proposers(tmp_path)
    yield found
    for letter in list(found.running):
        await found.stop(letter)


@pytest.fixture
async def pools() -> AsyncIterator[list[ProposerPool]]:
    made: list[ProposerPool] = []
    yield made
    for pool in made:
        await asyncio.to_thread(pool.close)


def attach(pools: list[ProposerPool], resolver: FakeResolver, verifier: str) -> ProposerPool:
    transport = GrpcTransport(choice=ProposerChoice(resolver, GrpcLoadProbe(), verifier))
    parameters = hello(verifier_instance_id=verifier)
    pools.append(ProposerPool([NAME], parameters, PATIENCE_S, transport=transport))
    return pools[-1]


async def connected(pool: ProposerPool, times: int = 1) -> None:
    """Wait until the pool's only proposer has welcomed it so many times."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (state,) = pool.states()
            if state.state is LinkState.CONNECTED and state.reconnects == times - 1:
                return
            await asyncio.sleep(0.005)


def drafts(pool: ProposerPool) -> dict[int, list[DraftBlock]]:
    pool.send([view(1, IDS, prompt_length=len(IDS))], [])
    return pool.collect()


async def test_verifiers_share_the_proposers_of_a_name(
    proposers: Proposers, pools: list[ProposerPool]
) -> None:
    await proposers.start("a")
    await proposers.start("b")
    resolver = FakeResolver(ngram=(proposers.address("a"), proposers.address("b")))
    for number in range(4):
        await connected(attach(pools, resolver, f"v{number}"))
    assert [await proposers.open_streams(letter) for letter in "ab"] == [2, 2]


async def test_a_verifier_moves_when_its_proposer_goes_and_drafts_go_on(
    proposers: Proposers, pools: list[ProposerPool]
) -> None:
    await proposers.start("a")
    resolver = FakeResolver(ngram=(proposers.address("a"),))
    pool = attach(pools, resolver, "v")
    await connected(pool)
    assert (await asyncio.to_thread(drafts, pool))[1][0].token_ids[:2] == (6, 7)
    await proposers.start("b")
    resolver.set("ngram", proposers.address("a"), proposers.address("b"))
    await proposers.stop("a")
    # The name still has the dead one's address.
    await connected(pool, times=2)
    assert await proposers.open_streams("b") == 1
    assert (await asyncio.to_thread(drafts, pool))[1][0].token_ids[:2] == (6, 7)
    assert pool.states()[0].address == NAME


async def test_an_unknown_name_is_tried_again_until_it_is_known(
    proposers: Proposers, pools: list[ProposerPool]
) -> None:
    await proposers.start("a")
    resolver = FakeResolver(ngram=())
    pool = attach(pools, resolver, "v")
    async with asyncio.timeout(PATIENCE_S):
        while "not known" not in pool.states()[0].detail:
            await asyncio.sleep(0.005)
    assert pool.states()[0].state is LinkState.CONNECTING
    resolver.set("ngram", proposers.address("a"))
    await connected(pool)


async def test_a_probe_tells_streams_of_those_that_answer(
    proposers: Proposers, pools: list[ProposerPool]
) -> None:
    await proposers.start("a")
    await proposers.start("b")
    await connected(attach(pools, FakeResolver(ngram=(proposers.address("b"),)), "v"))
    addresses = [proposers.address(letter) for letter in "abc"]
    loads = await asyncio.to_thread(GrpcLoadProbe(timeout_s=PATIENCE_S).ask, addresses[:2], "ngram")
    assert loads == {addresses[0]: Load(0, 0), addresses[1]: Load(1, 0)}
    assert await asyncio.to_thread(GrpcLoadProbe().ask, addresses[2:], "ngram") == {}
