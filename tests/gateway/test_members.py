"""Verifiers that come and go behind a name, with requests spread over them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.errors import ApiError
from gateway.metrics import GatewayMetrics
from gateway.routing import VerifierPool
from gateway.verifier import GenerateStream
from tests.fake_names import FakeResolver
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

NAME = "dns:verifier:1"
LONG = "x" * 1000

StartPool = Callable[..., Awaitable[VerifierPool]]


@pytest.fixture
async def fakes(socket_dir: Path) -> AsyncIterator[list[FakeVerifier]]:
    found = [FakeVerifier(f"unix:{socket_dir}/{letter}.sock") for letter in "abc"]
    for fake in found:
        await fake.start()
    yield found
    for fake in found:
        await fake.stop()


@pytest.fixture
def resolver(fakes: list[FakeVerifier]) -> FakeResolver:
    return FakeResolver(verifier=tuple(fake.address for fake in fakes[:2]))


@pytest.fixture
async def start_pool(resolver: FakeResolver) -> AsyncIterator[StartPool]:
    pools: list[VerifierPool] = []

    async def start(*targets: str, **options: Any) -> VerifierPool:
        pool = VerifierPool(
            targets or (NAME,),
            **{
                "connect_timeout_s": 5.0,
                "poll_interval_s": 0.02,
                "lookup_interval_s": 0.01,
                "resolver": resolver,
                **options,
            },
        )
        pool.start()
        pools.append(pool)
        return pool

    yield start
    for pool in pools:
        await pool.close()


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.005)


async def ask(pool: VerifierPool, prompt: str = "x") -> GenerateStream:
    """A generation that has begun; it is in flight until it is closed."""
    model = await pool.resolve(MODEL)
    request = pb.GenerateRequest(model=model, text=prompt)
    stream, _ = await pool.generate(request, 20.0, lambda: None)
    return stream


async def answered_by(pool: VerifierPool, prompt: str = "x") -> str:
    stream = await ask(pool, prompt)
    stream.close()
    return stream.verifier.address


def addresses(pool: VerifierPool) -> list[str]:
    return [verifier.address for verifier in pool.verifiers]


async def test_a_name_stands_for_all_its_verifiers(
    fakes: list[FakeVerifier], start_pool: StartPool
) -> None:
    pool = await start_pool()
    answered = await pool.refresh()
    assert [v.address for v, _ in answered] == [fake.address for fake in fakes[:2]]
    assert {await answered_by(pool) for _ in range(4)} == set(addresses(pool))


async def test_requests_take_turns_where_all_are_idle(start_pool: StartPool) -> None:
    pool = await start_pool()
    await pool.refresh()
    taken = [await answered_by(pool) for _ in range(6)]
    assert taken == taken[:2] * 3
    assert taken[0] != taken[1]


async def test_one_that_comes_gets_requests_without_a_restart(
    fakes: list[FakeVerifier], resolver: FakeResolver, start_pool: StartPool
) -> None:
    pool = await start_pool()
    await pool.refresh()
    resolver.set("verifier", *(fake.address for fake in fakes))
    await eventually(lambda: len(pool.verifiers) == 3 and not pool.verifiers[2].problem)
    assert {await answered_by(pool) for _ in range(3)} == {fake.address for fake in fakes}


async def test_one_that_leaves_finishes_what_it_runs_and_gets_nothing_new(
    fakes: list[FakeVerifier], resolver: FakeResolver, start_pool: StartPool
) -> None:
    for fake in fakes:
        fake.script = lambda request: Answer(hang_after=1)
    pool = await start_pool()
    await pool.refresh()
    running = await ask(pool)
    left = running.verifier.address
    (stays,) = {fake.address for fake in fakes[:2]} - {left}
    resolver.set("verifier", stays)
    before = resolver.lookups
    await eventually(lambda: resolver.lookups > before + 2)
    assert {await answered_by(pool) for _ in range(3)} == {stays}
    assert left in addresses(pool)
    assert await running.next() is not None
    running.close()
    await eventually(lambda: addresses(pool) == [stays])


async def test_one_that_comes_back_while_it_finishes_is_the_same(
    fakes: list[FakeVerifier], resolver: FakeResolver, start_pool: StartPool
) -> None:
    for fake in fakes:
        fake.script = lambda request: Answer(hang_after=1)
    pool = await start_pool()
    await pool.refresh()
    running = await ask(pool)
    resolver.set("verifier", fakes[2].address)
    await eventually(lambda: len(pool.verifiers) == 2)
    resolver.set("verifier", running.verifier.address, fakes[2].address)
    before = resolver.lookups
    await eventually(lambda: resolver.lookups > before + 2)
    assert running.verifier in pool.verifiers
    running.close()
    await eventually(lambda: running.verifier.in_flight == 0)
    assert running.verifier.address in {await answered_by(pool) for _ in range(4)}


async def test_an_address_keeps_its_engine_label_and_no_other_gets_it(
    fakes: list[FakeVerifier], resolver: FakeResolver, start_pool: StartPool
) -> None:
    pool = await start_pool()
    await pool.refresh()
    indices = {verifier.address: verifier.index for verifier in pool.verifiers}
    first = fakes[0].address
    resolver.set("verifier", fakes[1].address, fakes[2].address)
    await eventually(lambda: addresses(pool) == [fakes[1].address, fakes[2].address])
    assert pool.verifiers[1].index == 2
    resolver.set("verifier", *(fake.address for fake in fakes))
    await eventually(lambda: len(pool.verifiers) == 3)
    assert {v.address: v.index for v in pool.verifiers} == {**indices, fakes[2].address: 2}
    assert pool.verifiers[0].address == first


async def test_sums_count_a_verifier_of_two_addresses_once(
    fakes: list[FakeVerifier],
    resolver: FakeResolver,
    socket_dir: Path,
    start_pool: StartPool,
) -> None:
    link = socket_dir / "same.sock"
    link.symlink_to(fakes[0].address.removeprefix("unix:"))
    resolver.set("verifier", fakes[0].address, f"unix:{link}")
    pool = await start_pool()
    await answered_by(pool)
    assert len(pool.verifiers) == 2
    answered = await pool.refresh()
    text = GatewayMetrics().exposition(pool.verifiers, answered).decode()
    counted = re.findall(r"vllm:generation_tokens_total\{[^}]*\} ([0-9.]+)", text)
    assert sum(map(float, counted)) == fakes[0].generation_tokens > 0


async def test_a_name_that_cannot_be_looked_up_keeps_what_it_had(
    resolver: FakeResolver, start_pool: StartPool
) -> None:
    pool = await start_pool()
    await pool.refresh()
    resolver.set("verifier")
    before = resolver.lookups
    await eventually(lambda: resolver.lookups > before + 2)
    assert len({await answered_by(pool) for _ in range(4)}) == 2


async def test_an_unknown_name_is_a_503_that_says_so_until_it_is_known(
    fakes: list[FakeVerifier], resolver: FakeResolver, start_pool: StartPool
) -> None:
    resolver.set("verifier")
    pool = await start_pool(connect_timeout_s=0.5)
    with pytest.raises(ApiError, match=r"dns:verifier:1: not known") as caught:
        await ask(pool)
    assert caught.value.status == 503
    resolver.set("verifier", fakes[0].address)
    await eventually(lambda: bool(pool.verifiers) and pool.verifiers[0].info is not None)
    assert await answered_by(pool) == fakes[0].address


async def test_names_and_addresses_mix(fakes: list[FakeVerifier], start_pool: StartPool) -> None:
    pool = await start_pool(fakes[2].address, NAME, fakes[0].address)
    await pool.refresh()
    assert addresses(pool) == [fakes[i].address for i in (2, 0, 1)]


async def test_a_prompt_goes_where_its_beginning_was_answered(start_pool: StartPool) -> None:
    pool = await start_pool()
    await pool.refresh()
    home = await answered_by(pool, LONG + "a question")
    for other in ("y", "z", "w"):
        await answered_by(pool, other * 1000)
    assert {await answered_by(pool, LONG + str(number)) for number in range(5)} == {home}


async def test_unless_that_one_is_clearly_busier(
    fakes: list[FakeVerifier], start_pool: StartPool
) -> None:
    for fake in fakes:
        fake.script = lambda request: Answer(hang_after=1)
    pool = await start_pool()
    await pool.refresh()
    running = [await ask(pool, LONG) for _ in range(4)]
    homes = [stream.verifier.address for stream in running]
    # The fourth: three are more than twice none and two.
    assert len(set(homes[:3])) == 1
    assert homes[3] != homes[0]
    for stream in running:
        stream.close()


async def test_or_does_not_serve(fakes: list[FakeVerifier], start_pool: StartPool) -> None:
    pool = await start_pool()
    await pool.refresh()
    home = await answered_by(pool, LONG)
    gone = next(fake for fake in fakes if fake.address == home)
    await gone.stop()
    await eventually(lambda: any(v.problem for v in pool.verifiers))
    other = await answered_by(pool, LONG)
    assert other != home
    await gone.start()
    await eventually(lambda: not any(v.problem for v in pool.verifiers))
    # What was computed again stays where it was computed.
    assert await answered_by(pool, LONG) == other


async def test_the_first_request_waits_for_the_first_lookup(
    resolver: FakeResolver, start_pool: StartPool
) -> None:
    pool = await start_pool()
    assert await answered_by(pool) in addresses(pool)
    assert resolver.lookups >= 1
