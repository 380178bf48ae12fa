"""Text to the ids that the verifier would see, and limits from how an answer ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.advise.fields import BadLineError
from outrider.advise.tokenizing import Tokenizing
from outrider.advise.traffic import Chat, Recorded
from outrider.errors import InputError
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer


@pytest.fixture(scope="module")
def tokenizing(tmp_path_factory: pytest.TempPathFactory) -> Tokenizing:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(folder)
    return Tokenizing(folder)


def ids(text: str) -> list[int]:
    return list(byte_level_tokenizer().encode(text, add_special_tokens=False))


def test_ids_need_no_tokenizer() -> None:
    request = Tokenizing(None).request(Recorded("line 1", (1, 2), (3, 4), salt="s"))
    assert (request.prompt_ids, request.output_ids, request.salt) == ((1, 2), (3, 4), "s")
    assert request.max_tokens is None and request.finished and not request.cached


def test_text_without_a_tokenizer_says_what_to_give() -> None:
    with pytest.raises(InputError, match="--model: the traffic holds text"):
        Tokenizing(None).request(Recorded("line 1", "a", "b"))


def test_text_becomes_the_targets_ids(tokenizing: Tokenizing) -> None:
    request = tokenizing.request(Recorded("line 1", "the cat", " sat"))
    assert (list(request.prompt_ids), list(request.output_ids)) == (ids("the cat"), ids(" sat"))


def test_messages_go_through_the_chat_template(tokenizing: Tokenizing) -> None:
    chat = Chat(json.dumps([{"role": "user", "content": "hi"}]))
    request = tokenizing.request(Recorded("line 1", chat, "yes"))
    rendered = "<|start|>user\nhi<|end|><|start|>assistant\n"
    assert list(request.prompt_ids) == ids(rendered)


def test_messages_that_the_template_refuses_are_a_bad_line(tokenizing: Tokenizing) -> None:
    chat = Chat(json.dumps([{"role": "elf", "content": "hi"}]))
    with pytest.raises(BadLineError, match=r"line 4: .*role elf is unknown"):
        tokenizing.request(Recorded("line 4", chat, "yes"))


@pytest.mark.parametrize(
    ("finish_reason", "stop_string", "ends"),
    [("stop", False, True), ("stop", True, False), ("length", False, False), ("", False, False)],
)
def test_the_end_token_that_texts_do_not_show(
    tokenizing: Tokenizing, finish_reason: str, stop_string: bool, ends: bool
) -> None:
    recorded = Recorded("line 1", "a", "b", finish_reason, stop_string)
    output = list(tokenizing.request(recorded).output_ids)
    assert output == ids("b") + ([tokenizing.text.eos_token_id] if ends else [])


def test_recorded_ids_are_never_added_to(tokenizing: Tokenizing) -> None:
    assert tokenizing.request(Recorded("line 1", (1,), (2,), "stop")).output_ids == (2,)


@pytest.mark.parametrize(
    ("recorded", "limit"),
    [
        (Recorded("", (1,), (2, 3)), None),
        (Recorded("", (1,), (2, 3), "length"), 2),
        (Recorded("", (1,), (2, 3), "stop", max_tokens=9), 9),
        (Recorded("", (1,), (2, 3), max_tokens=1), None),
    ],
)
def test_the_limit_that_bounded_the_drafts(recorded: Recorded, limit: int | None) -> None:
    assert Tokenizing(None).request(recorded).max_tokens == limit


def test_an_answer_whose_client_left_is_not_remembered() -> None:
    assert not Tokenizing(None).request(Recorded("", (1,), (2,), "abort")).finished


@pytest.mark.parametrize(("cached", "whole"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_prompt_counts_as_cached_when_one_id_is_left(cached: int, whole: bool) -> None:
    recorded = Recorded("", (1, 2, 3), (4,), cached_prompt_tokens=cached)
    assert Tokenizing(None).request(recorded).cached is whole


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (Recorded("line 2", "", "b"), "line 2: prompt: it has no tokens"),
        (Recorded("line 2", (1,), None), "line 2: no output; give output"),
    ],
)
def test_what_cannot_be_replayed_is_a_bad_line(
    tokenizing: Tokenizing, recorded: Recorded, told: str
) -> None:
    with pytest.raises(BadLineError) as caught:
        tokenizing.request(recorded)
    assert told in str(caught.value)


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer can be read"):
        Tokenizing(tmp_path).request(Recorded("line 1", "a", "b"))
