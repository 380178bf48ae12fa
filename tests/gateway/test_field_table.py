"""The table of request fields: it is complete, it is true, and the docs' page is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.bodies import ChatBody, CompletionBody
from gateway.errors import ApiError
from gateway.field_page import page
from gateway.field_table import Row, Status, rows
from gateway.fields import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED, IGNORED
from gateway.requests import parse_chat, parse_completion
from tests.gateway.fake_verifier import MODEL, FakeVerifier

PAGE = Path(__file__).parents[2] / "docs" / "request-fields.md"
TABLE = {row.name: row for row in rows()}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "x"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
# One of each JSON type, so that every field meets a value that asks for something.
ANYTHING: tuple[Any, ...] = (True, False, -3, 1.5, "something", ["a"], {"a": 1})

_BOTH = """
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty
    length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
    allowed_token_ids prompt_logprobs logprob_token_ids bad_words add_special_tokens echo
    response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets cache_salt
    kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
    stream_interval
"""
_CHAT = """
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort
    include_reasoning parallel_tool_calls add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
    return_assistant_tokens_mask
"""
COMPLETIONS_IN_VLLM = [*_BOTH.split(), "prompt", "suffix", "prompt_embeds"]
CHAT_IN_VLLM = [*_BOTH.split(), *_CHAT.split()]


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs` and commit the result"


def test_the_pages_it_points_to_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", page())
    assert links
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []


@pytest.mark.parametrize("name", COMPLETIONS_IN_VLLM)
def test_fields_of_vllms_completions_have_an_answer(name: str) -> None:
    assert TABLE[name].completions is not Status.ABSENT


@pytest.mark.parametrize("name", CHAT_IN_VLLM)
def test_fields_of_vllms_chat_have_an_answer(name: str) -> None:
    assert TABLE[name].chat is not Status.ABSENT


def test_every_field_in_the_code_is_in_the_table() -> None:
    known = {*COMPLETION_UNSUPPORTED, *CHAT_UNSUPPORTED, *IGNORED}
    assert known | CompletionBody.model_fields.keys() | ChatBody.model_fields.keys() == set(TABLE)


def test_what_works_is_what_the_bodies_hold() -> None:
    for body, unsupported, column in (
        (CompletionBody, COMPLETION_UNSUPPORTED, "completions"),
        (ChatBody, CHAT_UNSUPPORTED, "chat"),
    ):
        works = {name for name, row in TABLE.items() if getattr(row, column) is Status.WORKS}
        assert works == body.model_fields.keys()
        assert not works & unsupported.keys()
        assert not works & IGNORED
        assert not unsupported.keys() & IGNORED


def test_no_field_is_without_a_note() -> None:
    assert [row.name for row in TABLE.values() if not row.note.strip()] == []
    assert all("|" not in row.note for row in TABLE.values()), "would end the Markdown cell"


def refused_fields() -> Iterator[Any]:
    for row in TABLE.values():
        if row.completions is Status.REFUSED:
            yield pytest.param(parse_completion, COMPLETION, row, id=f"completions-{row.name}")
        if row.chat is Status.REFUSED:
            yield pytest.param(parse_chat, CHAT, row, id=f"chat-{row.name}")


@pytest.mark.parametrize(("parser", "base", "row"), list(refused_fields()))
def test_a_refused_field_is_named_and_its_neutral_values_pass(
    parser: Any, base: Mapping[str, Any], row: Row
) -> None:
    asking = [value for value in ANYTHING if value not in row.neutral]
    assert len(asking) >= 4
    for value in asking:
        with pytest.raises(ApiError) as caught:
            parser({**base, row.name: value})
        assert caught.value.status == 400
        assert caught.value.param == row.name
        assert caught.value.message.startswith(f"{row.name}: ")
        assert f"leave {row.name} out" in caught.value.message
    assert None in row.neutral
    for value in row.neutral:
        parser({**base, row.name: value})


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_an_ignored_field_takes_anything(name: str) -> None:
    for value in (None, *ANYTHING):
        assert parse_completion({**COMPLETION, name: value}) == parse_completion(COMPLETION)
        assert parse_chat({**CHAT, name: value}) == parse_chat(CHAT)


async def test_statuses_hold_over_http(http: httpx.AsyncClient, verifier: FakeVerifier) -> None:
    ignored = {name: ["anything"] for name in IGNORED}
    response = await http.post("/v1/completions", json={**COMPLETION, **ignored})
    assert response.status_code == 200
    response = await http.post("/v1/completions", json={**COMPLETION, "suffix": "end"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"
    assert len(verifier.requests) == 1
