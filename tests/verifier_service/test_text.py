from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from speculation.v1 import verifier_pb2 as pb

from outrider.errors import InputError
from outrider.vocabulary import fingerprint
from tests.verifier_service.tokenizers_for_tests import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)
from verifier_service.request_error import RequestError
from verifier_service.text import Text

USER = {"role": "user", "content": "a cat"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(byte_level_tokenizer())


def chat(messages: Any, **options: Any) -> pb.ChatMessages:
    raw = messages if isinstance(messages, str) else json.dumps(messages)
    return pb.ChatMessages(messages_json=raw, **options)


def rendered(text: Text, message: pb.ChatMessages) -> str:
    ids = text.encode_chat(message, add_special_tokens=False, max_tokens=1000)
    return text.decode(ids, skip_special_tokens=False)


def refused(text: Text, message: pb.ChatMessages, field: str = "messages") -> str:
    with pytest.raises(RequestError) as caught:
        text.encode_chat(message, add_special_tokens=False, max_tokens=1000)
    assert caught.value.field == field
    return caught.value.message


def test_a_folder_gives_the_same_text(tmp_path: Path, text: Text) -> None:
    byte_level_tokenizer().save_pretrained(tmp_path)
    loaded = Text.load(tmp_path)
    assert loaded.fingerprint == text.fingerprint
    assert loaded.encode("the cat 🙂", add_special_tokens=True) == text.encode(
        "the cat 🙂", add_special_tokens=True
    )
    assert rendered(loaded, chat([USER])) == rendered(text, chat([USER]))


def test_a_folder_without_a_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer can be read from"):
        Text.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{broken")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer can be read from") as caught:
        Text.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_is_the_vocabularys(text: Text) -> None:
    assert text.fingerprint == fingerprint(byte_level_tokenizer().get_vocab())
    assert text.fingerprint != Text(byte_fallback_tokenizer()).fingerprint


def test_decoding_skips_special_tokens_only_when_asked(text: Text) -> None:
    ids = text.encode("<|start|>a cat<|end|>", add_special_tokens=False)
    assert text.decode(ids, skip_special_tokens=True) == "a cat"
    assert text.decode(ids, skip_special_tokens=False) == "<|start|>a cat<|end|>"
    assert text.decode([], skip_special_tokens=True) == ""


def test_token_strings_are_the_vocabularys_spelling(text: Text) -> None:
    ids = text.encode("a <tool call>", add_special_tokens=False)
    strings = text.token_strings(ids)
    assert strings[0] == "a" and strings[-1] == "<tool call>"
    assert text.token_strings([10_000]) == [""]


def test_a_chat_is_rendered_by_the_models_template(text: Text) -> None:
    assert (
        rendered(text, chat([USER], add_generation_prompt=True))
        == "<|start|>user\na cat<|end|><|start|>assistant\n"
    )


def test_the_final_message_can_be_continued(text: Text) -> None:
    messages = [USER, {"role": "assistant", "content": "on the"}]
    assert rendered(text, chat(messages, continue_final_message=True)).endswith("\non the")
    both = chat(messages, continue_final_message=True, add_generation_prompt=True)
    assert "continue_final_message" in refused(text, both, "continue_final_message")


def test_tools_and_variables_reach_the_template(text: Text) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "f"}}])
    variables = json.dumps({"mood": "calm"})
    assert rendered(text, chat([USER], tools_json=tools, template_kwargs_json=variables)).endswith(
        "TOOLS1calm"
    )


def test_text_parts_are_joined(text: Text) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "cat"}]
    assert "\na\ncat<|end|>" in rendered(text, chat([{"role": "user", "content": parts}]))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("{", "messages is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ({"role": "user"}, "is not an array of messages"),
        ([], "messages [] is empty"),
        (["hi"], 'messages[0] "hi" is not an object'),
        ([{"content": "x"}], "messages[0].role null"),
        ([USER, {"role": 3, "content": "x"}], "messages[1].role 3"),
        ([{"role": "user"}], "messages[0].content is missing"),
        ([{"role": "user", "content": 3}], "messages[0].content 3"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            'messages[0].content[0] of type "image_url" is not supported',
        ),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ],
)
def test_bad_messages_are_named(text: Text, messages: Any, says: str) -> None:
    assert says in refused(text, chat(messages))


def test_what_the_template_refuses_is_told_in_its_words(text: Text) -> None:
    message = refused(text, chat([{"role": "robot", "content": "x"}]))
    assert "role robot is unknown" in message


def test_what_breaks_the_template_is_told_without_a_traceback(text: Text) -> None:
    broken: Any = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    message = refused(text, chat(broken))
    assert "do not fit the model's chat template: UndefinedError" in message
    assert "Traceback" not in message and "\n" not in message


def test_bad_tools_are_named(text: Text) -> None:
    assert "tools is not JSON" in refused(text, chat([USER], tools_json="{"), "tools")
    assert "tools[0] 3" in refused(text, chat([USER], tools_json="[3]"), "tools")


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "conversation"])
def test_template_variables_cannot_replace_the_template(text: Text, name: str) -> None:
    message = chat([USER], template_kwargs_json=json.dumps({name: "x"}))
    assert f"chat_template_kwargs.{name} cannot be set" in refused(
        text, message, "chat_template_kwargs"
    )


def test_a_model_without_a_template_says_so() -> None:
    plain = Text(byte_fallback_tokenizer())
    assert "no chat template" in refused(plain, chat([USER]))


def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(text: Text) -> None:
    text.check_size("x" * 1000, "prompt", 1000)
    with pytest.raises(RequestError, match="100000 characters") as caught:
        text.check_size("x" * 100_000, "prompt", 1000)
    assert caught.value.code == "context_length_exceeded"
    long = chat([{"role": "user", "content": "x" * 100_000}])
    assert "characters" in refused(text, long)


@pytest.mark.model
def test_the_real_tokenizer_streams_what_it_decodes(smollm2: Path) -> None:
    text = Text.load(smollm2)
    sample = "Ünïcode 東京 🙂🏽 'quotes'\n\tdef f(x): return x ** 2 <|im_end|> café\u0301"
    ids = text.encode(sample, add_special_tokens=False)
    # Every id of the vocabulary in an order that splits characters everywhere.
    ids += [(i * 7919) % 49152 for i in range(20_000)]
    for skip in (True, False):
        detokenizer = text.detokenizer(skip_special_tokens=skip)
        pieces = [detokenizer.push([i]) for i in ids]
        streamed = "".join(pieces) + detokenizer.finish()
        assert streamed == text._tokenizer.decode(ids, skip_special_tokens=skip)
    assert text.decode(
        text.encode(sample, add_special_tokens=False), skip_special_tokens=False
    ) == (sample)
