"""`/v1/completions`, not streamed, through the official client."""

from __future__ import annotations

import openai
import pytest
from speculation.v1 import types_pb2

from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import EOS, MODEL, Answer, FakeVerifier


async def test_answer_has_openais_shape(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Hi there", seed=7)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == MODEL
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("outrider-0.1.0-")
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "Hello!", "stop")
    (request,) = verifier.requests
    assert request.text == "Hi there"
    assert request.model == MODEL
    assert request.sampling.seed == 7
    assert request.sampling.max_tokens == 16


async def test_usage_counts_cached_and_predicted_tokens(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="abc")
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 1
    details = usage.completion_tokens_details
    assert details is not None
    # Rounds of 4 and 2 drafts emit 3 and 2 tokens: 2 + 1 drafts were accepted.
    assert details.accepted_prediction_tokens == 3
    assert details.rejected_prediction_tokens == 3


async def test_metrics_are_vllms_summary(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="abc")
    metrics = answer.model_extra["metrics"]
    assert metrics["speculative_decoding"] == {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 1, 1, 0, 0],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "num_spec_tokens": 4,
    }
    assert metrics["time_to_first_token_ms"] is None


async def test_detailed_metrics_list_the_steps(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    from gateway.settings import SpecDecodeMetrics

    gateway = await start_gateway(
        verifier.address, per_request_spec_decode_metrics=SpecDecodeMetrics.DETAILED
    )
    async with client_of(gateway) as client:
        answer = await client.completions.create(model=MODEL, prompt="abc")
    figures = answer.model_extra["metrics"]["speculative_decoding"]
    assert figures["per_step_accepted"] == [2, 1]
    assert figures["per_step_drafted"] == [4, 2]


async def test_metrics_can_be_turned_off(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    from gateway.settings import SpecDecodeMetrics

    gateway = await start_gateway(
        verifier.address, per_request_spec_decode_metrics=SpecDecodeMetrics.NONE
    )
    async with client_of(gateway) as client:
        answer = await client.completions.create(model=MODEL, prompt="abc")
    assert answer.model_extra["metrics"] is None


async def test_length_is_a_finish_reason(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(reason=types_pb2.FINISH_REASON_LENGTH)
    answer = await client.completions.create(model=MODEL, prompt="abc", max_tokens=6)
    assert answer.choices[0].finish_reason == "length"
    assert verifier.requests[0].sampling.max_tokens == 6


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(stop_string="\n"), "\n"),
        (Answer(stop_token_id=42), 42),
        (Answer(stop_token_id=EOS), None),
        (Answer(), None),
    ],
)
async def test_stop_reason_is_what_the_client_asked_for(
    client: openai.AsyncOpenAI,
    verifier: FakeVerifier,
    answer: Answer,
    expected: str | int | None,
) -> None:
    verifier.script = lambda request: answer
    response = await client.completions.create(model=MODEL, prompt="abc", stop="\n")
    assert response.choices[0].model_extra["stop_reason"] == expected


async def test_eos_as_an_asked_for_stop_token_is_a_stop_reason(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(stop_token_id=EOS)
    response = await client.completions.create(
        model=MODEL, prompt="abc", extra_body={"stop_token_ids": [EOS]}
    )
    assert response.choices[0].model_extra["stop_reason"] == EOS


async def test_several_prompts_become_choices_in_order(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[(request.text.upper(), 1)])
    answer = await client.completions.create(model=MODEL, prompt=["a", "bb", "ccc"])
    assert [(c.index, c.text) for c in answer.choices] == [(0, "A"), (1, "BB"), (2, "CCC")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == 6
    figures = answer.model_extra["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == 3
    assert figures["acceptance_histogram"] == [1, 2, 0, 0, 0]
    assert len({r.request_id for r in verifier.requests}) == 3


async def test_several_prompts_run_side_by_side(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    def script(request: object) -> Answer:
        # The first call waits until the second has come.
        if len(verifier.requests) == 2:
            verifier.release.set()
        return Answer(wait_after=1)

    verifier.script = script
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"])
    assert [c.text for c in answer.choices] == ["Hello!", "Hello!"]


async def test_n_choices_take_seeds_in_a_row_and_count_the_prompt_once(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[(str(request.sampling.seed), 0)])
    answer = await client.completions.create(model=MODEL, prompt=["abc", "d"], n=2, seed=5)
    assert [c.text for c in answer.choices] == ["5", "6", "5", "6"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


async def test_n_seeds_wrap_at_64_bits(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    await client.completions.create(model=MODEL, prompt="a", n=2, seed=2**63 - 1)
    assert {r.sampling.seed for r in verifier.requests} == {2**63 - 1, -(2**63)}


async def test_n_without_seed_leaves_the_seed_to_the_verifier(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    await client.completions.create(model=MODEL, prompt="a", n=2)
    assert not any(r.sampling.HasField("seed") for r in verifier.requests)


async def test_token_prompts(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    await client.completions.create(model=MODEL, prompt=[72, 105])
    assert list(verifier.requests[0].token_ids.ids) == [72, 105]
    await client.completions.create(model=MODEL, prompt=[[1], [2, 3]])
    assert [list(r.token_ids.ids) for r in verifier.requests[1:]] == [[1], [2, 3]]


async def test_return_token_ids(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="Hi", extra_body={"return_token_ids": True}
    )
    extra = answer.choices[0].model_extra
    assert extra["prompt_token_ids"] == [EOS, 72, 105]
    assert extra["token_ids"] == [ord(c) for c in "Hello!"]


async def test_echo_of_text_and_of_ids(client: openai.AsyncOpenAI) -> None:
    text = await client.completions.create(model=MODEL, prompt="Say: ", echo=True)
    assert text.choices[0].text == "Say: Hello!"
    ids = await client.completions.create(model=MODEL, prompt=[72, 105], echo=True)
    assert ids.choices[0].text == "HiHello!"


async def test_every_supported_field_reaches_the_verifier(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    await client.completions.create(
        model=MODEL,
        prompt="x",
        temperature=0.5,
        top_p=0.25,
        stop=["a", "b"],
        user="me",
        extra_body={
            "top_k": 3,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "request_id": "mine",
            "priority": -2,
            "cache_salt": "salt",
            "speculative_decoding": {
                "enabled": True,
                "num_speculative_tokens": 2,
                "proposer": "ngram",
            },
        },
    )
    (request,) = verifier.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 3)
    assert list(sampling.stop) == ["a", "b"]
    assert list(sampling.stop_token_ids) == [9]
    assert sampling.ignore_eos
    assert sampling.include_stop_str_in_output
    assert not sampling.skip_special_tokens
    assert sampling.HasField("skip_special_tokens")
    assert not request.add_special_tokens
    assert request.HasField("add_special_tokens")
    assert (request.request_id, request.priority, request.cache_salt) == ("mine", -2, "salt")
    assert request.speculation.enabled
    assert request.speculation.num_speculative_tokens == 2
    assert request.speculation.proposer == "ngram"


async def test_unset_fields_stay_unset(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    await client.completions.create(model=MODEL, prompt="x", max_tokens=None)
    (request,) = verifier.requests
    for name in ("temperature", "top_p", "top_k", "seed", "max_tokens", "skip_special_tokens"):
        assert not request.sampling.HasField(name), name
    assert not request.HasField("speculation")
    assert not request.HasField("add_special_tokens")


async def test_speculation_can_be_turned_off_for_a_request(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    await client.completions.create(
        model=MODEL, prompt="x", extra_body={"speculative_decoding": {"enabled": False}}
    )
    speculation = verifier.requests[0].speculation
    assert speculation.HasField("enabled")
    assert not speculation.enabled


async def test_unicode_survives_both_ways(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    text = "naïve 你好 🚀 \u2028 \x85 \x00 e\u0301"
    verifier.script = lambda request: Answer(pieces=[(request.text, 0)])
    answer = await client.completions.create(model=MODEL, prompt=text)
    assert answer.choices[0].text == text
