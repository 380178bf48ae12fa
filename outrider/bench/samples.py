"""Prompts to be sent, and which of them, in which order.

Knows what a prompt looks like to an endpoint; does not know the files it came from.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from outrider.errors import InputError


class Backend(StrEnum):
    """Which endpoint is asked. `vllm` is another name of `openai`, as in vLLM's own command."""

    CHAT = "openai-chat"
    COMPLETIONS = "openai"
    VLLM = "vllm"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Backend.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt.

    `text` is what a completion continues; `chat_text` what a user says instead where the two
    differ; `messages` a whole conversation. `output_len` is in tokens, None: the run's own.
    """

    name: str
    text: str = ""
    chat_text: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    category: str = ""
    output_len: int | None = None

    def prompt_fields(self, backend: Backend) -> dict[str, Any]:
        """`messages` or `prompt` of the request's body. Raises InputError."""
        if backend is Backend.CHAT:
            said = self.text if self.chat_text is None else self.chat_text
            whole = [dict(message) for message in self.messages]
            return {"messages": whole or [{"role": "user", "content": said}]}
        if not self.text:
            raise InputError(
                f"--backend: {backend.value!r} cannot send {self.name}: it holds messages, not a "
                f"prompt; use --backend {Backend.CHAT.value}"
            )
        return {"prompt": self.text}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The samples of a run, in order; `repeated` tells that some are there more than once."""

    samples: tuple[Sample, ...]
    repeated: bool = False


def choose(
    samples: Sequence[Sample],
    count: int | None,
    *,
    default_count: int,
    output_len: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    oversample: bool = True,
) -> Chosen:
    """`count` samples in an order that `seed` decides; None: `default_count`, or all if fewer.

    A count above the number of samples begins anew with them, or is that number where not
    `oversample`. `output_len` overrides each sample's own.
    """
    order = list(samples)
    if shuffle:
        random.Random(seed).shuffle(order)
    wanted = min(default_count, len(order)) if count is None else count
    if not oversample:
        wanted = min(wanted, len(order))
    rounds = -(-wanted // len(order))
    taken = (order * rounds)[:wanted]
    if output_len is not None:
        taken = [replace(sample, output_len=output_len) for sample in taken]
    return Chosen(tuple(taken), repeated=wanted > len(order))
