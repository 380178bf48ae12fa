"""One choice's answer with its tool calls, as OpenAI's messages and deltas tell them.

Knows OpenAI's fields; how calls are written in the text is the parser's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.tools.events import (
    Arguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Content,
    ToolCallParser,
    ToolEvent,
)

_PIECE: Final = 4096


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class ToolReader:
    """Reads one answer, streamed (`delta`, `rest`) or whole (`message`), not both.

    `new_id` gives each call its id; `parallel` False tells the first call and no further one;
    `named` says that the client chose the function, so that calling it is no decision of the
    model's: the answer then ends with `stop`, as OpenAI's and vLLM's do.
    """

    def __init__(
        self,
        parser: ToolCallParser,
        new_id: Callable[[], str],
        *,
        parallel: bool = True,
        named: bool = False,
    ) -> None:
        self._parser = parser
        self._new_id = new_id
        self._parallel = parallel
        self._named = named
        self._begun = 0
        self._ended = 0

    def delta(self, text: str) -> dict[str, Any]:
        """`content` and `tool_calls` that `text` settles; empty while all of it is held back."""
        return self._delta(self._parser.push(text))

    def rest(self) -> dict[str, Any]:
        """The delta of what was held back when the text ended."""
        return self._delta(self._parser.finish())

    def message(self, text: str) -> dict[str, Any]:
        """`content` (None where there are only calls) and `tool_calls` of the whole answer.

        A call that broke is content here, with all of its text.
        """
        contents: list[str] = []
        calls: list[_Call] = []
        for event in self._events(text):
            if isinstance(event, Content):
                contents.append(event.text)
            elif isinstance(event, CallBegan):
                calls.append(_Call(self._new_id(), event.name))
            elif isinstance(event, Arguments):
                calls[-1].arguments.append(event.text)
            elif isinstance(event, CallBroken):
                calls.pop()
                contents.append(event.raw)
        self._ended = len(calls)
        if not self._parallel:
            calls = calls[:1]
        content = "".join(contents)
        return {
            "content": content if content or not calls else None,
            "tool_calls": [call.whole() for call in calls],
        }

    def finish_reason(self, reason: str | None) -> str | None:
        """`tool_calls` in place of `stop` where the model chose to call."""
        return "tool_calls" if reason == "stop" and self._ended and not self._named else reason

    def _delta(self, events: Sequence[ToolEvent]) -> dict[str, Any]:
        contents: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            if isinstance(event, Content):
                contents.append(event.text)
            elif isinstance(event, CallBegan):
                self._begun += 1
                if self._told:
                    calls[self._index] = {
                        "index": self._index,
                        "id": self._new_id(),
                        "type": "function",
                        "function": {"name": event.name, "arguments": ""},
                    }
            elif isinstance(event, Arguments):
                if self._told:
                    more = {"index": self._index, "function": {"arguments": ""}}
                    call = calls.setdefault(self._index, more)
                    call["function"]["arguments"] += event.text
            elif isinstance(event, CallEnded):
                self._ended += 1
            elif not self._told:
                contents.append(event.raw)
        delta: dict[str, Any] = {"content": "".join(contents)} if contents else {}
        if calls:
            delta["tool_calls"] = list(calls.values())
        return delta

    def _events(self, text: str) -> Iterator[ToolEvent]:
        # Parsers cut what they read off their buffer: pieces keep long answers linear.
        for start in range(0, len(text), _PIECE):
            yield from self._parser.push(text[start : start + _PIECE])
        yield from self._parser.finish()

    @property
    def _index(self) -> int:
        return self._begun - 1

    @property
    def _told(self) -> bool:
        return self._parallel or self._begun == 1
