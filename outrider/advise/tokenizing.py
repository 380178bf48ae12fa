"""Recorded requests to token ids, by the target's tokenizer where the file holds text.

Knows the verifier's own text side, so that ids are those the verifier would see; loads nothing
until the first text appears: ids in the file need no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.advise.fields import BadLineError
from outrider.advise.spool import TrafficRequest
from outrider.advise.traffic import Chat, Recorded
from outrider.errors import InputError

if TYPE_CHECKING:
    from verifier_service.text import Text


class Tokenizing:
    """`model` is the folder of the target's tokenizer, None where only ids are expected."""

    def __init__(self, model: Path | None) -> None:
        self.model = model
        self._text: Text | None = None

    @property
    def text(self) -> Text:
        """The tokenizer. Raises InputError where there is none."""
        if self._text is None:
            if self.model is None:
                raise InputError(
                    "--model: the traffic holds text; name the target's model folder (or give "
                    "prompt_token_ids and output_token_ids in each line)"
                )
            # Importing a tokenizer takes seconds, which traffic of ids need not pay.
            from verifier_service.text import Text

            self._text = Text.load(self.model)
        return self._text

    def request(self, recorded: Recorded) -> TrafficRequest:
        """The request as it is replayed; its output must be there.

        Raises BadLineError where the chat template refuses the messages, InputError without a
        tokenizer.
        """
        prompt_ids = self._prompt(recorded)
        if not prompt_ids:
            raise BadLineError(
                f"{recorded.where}: prompt: it has no tokens; at least one is needed"
            )
        output_ids = self._output(recorded)
        limit = recorded.max_tokens
        if recorded.finish_reason == "length":
            limit = len(output_ids)
        elif limit is not None and len(output_ids) > limit:
            # Text cut into other tokens than the target had: the limit was not its.
            limit = None
        return TrafficRequest(
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            max_tokens=limit or None,
            salt=recorded.salt,
            finished=recorded.finish_reason != "abort",
            cached=0 < len(prompt_ids) - 1 <= recorded.cached_prompt_tokens,
        )

    def _prompt(self, recorded: Recorded) -> Sequence[int]:
        prompt = recorded.prompt
        if isinstance(prompt, str):
            return self.text.encode(prompt, add_special_tokens=True)
        if not isinstance(prompt, Chat):
            return prompt
        text = self.text
        from speculation.v1 import verifier_pb2

        from verifier_service.request_error import RequestError

        chat = verifier_pb2.ChatMessages(
            messages_json=prompt.messages_json,
            tools_json=prompt.tools_json,
            add_generation_prompt=True,
        )
        try:
            return text.encode_chat(chat, add_special_tokens=False, max_tokens=2**31)
        except RequestError as error:
            raise BadLineError(f"{recorded.where}: {error}") from error

    def _output(self, recorded: Recorded) -> Sequence[int]:
        output = recorded.output
        if output is None:
            raise BadLineError(
                f"{recorded.where}: no output; give output, output_token_ids or response, or --url "
                "of a server that generates it"
            )
        if not isinstance(output, str):
            return output
        ids = self.text.encode(output, add_special_tokens=False)
        end = self.text.eos_token_id
        if recorded.finish_reason == "stop" and not recorded.stop_string and end is not None:
            # The target emitted it too, and drafts of it are accepted; texts do not show it.
            ids.append(end)
        return ids
