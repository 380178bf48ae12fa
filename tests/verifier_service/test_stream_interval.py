"""Messages of several tokens: joined without loss, the first at once, the end lets all out."""

from __future__ import annotations

import asyncio

import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import rounds
from tests.verifier_service.serving import encode
from tests.verifier_service.test_answer import World
from verifier_service.messages import FinishReason, Output

TEXT = "the cat sat on the mat"


async def read_beside(world: World, outputs: list[Output]) -> list[pb.GenerateResponse]:
    """Messages as a reader gets them that is always waiting."""
    reader = asyncio.create_task(world.messages())
    for output in outputs:
        await asyncio.sleep(0)
        world.answer.take_output(output)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return await reader


def deltas(messages: list[pb.GenerateResponse]) -> list[pb.Delta]:
    return [message.delta for message in messages if message.HasField("delta")]


@pytest.mark.parametrize("per_round", [1, 2, 5])
@pytest.mark.parametrize("interval", [1, 2, 3, 7, 1000])
async def test_each_delta_but_the_first_and_last_holds_the_interval(
    interval: int, per_round: int
) -> None:
    world = World(include_rounds=True, stream_interval=interval)
    ids = encode(TEXT)
    found = deltas(await read_beside(world, rounds(ids, per_round=per_round)))
    sizes = [len(delta.token_ids) for delta in found]
    assert sizes[0] == per_round
    assert all(size >= interval for size in sizes[1:-1])
    # No round is parted, and none waits longer than it must.
    assert all(size < interval + per_round for size in sizes[1:])
    assert "".join(delta.text for delta in found) == TEXT
    assert [i for delta in found for i in delta.token_ids] == ids
    assert sum(r.emitted for delta in found for r in delta.rounds) == len(ids)


async def test_zero_is_no_interval() -> None:
    world = World(stream_interval=0)
    found = deltas(await read_beside(world, rounds(encode("a cat"), per_round=1)))
    assert [len(delta.token_ids) for delta in found] == [1] * len(encode("a cat"))


async def test_what_waits_is_let_out_by_a_shutdown() -> None:
    world = World(stream_interval=1000)
    outputs = rounds(encode(TEXT), per_round=1)[:-1]
    reader = asyncio.create_task(world.messages())
    for output in outputs:
        await asyncio.sleep(0)
        world.answer.take_output(output)
    world.answer.shut_down()
    found = deltas(await reader)
    assert sum(len(delta.token_ids) for delta in found) == len(outputs)


async def test_what_waits_is_let_out_before_an_error() -> None:
    world = World(stream_interval=1000)
    outputs = rounds(encode(TEXT), per_round=1)[:-1]
    found: list[pb.GenerateResponse] = []

    async def read() -> None:
        while (message := await world.answer.next_message()) is not None:
            found.append(message)

    reader = asyncio.create_task(read())
    for output in outputs:
        await asyncio.sleep(0)
        world.answer.take_output(output)
    world.answer.fail(ValueError("gone"))
    with pytest.raises(ValueError, match="gone"):
        await reader
    assert sum(len(delta.token_ids) for delta in deltas(found)) == len(outputs)


async def test_a_stop_string_lets_out_what_waits() -> None:
    world = World(stop=("sat",), stream_interval=1000)
    found = await read_beside(world, rounds(encode(TEXT), per_round=1))
    assert "".join(delta.text for delta in deltas(found)) == "the cat "
    assert world.aborts == 1


async def test_an_end_without_tokens_lets_out_what_waits() -> None:
    world = World(stream_interval=1000)
    outputs = rounds(encode(TEXT), per_round=1)[:-1]
    last = Output(finish_reason=FinishReason.LENGTH)
    found = await read_beside(world, [*outputs, last])
    assert sum(len(delta.token_ids) for delta in deltas(found)) == len(outputs)
    assert found[-1].HasField("finished")
