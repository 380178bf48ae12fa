"""Which parser reads an answer: by the tool choice, and by the model's notation.

Knows the parsers by name (`--tool-call-parser`).
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from gateway.tools.arrays import ArrayParser
from gateway.tools.definitions import ChoiceMode, NamedChoice, Tool, ToolChoice
from gateway.tools.events import ToolCallParser
from gateway.tools.hermes import HermesParser
from gateway.tools.llama3_json import Llama3JsonParser
from gateway.tools.mistral import MistralParser
from gateway.tools.named import NamedParser

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


class Notation(Enum):
    """How the model writes a call when nothing holds it to a form."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"


_PARSERS: Final[dict[Notation, Callable[[Sequence[str]], ToolCallParser]]] = {
    Notation.HERMES: HermesParser,
    Notation.LLAMA3_JSON: Llama3JsonParser,
    Notation.MISTRAL: MistralParser,
}


def parser_of(notation: Notation, tools: Sequence[Tool], choice: ToolChoice) -> ToolCallParser:
    """A parser for one answer. Raises ValueError where no answer may call."""
    names = [tool.name for tool in tools]
    if isinstance(choice, NamedChoice):
        return NamedParser(choice.name)
    if choice is ChoiceMode.REQUIRED:
        return ArrayParser(names)
    if choice is ChoiceMode.NONE:
        raise ValueError("tool_choice none leaves nothing to parse")
    return _PARSERS[notation](names)


def new_call_id(notation: Notation) -> str:
    """`chatcmpl-tool-…`; nine letters and digits for Mistral, whose templates take nothing else."""
    if notation is Notation.MISTRAL:
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
