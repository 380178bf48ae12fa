"""Where structured answers end, what each choice's own state is, and what a refusal says."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.interfaces.stack import MODEL, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Any = [{"role": "user", "content": "a dog"}]


@pytest.fixture(scope="module")
def client(shared: Stack) -> openai.AsyncOpenAI:
    return shared.client


async def completion(
    client: openai.AsyncOpenAI, structured: dict[str, Any], *, plain: bool = False, **options: Any
) -> Any:
    extra = {
        "speculative_decoding": {"enabled": not plain},
        "structured_outputs": structured,
        **options.pop("extra", {}),
    }
    options = {"max_tokens": 100, "temperature": 0.8, "seed": 3, "prompt": "the", **options}
    return await client.completions.create(model=MODEL, extra_body=extra, **options)


STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"regex": r"(cat|dog) \d{2,4}(, mat)*"}, r"(cat|dog) \d{2,4}(, mat)*"),
    ({"choice": ["the cat sat", "the dog", "STOP"]}, "the cat sat|the dog|STOP"),
    ({"grammar": 'root ::= "[" item ("," item)* "]"\nitem ::= [0-9] | root'}, r"[\[\],0-9]+"),
    ({"json": {"enum": ["a", 1, None]}}, '"a"|1|null'),
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("structured", "pattern"), STRUCTURES)
async def test_an_answer_ends_with_its_structure_with_and_without_drafts(
    client: openai.AsyncOpenAI, structured: dict[str, Any], pattern: str, temperature: float
) -> None:
    drafted = await completion(client, structured, temperature=temperature)
    plain = await completion(client, structured, temperature=temperature, plain=True)
    choice = drafted.choices[0]
    assert choice.text == plain.choices[0].text
    assert choice.finish_reason == plain.choices[0].finish_reason == "stop"
    assert choice.stop_reason is None
    assert re.fullmatch(pattern, choice.text)
    assert drafted.usage.completion_tokens == plain.usage.completion_tokens


async def test_a_json_object(client: openai.AsyncOpenAI) -> None:
    reply = await completion(client, {"json_object": True, "disable_any_whitespace": True})
    assert isinstance(json.loads(reply.choices[0].text), dict)


async def test_each_choice_has_its_own_state(client: openai.AsyncOpenAI) -> None:
    reply = await completion(client, {"regex": "[a-z]{12}"}, n=4, temperature=2)
    texts = [choice.text for choice in reply.choices]
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)
    assert len(set(texts)) == 4


async def test_ignore_eos_does_not_hide_the_end_and_max_tokens_comes_before_it(
    client: openai.AsyncOpenAI,
) -> None:
    ended = await completion(client, {"choice": ["cat"]}, extra={"ignore_eos": True})
    assert ended.choices[0].text == "cat" and ended.choices[0].finish_reason == "stop"
    cut = await completion(client, {"regex": "a{50}b"}, max_tokens=10)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 10
    assert set(cut.choices[0].text) == {"a"}


async def test_min_tokens_beyond_the_end_gives_way(client: openai.AsyncOpenAI) -> None:
    reply = await completion(client, {"choice": ["cat"]}, extra={"min_tokens": 30})
    assert reply.choices[0].text == "cat" and reply.choices[0].finish_reason == "stop"


HOPELESS: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "nope"}}, "Unsupported type"),
    ({"json": "{"}, "not JSON"),
    ({"json": json.dumps({"enum": ["x" * 1_000_000]})}, "at most 262144 are allowed"),
    ({"regex": "(a"}, "parenthesis"),
    ({"regex": "a(?=b)"}, "Lookahead"),
    ({"grammar": 'root ::= root "a"'}, "nothing that ever ends"),
    ({"grammar": "root ::= undefined"}, "not defined"),
    ({"structural_tag": {"type": "structural_tag"}}, "Invalid structural tag"),
]


@pytest.mark.parametrize(("structured", "says"), HOPELESS)
async def test_a_hopeless_structure_is_a_400_that_says_why(
    client: openai.AsyncOpenAI, structured: dict[str, Any], says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, structured)
    body: Any = caught.value.body
    assert body["param"] == "structured_outputs" and body["type"] == "BadRequestError"
    assert says in body["message"]


async def test_a_hopeless_response_format_names_its_own_field(client: openai.AsyncOpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/no"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=schema)
    body: Any = caught.value.body
    assert body["param"] == "response_format"


async def test_grpc_takes_the_same_structure(shared: Stack) -> None:
    structured = STRUCTURES[1][0]
    request = pb.GenerateRequest(
        text="the",
        sampling=pb.SamplingParams(seed=3, temperature=0.8, max_tokens=100),
        structured=pb.StructuredOutput(choice=pb.Choices(strings=structured["choice"])),
    )
    text = ""
    async for message in shared.verifier.Generate(request):
        text += message.delta.text
    whole = await completion(shared.client, structured)
    assert text == whole.choices[0].text
