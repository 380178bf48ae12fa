from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import rounds
from tests.verifier_service.serving import encode
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.accounting import Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.detokenizer import detokenizer_factory
from verifier_service.messages import FinishReason, Output
from verifier_service.request_error import RequestError
from verifier_service.stops import StopMatcher
from verifier_service.undelivered import MAX_TOKENS_PER_DELTA

K = 8


class World:
    """An answer, its ledger, and how often it aborted the core."""

    def __init__(self, *, stop: tuple[str, ...] = (), **options: Any) -> None:
        self.ledger = Ledger(K)
        self.aborts = 0
        self.answer = Answer(
            AnswerOptions(request_id="r", seed=1, **options),
            self.ledger.open(5),
            detokenizer=detokenizer_factory(byte_level_tokenizer())(skip_special_tokens=True),
            matcher=StopMatcher(stop) if stop else None,
            abort=self._abort,
        )

    def _abort(self) -> None:
        self.aborts += 1

    async def messages(self) -> list[pb.GenerateResponse]:
        found: list[pb.GenerateResponse] = []
        while (message := await self.answer.next_message()) is not None:
            found.append(message)
        return found


def kinds(messages: list[pb.GenerateResponse]) -> list[str | None]:
    return [message.WhichOneof("message") for message in messages]


async def test_what_a_slow_client_has_not_read_is_one_message() -> None:
    world = World(include_rounds=True)
    for output in rounds(encode("the cat sat on the mat"), per_round=2):
        world.answer.take_output(output)
    messages = await world.messages()
    assert kinds(messages) == ["started", "delta", "finished"]
    assert messages[1].delta.text == "the cat sat on the mat"
    assert sum(r.emitted for r in messages[1].delta.rounds) == len(messages[1].delta.token_ids)


async def test_one_message_never_grows_beyond_its_limit() -> None:
    world = World()
    ids = encode("x") * (2 * (MAX_TOKENS_PER_DELTA + 9) + 10)
    for output in rounds(ids, per_round=9):
        world.answer.take_output(output)
    deltas = [m.delta for m in await world.messages() if m.HasField("delta")]
    assert len(deltas) == 3
    assert max(len(d.token_ids) for d in deltas) < MAX_TOKENS_PER_DELTA + 9
    assert sum(len(d.token_ids) for d in deltas) == len(ids)


async def test_a_waiting_reader_gets_each_round_as_it_comes() -> None:
    world = World()
    outputs = rounds(encode("a cat"), per_round=1)
    reader = asyncio.create_task(world.answer.next_message())
    await asyncio.sleep(0)
    assert not reader.done()
    world.answer.take_output(outputs[0])
    assert kinds([m for m in [await reader] if m is not None]) == ["started"]
    first = await world.answer.next_message()
    world.answer.take_output(outputs[1])
    second = await world.answer.next_message()
    assert first is not None and second is not None
    assert [*first.delta.token_ids, *second.delta.token_ids] == encode("a cat")[:2]


@given(
    prefix=st.text("ab ", max_size=12),
    suffix=st.text("ab ü", max_size=12),
    per_round=st.integers(1, K + 1),
    final=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_rounds_never_change_where_a_stop_string_cuts(
    prefix: str, suffix: str, per_round: int, final: bool
) -> None:
    async def outcome(size: int) -> tuple[str, list[int], pb.Finished, int]:
        world = World(stop=("aba", "bb "))
        outputs = rounds(ids, per_round=size, reason=FinishReason.LENGTH)
        for output in outputs:
            world.answer.take_output(output)
        messages = await world.messages()
        deltas = [m.delta for m in messages if m.HasField("delta")]
        finished = messages[-1].finished
        assert finished.completion_tokens == world.ledger.generation_tokens
        assert world.ledger.acceptance.to_proto() == finished.acceptance
        return (
            "".join(d.text for d in deltas),
            [i for d in deltas for i in d.token_ids],
            finished,
            world.aborts,
        )

    text = prefix + ("aba" if final else "") + suffix
    ids = encode(text or "a")
    alone = asyncio.run(outcome(1))
    together = asyncio.run(outcome(per_round))
    assert together[:2] == alone[:2]
    assert together[2].stop_string == alone[2].stop_string
    assert together[2].reason == alone[2].reason
    assert len(together[1]) == together[2].completion_tokens


async def test_a_stop_string_in_the_last_round_needs_no_abort() -> None:
    world = World(stop=("cat",))
    (output,) = rounds(encode("a cat sat"), per_round=9)
    world.answer.take_output(output)
    finished = (await world.messages())[-1].finished
    assert (finished.reason, finished.stop_string) == (types_pb2.FINISH_REASON_STOP, "cat")
    assert world.aborts == 0


async def test_outputs_after_the_end_are_ignored() -> None:
    world = World(stop=("cat",))
    for output in rounds(encode("a cat sat on the mat"), per_round=1):
        world.answer.take_output(output)
    assert world.aborts == 1
    assert world.ledger.generation_tokens == (await world.messages())[-1].finished.completion_tokens
    assert world.ledger.generation_tokens < len(encode("a cat sat on the mat"))


async def test_held_back_text_is_shown_at_the_end() -> None:
    world = World(stop=("matter",))
    for output in rounds(encode("the mat"), per_round=1):
        world.answer.take_output(output)
    assert "".join(m.delta.text for m in await world.messages()) == "the mat"


async def test_a_half_character_at_the_end_becomes_a_replacement_character() -> None:
    world = World()
    for output in rounds(encode("🙂")[:2], per_round=1):
        world.answer.take_output(output)
    assert "".join(m.delta.text for m in await world.messages()) == "\ufffd"


async def test_what_came_before_an_error_is_delivered_before_it() -> None:
    world = World()
    outputs = rounds(encode("the cat"), per_round=1)
    world.answer.take_output(outputs[0])
    world.answer.take_output(Output(error="device lost"))
    assert kinds([m for m in [await world.answer.next_message()] if m]) == ["started"]
    delta = await world.answer.next_message()
    assert delta is not None and delta.HasField("delta")
    with pytest.raises(RequestError, match="device lost"):
        await world.answer.next_message()
    assert dict(world.ledger.finished) == {"error": 1}


async def test_a_shutdown_finishes_with_what_there_is() -> None:
    world = World(stop=("catsuppers",))
    ids = encode("the catsup")
    for output in rounds(ids, per_round=1)[:-1]:
        world.answer.take_output(output)
    world.answer.shut_down()
    messages = await world.messages()
    assert messages[-1].finished.reason == types_pb2.FINISH_REASON_ABORT
    shown = "".join(m.delta.text for m in messages)
    assert shown == byte_level_tokenizer().decode(ids[:-1])
    assert world.aborts == 1
    assert dict(world.ledger.finished) == {"abort": 1}


async def test_a_shutdown_before_the_first_token_still_says_started() -> None:
    world = World()
    world.answer.shut_down()
    assert kinds(await world.messages()) == ["started", "finished"]


async def test_a_cancelled_answer_aborts_once_and_delivers_nothing() -> None:
    world = World()
    outputs = rounds(encode("the cat"), per_round=1)
    world.answer.take_output(outputs[0])
    world.answer.cancel()
    world.answer.cancel()
    world.answer.take_output(outputs[1])
    assert world.aborts == 1
    assert world.ledger.generation_tokens == 1
    assert dict(world.ledger.finished) == {"abort": 1}


async def test_a_finished_answer_is_not_cancelled_any_more() -> None:
    world = World()
    for output in rounds(encode("the cat")):
        world.answer.take_output(output)
    world.answer.cancel()
    assert world.aborts == 0
    assert dict(world.ledger.finished) == {"length": 1}


def test_stop_strings_need_a_detokenizer() -> None:
    with pytest.raises(ValueError, match="detokenizer"):
        Answer(
            AnswerOptions(request_id="r", seed=1),
            Ledger(K).open(1),
            detokenizer=None,
            matcher=StopMatcher(("x",)),
            abort=lambda: None,
        )
