"""One streamed answer, read event by event.

Knows the stream objects of OpenAI's two generation endpoints and vLLM's additions; does not know
how they travel. Times come from the caller's clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.bench.drafts import DraftCounts, from_response
from outrider.bench.records import Arrival, CountedBy, Record
from outrider.config import shorten

_MESSAGE_LIMIT = 200


@dataclass(slots=True)
class Reading:
    """Give each event to `event` and the end to `record`."""

    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    drafts: DraftCounts | None = None
    running_usage: bool = False
    final_usage: bool = False
    token_ids: bool = False
    fingerprint: str = ""
    _arrivals: list[Arrival] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _counted: int = 0
    _told: int = 0

    def event(self, at: float, event: Mapping[str, Any]) -> None:
        """Take in one stream object that came at `at`."""
        if event.get("error"):
            self.error = error_message(event)
            return
        choices = event.get("choices") or []
        ids, text = 0, ""
        for choice in choices:
            ids += len(choice.get("token_ids") or [])
            text += _text_of(choice)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._text.append(text)
        self.token_ids = self.token_ids or ids > 0
        self.fingerprint = event.get("system_fingerprint") or self.fingerprint
        usage = event.get("usage")
        new = 1 if text else 0
        if isinstance(usage, Mapping):
            told = int(usage.get("completion_tokens") or 0)
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self._told = max(self._told, told)
            if choices:
                self.running_usage = True
            else:
                self.final_usage = True
        if self.token_ids:
            new = ids
        elif self.running_usage:
            # Also in the last chunk: what had no text of its own is counted there.
            new = self._told - self._counted
        if new > 0:
            self._arrivals.append(Arrival(at, new))
            self._counted += new
        told_drafts = from_response(event.get("metrics"))
        if told_drafts is not None:
            self.drafts = told_drafts

    @property
    def counted_by(self) -> CountedBy:
        if self.token_ids:
            return CountedBy.TOKEN_IDS
        if self.running_usage:
            return CountedBy.RUNNING_USAGE
        return CountedBy.FINAL_USAGE if self.final_usage else CountedBy.CHUNKS

    def record(self, index: int, sample: str, sent: float, *, closed: bool) -> Record:
        """What was observed. `closed` tells that the server itself said that this was all."""
        error = self.error
        if not error and not closed and not self.finish_reason:
            error = "the stream ended before the answer did"
        elif not error and not self._arrivals:
            error = "the answer holds no token"
        by_usage = self.counted_by is CountedBy.FINAL_USAGE
        return Record(
            index=index,
            sample=sample,
            sent=sent,
            arrivals=tuple(self._arrivals),
            output_tokens=self._told if by_usage else self._counted,
            prompt_tokens=self.prompt_tokens,
            counted_by=self.counted_by,
            drafts=self.drafts,
            text_digest=hashlib.sha256("".join(self._text).encode()).hexdigest()[:16],
            finish_reason=self.finish_reason,
            error=error,
        )


def error_message(body: object) -> str:
    """The message of an error object, whoever's form it has, on one line."""
    found: object = body
    for key in ("error", "detail", "message"):
        if isinstance(found, Mapping) and found.get(key):
            found = found[key]
    return shorten(" ".join(str(found).split()), _MESSAGE_LIMIT)


def _text_of(choice: Mapping[str, Any]) -> str:
    """All that a choice's chunk says: text, reasoning, tool calls."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return choice.get("text") or ""
    parts = [delta.get(key) or "" for key in ("reasoning_content", "reasoning", "content")]
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        parts += [function.get("name") or "", function.get("arguments") or ""]
    return "".join(parts)
