"""Log-probabilities from outputs to messages: cut with the tokens, never left out in silence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import rounds
from tests.verifier_service.serving import encode
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.accounting import Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.detokenizer import detokenizer_factory
from verifier_service.logprob_messages import LogprobMessages
from verifier_service.messages import Output, Sampling, TokenLogprob
from verifier_service.stops import StopMatcher
from verifier_service.token_pieces import token_bytes

K = 8
TABLE = token_bytes(byte_level_tokenizer())
PROMPT = encode("a cat")


def entry(token_id: int, place: int, top: int = 2) -> TokenLogprob:
    """Numbers that name their place and that float32 holds."""
    return TokenLogprob(
        token_id, -place / 4, place + 1, tuple((i, -i / 2 - 1) for i in range(40, 40 + top))
    )


def scored(outputs: Sequence[Output], top: int = 2) -> list[Output]:
    result: list[Output] = []
    place = 0
    for output in outputs:
        entries = [entry(i, place + n, top) for n, i in enumerate(output.token_ids)]
        place += len(entries)
        result.append(replace(output, logprobs=tuple(entries)))
    return result


def answer_for(sampling: Sampling, stop: tuple[str, ...] = ()) -> Answer:
    return Answer(
        AnswerOptions(request_id="r", seed=1),
        Ledger(K).open(len(PROMPT)),
        detokenizer=detokenizer_factory(byte_level_tokenizer())(skip_special_tokens=True),
        matcher=StopMatcher(stop) if stop else None,
        abort=lambda: None,
        logprobs=LogprobMessages(sampling, PROMPT, TABLE.__getitem__),
    )


async def messages(answer: Answer) -> list[pb.GenerateResponse]:
    found: list[pb.GenerateResponse] = []
    while (message := await answer.next_message()) is not None:
        found.append(message)
    return found


def deltas(found: Sequence[pb.GenerateResponse]) -> list[pb.Delta]:
    return [message.delta for message in found if message.HasField("delta")]


@pytest.mark.parametrize("per_round", [1, 3, 9])
async def test_every_token_has_its_own(per_round: int) -> None:
    answer = answer_for(Sampling(logprobs=2))
    ids = encode("the cat sat on the mat")
    for output in scored(rounds(ids, per_round=per_round)):
        answer.take_output(output)
    (delta,) = deltas(await messages(answer))
    assert [e.token_id for e in delta.logprobs] == list(delta.token_ids) == ids
    assert [e.logprob for e in delta.logprobs] == [-n / 4 for n in range(len(ids))]
    assert [e.rank for e in delta.logprobs] == [n + 1 for n in range(len(ids))]
    assert [e.token_bytes for e in delta.logprobs] == [TABLE[i] for i in ids]
    assert [t.token_id for t in delta.logprobs[0].top] == [40, 41]
    assert [t.logprob for t in delta.logprobs[0].top] == [-21.0, -21.5]
    assert [t.token_bytes for t in delta.logprobs[0].top] == [TABLE[40], TABLE[41]]


@pytest.mark.parametrize("per_round", [1, 2, 5, 9])
async def test_a_stop_string_cuts_them_with_its_tokens(per_round: int) -> None:
    answer = answer_for(Sampling(logprobs=0), stop=("cat",))
    ids = encode("the cat sat on the mat")
    for output in scored(rounds(ids, per_round=per_round), top=0):
        answer.take_output(output)
    found = await messages(answer)
    told = [e for delta in deltas(found) for e in delta.logprobs]
    kept = [i for delta in deltas(found) for i in delta.token_ids]
    assert found[-1].finished.stop_string == "cat"
    assert [e.token_id for e in told] == kept == ids[: len(kept)]
    assert len(kept) == found[-1].finished.completion_tokens < len(ids)


async def test_half_a_character_has_its_bytes_and_no_text_yet() -> None:
    answer = answer_for(Sampling(logprobs=0))
    ids = encode("🙂")
    outputs = scored(rounds(ids, per_round=1), top=0)
    parts: list[pb.Delta] = []
    for output in outputs:
        answer.take_output(output)
        while not parts or len(parts) < len(outputs):
            message = await answer.next_message()
            assert message is not None
            if message.HasField("delta"):
                parts.append(message.delta)
                break
    assert [part.text for part in parts] == ["", "", "", "🙂"]
    assert b"".join(e.token_bytes for part in parts for e in part.logprobs) == "🙂".encode()
    assert [len(part.logprobs) for part in parts] == [1, 1, 1, 1]


async def test_the_prompts_come_with_the_first_message_from_however_many_chunks() -> None:
    for cuts in ([], [1], [2, 3]):
        answer = answer_for(Sampling(prompt_logprobs=2))
        entries = [entry(i, n) for n, i in enumerate(PROMPT[1:])]
        edges = [0, *cuts]
        for a, b in zip(edges, cuts, strict=False):
            answer.take_output(Output(prompt_logprobs=tuple(entries[a:b])))
        first, *rest = rounds(encode("the cat"), per_round=1)
        answer.take_output(replace(first, prompt_logprobs=tuple(entries[edges[-1] :])))
        for output in rest:
            answer.take_output(output)
        found = await messages(answer)
        started = found[0].started
        assert list(started.prompt_token_ids) == PROMPT
        assert started.first_token_bytes == TABLE[PROMPT[0]]
        assert [e.token_id for e in started.prompt_logprobs] == PROMPT[1:]
        assert [e.rank for e in started.prompt_logprobs] == [n + 1 for n in range(len(entries))]
        assert [m.WhichOneof("message") for m in found].count("started") == 1
        assert not any(delta.logprobs for delta in deltas(found))


async def test_outputs_behind_the_first_message_owe_nothing_of_the_prompt() -> None:
    answer = answer_for(Sampling(prompt_logprobs=0))
    entries = tuple(entry(i, n) for n, i in enumerate(PROMPT[1:]))
    first, *rest = rounds(encode("the cat"), per_round=1)
    answer.take_output(replace(first, prompt_logprobs=entries))
    assert await answer.next_message() is not None
    for output in rest:
        answer.take_output(output)
    assert [m.WhichOneof("message") for m in await messages(answer)][-1] == "finished"


async def test_a_client_may_read_as_the_outputs_come() -> None:
    answer = answer_for(Sampling(prompt_logprobs=0, logprobs=0))
    entries = tuple(entry(i, n) for n, i in enumerate(PROMPT[1:]))
    found: list[pb.GenerateResponse] = []
    for number, output in enumerate(scored(rounds(encode("the cat"), per_round=1), top=0)):
        answer.take_output(output if number else replace(output, prompt_logprobs=entries))
        for _ in range(1 if number else 2):
            message = await answer.next_message()
            assert message is not None
            found.append(message)
    found += await messages(answer)
    assert len(found[0].started.prompt_logprobs) == len(entries)
    told = [e.token_id for delta in deltas(found) for e in delta.logprobs]
    assert told == encode("the cat")


async def test_part_of_the_prompt_does_not_begin_the_answer() -> None:
    answer = answer_for(Sampling(prompt_logprobs=0))
    answer.take_output(Output(prompt_logprobs=(entry(PROMPT[1], 0),)))
    answer.shut_down()
    found = await messages(answer)
    assert [m.WhichOneof("message") for m in found] == ["started", "finished"]


async def test_the_prompts_ids_are_told_to_those_alone_who_asked_about_the_prompt() -> None:
    answer = answer_for(Sampling(logprobs=0))
    for output in scored(rounds(encode("the cat")), top=0):
        answer.take_output(output)
    assert not (await messages(answer))[0].started.prompt_token_ids


async def test_one_message_never_grows_beyond_what_grpc_takes() -> None:
    answer = answer_for(Sampling(logprobs=20))
    ids = encode("x") * 9000
    for output in scored(rounds(ids, per_round=9), top=20):
        answer.take_output(output)
    parts = deltas(await messages(answer))
    assert sum(len(part.logprobs) for part in parts) == len(ids)
    assert max(part.ByteSize() for part in parts) < 4 << 20


def test_a_log_probability_of_minus_infinity_stays_one() -> None:
    (message,) = LogprobMessages(Sampling(logprobs=0), (), TABLE.__getitem__).messages(
        [TokenLogprob(40, -math.inf, 300)]
    )
    assert message.logprob == -math.inf


@pytest.mark.parametrize(
    ("sampling", "output"),
    [
        (Sampling(logprobs=0), Output(token_ids=(40, 41))),
        (Sampling(logprobs=0), Output(token_ids=(40, 41), logprobs=(entry(40, 0),))),
        (Sampling(prompt_logprobs=0), Output(token_ids=(40,))),
        (Sampling(prompt_logprobs=0), Output(token_ids=(40,), logprobs=(entry(40, 0),))),
    ],
)
def test_what_was_asked_for_and_did_not_come_is_an_error(
    sampling: Sampling, output: Output
) -> None:
    with pytest.raises(ValueError, match="log-probabilities"):
        answer_for(sampling).take_output(output)
