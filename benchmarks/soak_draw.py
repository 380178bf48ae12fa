"""A soak's request: where it goes, what it must fit, and how it is put together.

Knows no kinds of request (soak_kinds.py) and sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from benchmarks.soak_texts import PROMPTS, REPLIES, Matches

# Prompts, templates and answers of every kind fit into this many tokens, one a character at worst.
MIN_MODEL_LEN = 1024


class Place(Enum):
    """Transport and endpoint of a request."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    GRPC_TEXT = "grpc text"
    GRPC_CHAT = "grpc chat"

    @property
    def is_grpc(self) -> bool:
        return self in (Place.GRPC_TEXT, Place.GRPC_CHAT)

    @property
    def is_chat(self) -> bool:
        return self in (Place.CHAT, Place.GRPC_CHAT)

    @property
    def generates(self) -> bool:
        return self not in (Place.TOKENIZE, Place.DETOKENIZE)


@dataclass(frozen=True, slots=True)
class Facts:
    """What requests must fit; from the verifier's GetInfo.

    `num_speculative_tokens` is the ceiling K, `proposers` are the names a request may ask for.
    """

    model: str
    vocab_size: int
    max_model_len: int
    num_speculative_tokens: int
    proposers: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.max_model_len < MIN_MODEL_LEN:
            raise ValueError(
                f"max_model_len {self.max_model_len}: a soak needs at least {MIN_MODEL_LEN}"
            )
        if not self.proposers or self.num_speculative_tokens < 1:
            raise ValueError("proposers: a soak needs at least one, and K of at least 1")


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request. `body` is the HTTP body, for gRPC too (soak_grpc.py translates it).

    `cancel_after` is after how many chunks the client leaves, None to stay; `refused` is the
    parameter a 400 must name, None where the request is valid ("" for one that names none).
    `matches` judges a whole text where a format was asked for.
    """

    number: int
    place: Place
    body: Mapping[str, Any]
    kinds: tuple[str, ...]
    cancel_after: int | None = None
    refused: str | None = None
    matches: Matches | None = None

    @property
    def stream(self) -> bool:
        return self.place.is_grpc or bool(self.body.get("stream"))

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "place": self.place.value,
            "kinds": list(self.kinds),
            "cancel_after": self.cancel_after,
            "refused": self.refused,
            "body": dict(self.body),
        }


@dataclass(slots=True)
class Draw:
    """A request being put together; kinds read and change `body`."""

    rng: random.Random
    facts: Facts
    place: Place
    max_tokens: int
    body: dict[str, Any] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    matches: Matches | None = None

    @property
    def room(self) -> int:
        """Tokens that a prompt may have, with a margin for the template and tools."""
        return self.facts.max_model_len - self.max_tokens - 512

    def token_ids(self, count: int) -> list[int]:
        """Random ids in which stretches come again."""
        stretch = [self.rng.randrange(self.facts.vocab_size) for _ in range(min(count, 12))]
        ids = (stretch * (count // len(stretch) + 1))[:count]
        ids[self.rng.randrange(count)] = self.rng.randrange(self.facts.vocab_size)
        return ids


def begin(rng: random.Random, facts: Facts, place: Place) -> Draw:
    """A small valid request at `place`."""
    draw = Draw(rng, facts, place, max_tokens=rng.choice((1, 2, 5, 16, 24, 32, 48)))
    body = draw.body
    if place is Place.DETOKENIZE:
        body["tokens"] = draw.token_ids(rng.randint(1, 40))
    elif place.is_chat:
        body["messages"] = messages(rng)
    else:
        body["prompt"] = rng.choice(PROMPTS)
    if place.generates:
        field_name = "max_tokens"
        if place is Place.CHAT and rng.random() < 0.5:
            field_name = "max_completion_tokens"
        body[field_name] = draw.max_tokens
    if rng.random() < 0.5:
        body["model"] = facts.model
    return draw


def messages(rng: random.Random) -> list[dict[str, Any]]:
    """A conversation of one or two turns, the user's last."""
    said: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        said += [
            {"role": "user", "content": rng.choice(PROMPTS)},
            {"role": "assistant", "content": rng.choice(REPLIES)},
        ]
    content: Any = rng.choice(PROMPTS)
    if rng.random() < 0.2:
        content = [{"type": "text", "text": content}, {"type": "text", "text": "Go on."}]
    return [*said, {"role": "user", "content": content}]
