"""Chat objects of answers that may call tools.

Knows where calls go in a chat's objects; the objects themselves are shapes.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import ChatBody
from gateway.generation import Choice
from gateway.shapes import ChatShape, Envelope, Shape
from gateway.tools.definitions import ChoiceMode, NamedChoice
from gateway.tools.parsers import Notation, new_call_id, parser_of
from gateway.tools.reader import ToolReader


class ToolChatShape:
    """A chat's objects, each choice's text read by a reader of its own."""

    def __init__(self, chat: ChatShape, new_reader: Callable[[], ToolReader]) -> None:
        self._chat = chat
        self._new_reader = new_reader
        self._readers: dict[int, ToolReader] = {}

    @property
    def with_ids(self) -> bool:
        return self._chat.with_ids

    def whole(self, envelope: Envelope, choices: Sequence[Choice]) -> dict[str, Any]:
        answer = self._chat.whole(envelope, choices)
        for choice, shown in zip(choices, answer["choices"], strict=True):
            reader = self._reader(choice)
            message = reader.message("".join(choice.texts))
            if choice.call.echo:
                message["content"] = choice.call.echo + (message["content"] or "")
            shown["message"].update(message)
            shown["finish_reason"] = reader.finish_reason(choice.finish_reason)
        return answer

    def first(self, envelope: Envelope, choice: Choice) -> dict[str, Any] | None:
        return self._chat.first(envelope, choice)

    def delta(self, envelope: Envelope, choice: Choice, delta: pb.Delta) -> dict[str, Any] | None:
        read = self._reader(choice).delta(delta.text)
        chunk = self._chat.delta(envelope, choice, delta)
        if chunk is None or (not read and not self._chat.beside_text(delta)):
            return None
        chunk["choices"][0]["delta"] = read
        return chunk

    def last(self, envelope: Envelope, choice: Choice) -> list[dict[str, Any]]:
        reader = self._reader(choice)
        chunks = self._chat.last(envelope, choice)
        rest = reader.rest()
        chunks[-1]["choices"][0]["finish_reason"] = reader.finish_reason(choice.finish_reason)
        if rest:
            chunks.insert(0, self._chat.chunk(envelope, choice, rest))
            chunks[0]["choices"][0]["finish_reason"] = None
        return chunks

    def empty(self, envelope: Envelope) -> dict[str, Any]:
        return self._chat.empty(envelope)

    def _reader(self, choice: Choice) -> ToolReader:
        index = choice.call.index
        if index not in self._readers:
            self._readers[index] = self._new_reader()
        return self._readers[index]


def chat_shape(body: ChatBody, notation: Notation, chat: ChatShape) -> Shape:
    """`chat`, reading tool calls where the answer may hold any."""
    choice = body.resolved_tool_choice
    if choice is ChoiceMode.NONE:
        return chat

    def new_reader() -> ToolReader:
        return ToolReader(
            parser_of(notation, body.tools, choice),
            partial(new_call_id, notation),
            parallel=body.may_call_in_parallel,
            named=isinstance(choice, NamedChoice),
        )

    return ToolChatShape(chat, new_reader)
