"""Every accepted form of a traffic line, and what each bad one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.advise.fields import BadLineError
from outrider.advise.traffic import Chat, Recorded, parse_line, read_lines
from outrider.errors import InputError

USER = [{"role": "user", "content": "hi"}]


def parse(value: object) -> list[Recorded]:
    return parse_line(7, json.dumps(value).encode())


def one(value: object) -> Recorded:
    (recorded,) = parse(value)
    return recorded


def chat_of(recorded: Recorded) -> list[dict[str, Any]]:
    assert isinstance(recorded.prompt, Chat)
    messages: list[dict[str, Any]] = json.loads(recorded.prompt.messages_json)
    return messages


def test_our_own_form_as_text_and_as_ids() -> None:
    assert one({"prompt": "a", "output": "b"}) == Recorded("line 7", "a", "b", sampling={})
    ids = one({"prompt_token_ids": [1, 2], "output_token_ids": [3]})
    assert (ids.prompt, ids.output) == ((1, 2), (3,))
    assert one({"prompt": [1, 2], "output": [3]}) == ids


def test_ids_win_over_the_text_they_come_from() -> None:
    recorded = one(
        {
            "messages": USER,
            "prompt_token_ids": [1],
            "output": "text",
            "output_token_ids": [2],
        }
    )
    assert (recorded.prompt, recorded.output) == ((1,), (2,))


def test_prompts_alone_have_no_output() -> None:
    assert one({"prompt": "a"}).output is None
    recorded = one({"messages": USER, "tools": [{"type": "function"}]})
    assert recorded.output is None and chat_of(recorded) == USER
    assert isinstance(recorded.prompt, Chat) and "function" in recorded.prompt.tools_json


def test_what_a_line_says_of_its_request() -> None:
    recorded = one(
        {
            "prompt": "a",
            "output": "b",
            "finish_reason": "stop",
            "stop_reason": "END",
            "max_tokens": 9,
            "cache_salt": "s",
            "tenant": "t",
            "temperature": 0.5,
            "seed": 3,
            "cached_prompt_tokens": 4,
            "id": "ignored",
        }
    )
    assert recorded.finish_reason == "stop" and recorded.stop_string
    assert (recorded.max_tokens, recorded.cached_prompt_tokens) == (9, 4)
    assert recorded.sampling == {"temperature": 0.5, "seed": 3}


def test_no_tenant_can_spell_anothers_salt() -> None:
    salts = [
        one({"prompt": "a", "output": "b", **said}).salt
        for said in ({}, {"tenant": "x"}, {"cache_salt": "x"}, {"tenant": "x", "cache_salt": "x"})
    ]
    assert len(set(salts)) == 4 and salts[0] == ""


def test_a_chat_that_ends_with_the_answer() -> None:
    recorded = one({"messages": [*USER, {"role": "assistant", "content": "yes"}]})
    assert chat_of(recorded) == USER and recorded.output == "yes"


def test_an_answer_beside_keeps_all_messages() -> None:
    messages = [*USER, {"role": "assistant", "content": "yes"}]
    recorded = one({"messages": messages, "output": "and more"})
    assert chat_of(recorded) == messages and recorded.output == "and more"


@pytest.mark.parametrize(
    "response", ["yes", {"role": "assistant", "content": "yes"}, {"choices": [{"text": "yes"}]}]
)
def test_a_logged_response_in_any_form(response: object) -> None:
    assert one({"messages": USER, "response": response}).output == "yes"


def test_a_logged_completion_object_with_several_choices() -> None:
    response = {
        "choices": [
            {"message": {"content": "yes"}, "finish_reason": "length"},
            {"message": {"content": "no"}, "finish_reason": "stop", "stop_reason": "X"},
        ],
        "usage": {"prompt_tokens_details": {"cached_tokens": 5}},
    }
    first, second = parse({"messages": USER, "response": response, "max_tokens": 3})
    assert (first.output, first.finish_reason, first.stop_string) == ("yes", "length", False)
    assert (second.output, second.finish_reason, second.stop_string) == ("no", "stop", True)
    assert first.cached_prompt_tokens == 5 and first.max_tokens == 3
    assert second.where == "line 7, choice 1"


@pytest.mark.parametrize("place", ["response", "choice"])
def test_token_ids_of_a_response_are_taken(place: str) -> None:
    choice: dict[str, Any] = {"message": {"content": "text"}, "token_ids": [3, 4]}
    response: dict[str, Any] = {"choices": [choice]}
    (choice if place == "choice" else response)["prompt_token_ids"] = [1, 2]
    recorded = one({"messages": USER, "response": response})
    assert (recorded.prompt, recorded.output) == ((1, 2), (3, 4))


def test_a_log_line_that_keeps_its_request_apart() -> None:
    line = {"request": {"messages": USER, "max_tokens": 5}, "response": "yes", "tenant": "t"}
    recorded = one(line)
    assert chat_of(recorded) == USER and recorded.max_tokens == 5 and recorded.salt


def test_each_answer_of_a_conversation_is_a_request() -> None:
    turns = [("system", "s"), ("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    line = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    first, second = parse(line)
    assert [m["role"] for m in chat_of(first)] == ["system", "user"] and first.output == "b"
    assert [m["content"] for m in chat_of(second)] == ["s", "a", "b", "c"]
    assert second.output == "d" and second.where == "line 7, turn 4"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "line 7: not JSON"),
        (b"3", "line 7: 3: must be a JSON object"),
        (b'{"output": "b"}', "no prompt; one of prompt"),
        (b'{"promt": "a", "output": "b"}', "did you mean prompt?"),
        (b'{"prompt": 3}', "prompt: 3: must be a string or a list of token ids"),
        (b'{"prompt": [1, -1]}', "prompt: [1, -1]: must be"),
        (b'{"prompt": [1, true]}', "prompt: [1, true]: must be"),
        (b'{"prompt": "a", "messages": [{"role": "user"}]}', "prompt and messages are both given"),
        (b'{"prompt": "a", "output": 3}', "output: 3: must be a string"),
        (b'{"prompt": "a", "output_token_ids": "b"}', "output_token_ids: "),
        (b'{"prompt": "a", "output": "b", "response": "c"}', "output and response are both given"),
        (b'{"prompt": "a", "response": 3}', "response: 3: must be text"),
        (b'{"prompt": "a", "response": {"choices": []}}', "response: "),
        (b'{"prompt": "a", "response": {"choices": [3]}}', "response.choices[0]: 3"),
        (b'{"prompt": "a", "response": {"choices": [{}]}}', "response.choices[0].text: null"),
        (
            b'{"prompt": "a", "response": {"choices": [{"message": {"tool_calls": [1]}}]}}',
            "response.choices[0].message.content: empty beside tool_calls",
        ),
        (b'{"prompt": "a", "finish_reason": "done"}', 'finish_reason: "done": must be one of stop'),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens: 0: must be a positive integer"),
        (b'{"prompt": "a", "cache_salt": 3}', "cache_salt: 3: must be a string"),
        (b'{"prompt": "a", "cached_prompt_tokens": -1}', "cached_prompt_tokens: -1"),
        (b'{"messages": "a"}', "messages: "),
        (b'{"messages": ["a"]}', "messages[0]: "),
        (b'{"messages": [{"role": "user"}], "tools": 3}', "tools: 3"),
        (b'{"conversations": []}', "conversations: []"),
        (b'{"conversations": [{"from": "elf", "value": "a"}]}', "conversations[0].from: "),
        (b'{"conversations": [{"from": "human", "value": 3}]}', "conversations[0].value: 3"),
        (b'{"conversations": [{"from": "human", "value": "a"}]}', "holds no answer"),
    ],
)
def test_bad_lines_are_told_line_field_and_what_is_allowed(line: bytes, told: str) -> None:
    with pytest.raises(BadLineError) as caught:
        parse_line(7, line)
    assert str(caught.value).startswith("line 7") and told in str(caught.value)


def test_blank_lines_do_not_count_but_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\n{"a": 1}\n  \n{"b": 2}')
    assert [number for number, _ in read_lines(path)] == [2, 4]


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_lines(tmp_path / "none.jsonl"))
    path = tmp_path / "t.json"
    path.write_text('[{"prompt": "a"}]')
    with pytest.raises(InputError, match="write one object a line"):
        list(read_lines(path))
