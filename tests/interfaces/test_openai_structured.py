"""Structured answers under load: each holds to its form, and a hopeless one harms nobody else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import openai
import pytest

from tests.interfaces.stack import Stack
from tests.interfaces.test_openai_client import PLAIN, completion

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIX: list[tuple[dict[str, Any], str]] = [
    ({}, r".*"),
    ({"structured_outputs": {"choice": ["the cat", "a dog"]}}, r"the cat|a dog"),
    ({"structured_outputs": {"regex": "[a-d]{3,9}[.]"}}, r"[a-d]{3,9}\."),
    ({"structured_outputs": {"grammar": 'root ::= ("ab" | "cd")+ "."'}}, r"(ab|cd)*(\.|[ac])?"),
    ({"structured_outputs": {"json": {"enum": ["x", 1]}}}, r'"x"|1'),
    ({"structured_outputs": {"regex": "[0-9]{4}"}, "min_p": 0.01}, r"[0-9]{4}"),
    ({"structured_outputs": {"regex": "[a-z]{20}"}, "repetition_penalty": 1.3}, r"[a-z]{20}"),
]
HOPELESS: list[dict[str, Any]] = [
    {"regex": "("},
    {"grammar": "root ::="},
    {"grammar": "root ::= root"},
    {"json": {"type": "no such type"}},
    {"choice": []},
    {"json": {}, "regex": "a"},
]


@pytest.fixture(scope="module")
def client(shared: Stack) -> openai.AsyncOpenAI:
    return shared.client


def options_of(index: int) -> dict[str, Any]:
    return {"seed": index, "temperature": 0 if index % 3 == 0 else 0.9, "max_tokens": 40}


async def test_a_mixed_load_holds_and_is_what_plain_decoding_gives(
    client: openai.AsyncOpenAI,
) -> None:
    jobs = [(i, *MIX[i % len(MIX)]) for i in range(2 * len(MIX))]
    answers = await asyncio.gather(
        *(completion(client, **options_of(i), extra_body=extras) for i, extras, _ in jobs)
    )
    drafted = 0
    for (i, extras, shape), answer in zip(jobs, answers, strict=True):
        plain = await completion(client, **options_of(i), extra_body={**extras, **PLAIN})
        choice = answer.choices[0]
        assert choice.text == plain.choices[0].text, extras
        assert re.fullmatch(shape, choice.text, re.DOTALL), (extras, choice.text)
        drafted += answer.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert drafted > 0


@pytest.mark.parametrize("structure", HOPELESS)
async def test_a_hopeless_structure_is_its_own_requests_fault(
    client: openai.AsyncOpenAI, structure: dict[str, Any]
) -> None:
    held = {"structured_outputs": {"regex": "[a-z]{20}"}}
    neighbours = [
        asyncio.create_task(completion(client, max_tokens=40, extra_body=extras))
        for extras in ({}, held)
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, extra_body={"structured_outputs": structure})
    assert (caught.value.param or "").startswith("structured_outputs")
    free, kept = await asyncio.gather(*neighbours)
    assert free.choices[0].text
    assert re.fullmatch(r"[a-z]{20}", kept.choices[0].text)


async def test_a_form_and_a_response_format_together_are_refused(
    client: openai.AsyncOpenAI,
) -> None:
    both = {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, extra_body=both)
    assert caught.value.param in ("structured_outputs", "response_format")


async def test_too_few_tokens_end_a_form_early(client: openai.AsyncOpenAI) -> None:
    held = {"structured_outputs": {"regex": "[a-z]{20}"}}
    answer = await completion(client, max_tokens=3, extra_body=held)
    assert answer.choices[0].finish_reason == "length"
    assert re.fullmatch(r"[a-z]{1,19}", answer.choices[0].text)
