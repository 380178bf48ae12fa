"""What a soak's requests talk about: prompts, and formats with a check of what matches them.

Knows no fields. Prompts repeat themselves, so that proposers have something to find. The formats'
literals contain none of `BAD_WORDS`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROMPTS = (
    "The ferry leaves at nine. The ferry returns at noon. The ferry leaves at",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "List three rivers, then list three rivers again:\n1. Elbe\n2. Oder\n3.",
    "A recipe for soup: one onion, two carrots, one onion, two carrots,",
    "Übersetze: „Das Boot fährt ab.“ Das Boot fährt",
    "x = 1; x = x + 1; x = x + 1; x = x",
    "the cat sat on the mat the cat sat on the",
    "東京から大阪まで、東京から",
    "Q: How many legs has a spider?\nA:",
    "🚲 bicycles and 🚂 trains, 🚲 bicycles and",
)
PARAGRAPH = (
    "The harbour opens before dawn. Crates of oranges are counted, weighed and stacked by the "
    "gate; crates of lemons follow. At noon the crane rests and the gulls take over the quay. "
)
SYSTEM = "You are a lighthouse keeper. Answer in few words."
REPLIES = ("Nine o'clock.", "It is three.", "Certainly:\n\n```python\nreturn 1\n```")
STOPS = ("\n\n", "the", "e ", ".", "END", "```", "qu")
BAD_WORDS = ("harbour", "oranges", "gulls", "crane", "ferry")
SALTS = ("tenant-a", "tenant-b", "tenant-c")

Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Format:
    """What `structured_outputs` asks for, and whether a whole text obeys it."""

    field: str
    value: Any
    matches: Matches


def long_text(rng: random.Random, characters: int) -> str:
    """At most `characters` long; no two are alike."""
    parts: list[str] = []
    length = 0
    while True:
        part = f"{rng.randrange(1000)}. {PARAGRAPH}"
        length += len(part)
        if length > characters:
            return "".join(parts) or PARAGRAPH[:characters]
        parts.append(part)


def json_schema(rng: random.Random) -> Format:
    """A small object. One property has a new name each time: a compiler's cache must be bounded."""
    own = f"p{rng.randrange(10_000)}"
    schema = {
        "type": "object",
        "properties": {
            own: {"type": "integer", "minimum": 0, "maximum": 99},
            "side": {"enum": ["left", "right"]},
        },
        "required": [own, "side"],
        "additionalProperties": False,
    }

    def matches(text: str) -> bool:
        value = loaded(text)
        if not isinstance(value, dict) or set(value) != {own, "side"}:
            return False
        number = value[own]
        return type(number) is int and 0 <= number <= 99 and value["side"] in ("left", "right")

    return Format("json", schema, matches)


def json_object(rng: random.Random) -> Format:
    return Format("json_object", True, lambda text: isinstance(loaded(text), dict))


def regex(rng: random.Random) -> Format:
    digits = rng.randint(1, 4)
    pattern = rf"[A-F]{{{digits}}}-[0-9]{{{digits}}}"
    return Format("regex", pattern, lambda text: re.fullmatch(pattern, text) is not None)


def choice(rng: random.Random) -> Format:
    options = rng.sample(["north", "north-east", "south", "west wind", "östlich", "42"], 3)
    return Format("choice", options, lambda text: text in options)


def grammar(rng: random.Random) -> Format:
    """Sums of small numbers in GBNF."""
    text = 'root ::= number (" + " number)*\nnumber ::= [1-9] [0-9]?\n'
    pattern = r"[1-9][0-9]?( \+ [1-9][0-9]?)*"
    return Format("grammar", text, lambda answer: re.fullmatch(pattern, answer) is not None)


FORMATS: tuple[Callable[[random.Random], Format], ...] = (
    json_schema,
    json_object,
    regex,
    choice,
    grammar,
)


def tool(name: str) -> dict[str, Any]:
    """A function tool with one required parameter."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks up {name}.",
            "parameters": {
                "type": "object",
                "properties": {"harbor": {"enum": ["kiel", "bari"]}},
                "required": ["harbor"],
                "additionalProperties": False,
            },
        },
    }


def tool_arguments_match(text: str) -> bool:
    """Whether `text` is what a `tool` takes."""
    value = loaded(text)
    return isinstance(value, dict) and value in ({"harbor": "kiel"}, {"harbor": "bari"})


def loaded(text: str) -> object:
    """The JSON value of a text; None for what is not JSON (and for null)."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value
