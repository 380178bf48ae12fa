"""What a chat may bring along: documents, and a template where the verifier trusts its clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.verifier_service.serving import answering, encode, field_of, refusal, serving
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.request_error import RequestError
from verifier_service.text import Text

MESSAGES = json.dumps([{"role": "user", "content": "a cat"}])
TEMPLATE = "{{ messages[0].content }}{% for d in documents or [] %}[{{ d.title }}]{% endfor %}"


def chat(**fields: Any) -> pb.ChatMessages:
    return pb.ChatMessages(messages_json=MESSAGES, chat_template=TEMPLATE, **fields)


def encoded(message: pb.ChatMessages) -> list[int]:
    text = Text(byte_level_tokenizer())
    return text.encode_chat(message, add_special_tokens=False, max_tokens=100)


def test_documents_reach_the_template() -> None:
    documents = json.dumps([{"title": "one"}, {"title": "two"}])
    assert encoded(chat(documents_json=documents)) == encode("a cat[one][two]")
    assert encoded(chat()) == encode("a cat")


@pytest.mark.parametrize(
    ("documents", "words"),
    [("{", "documents is not JSON"), ("[3]", "documents[0] 3"), ("{}", "an array of documents")],
)
def test_bad_documents_are_named(documents: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        encoded(chat(documents_json=documents))
    assert caught.value.field == "documents"
    assert words in caught.value.message


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('no') }}", "{{ x.y.z }}"])
def test_a_broken_template_is_the_requests_own_fault(template: str) -> None:
    with pytest.raises(RequestError, match="the request's chat template") as caught:
        encoded(pb.ChatMessages(messages_json=MESSAGES, chat_template=template))
    assert caught.value.field == "chat_template"


def test_a_template_cannot_reach_beyond_its_sandbox() -> None:
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(RequestError, match="SecurityError"):
        encoded(pb.ChatMessages(messages_json=MESSAGES, chat_template=template))


async def test_a_template_needs_a_verifier_that_trusts_it(socket_dir: Path) -> None:
    core = answering()
    async with serving(core, socket_dir) as client:
        error = await refusal(client, pb.GenerateRequest(chat=chat()))
        with pytest.raises(grpc.aio.AioRpcError):
            await client.stub.Tokenize(pb.TokenizeRequest(chat=chat()))
    assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "chat_template")
    assert "--trust-request-chat-template" in (error.details() or "")
    assert not core.submitted


async def test_a_trusted_template_is_used(socket_dir: Path) -> None:
    core = answering()
    async with serving(core, socket_dir, trust_request_chat_template=True) as client:
        await client.generate(pb.GenerateRequest(chat=chat()))
        tokens = await client.stub.Tokenize(pb.TokenizeRequest(chat=chat()))
    assert core.submitted[0].prompt_ids == list(tokens.token_ids) == encode("a cat")
