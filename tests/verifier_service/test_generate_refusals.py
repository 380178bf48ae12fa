"""Generate: what is refused, with which status, in which words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from speculation.v1 import verifier_pb2 as pb

from tests.verifier_service.serving import (
    ANSWER,
    answering,
    field_of,
    metadata_of,
    refusal,
    request,
    serving,
    until,
)


async def test_a_refusal_names_the_field_in_text_and_metadata(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request(temperature=3))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "temperature 3 is not allowed: it must be from 0 to 2"
        assert field_of(error) == "temperature"
        error = await refusal(client, pb.GenerateRequest())
        assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")
        error = await refusal(client, request(""))
        assert field_of(error) == "prompt"
        error = await refusal(client, pb.GenerateRequest(chat=pb.ChatMessages(messages_json="[")))
        assert field_of(error) == "messages"
        error = await refusal(client, pb.GenerateRequest(text="a", model="other"))
        assert (error.code(), field_of(error)) == (grpc.StatusCode.NOT_FOUND, "model")
    assert client.core.submitted == []


async def test_a_prompt_far_too_long_is_refused_before_tokenizing(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request("a" * 8_000_000))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "8000000 characters" in (error.details() or "")
    assert metadata_of(error)["outrider-code"] == "context_length_exceeded"


async def test_a_message_over_the_size_limit_harms_nobody_else(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request("a" * (33 * 1024 * 1024)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.generate(request())).text == ANSWER


async def test_a_running_request_id_cannot_be_used_twice(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    message = request()
    message.request_id = "mine"
    async with serving(core, socket_dir) as client:
        first = asyncio.create_task(client.generate(message))
        await until(lambda: len(core.submitted) == 1)
        error = await refusal(client, message)
        assert field_of(error) == "request_id"
        core.step(100)
        reply = await first
        assert reply.started is not None and reply.started.request_id == "mine"
        assert (await client.generate(message)).text == ANSWER


async def test_a_full_queue_is_resource_exhausted(socket_dir: Path) -> None:
    core = answering()
    core.full = True
    async with serving(core, socket_dir) as client:
        error = await refusal(client, request())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "try again later" in (error.details() or "")
