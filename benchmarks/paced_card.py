"""A card that computes nothing: recorded answers in the time that a card's steps were seen to take.

Knows how a device works on its own: a step ends when it ends, whatever the host does, and one that
was begun ahead begins when the one before it has ended. Answers are those of `recorded`; behind
their ends they go on with made-up tokens. `scale` times slower than the card, so that a host of few
cores is to it what a larger one is to the card.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from verifier_service.engines.base import (
    CacheShape,
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.engines.buckets import PromptBuckets
from verifier_service.engines.run_ahead import (
    Begun,
    expect,
    expect_blindly,
    joined,
    serving,
    with_tokens,
)
from verifier_service.messages import ModelInfo

BLOCK_SIZE = 256
_MADE_UP, _STRIDE, _IDS = 1000, 7919, 20_000


@dataclass(frozen=True, slots=True)
class CardTimes:
    """Seconds of a step: by sequences, of each further token of theirs, of a prompt's token."""

    sequences: tuple[int, ...] = (1, 8, 32, 128)
    plain: tuple[float, ...] = (4.40e-3, 4.59e-3, 5.29e-3, 7.40e-3)
    further: tuple[float, ...] = (26e-6, 17.5e-6, 10.7e-6, 16.6e-6)
    # Of the first so many of a step, beside weights that are read anyway; then of the others.
    prompt: tuple[float, float] = (13.5e-6, 21.5e-6)
    prompts: int = 512
    # Shapes that are captured: a step with prompts takes what its shape does, padding included.
    shapes: PromptBuckets = field(default_factory=lambda: PromptBuckets(128, 8, 2048))
    # From a step's end to the next one's begin, where the host has nothing else to do.
    launch: float = 0.1e-3
    # What the host takes to launch a step that is not captured, operator by operator.
    uncaptured: float = 25e-3

    def seconds(self, sequences: int, tokens: int, prompt_tokens: int) -> float:
        plain = float(np.interp(sequences, self.sequences, self.plain))
        further = float(np.interp(sequences, self.sequences, self.further))
        if prompt_tokens:
            rows = tokens + prompt_tokens
            shape = self.shapes.find(max(sequences, 1), rows)
            prompt_tokens += 0 if shape is None else shape.tokens - rows
        cheap = min(prompt_tokens, self.prompts)
        prompts = cheap * self.prompt[0] + (prompt_tokens - cheap) * self.prompt[1]
        return plain + (tokens - sequences) * further + prompts


class PacedCard:
    """An `Engine`; `recorded` are whole texts, (prompt ids, answer ids) each."""

    def __init__(
        self,
        recorded: Iterable[tuple[Sequence[int], Sequence[int]]],
        sequences: int,
        scale: float,
        *,
        vocabulary: int,
        max_model_len: int,
        times: CardTimes | None = None,
    ) -> None:
        self._texts = {tuple(prompt): [*prompt, *answer] for prompt, answer in recorded}
        self._known: dict[int, tuple[Sequence[int], list[int]]] = {}
        self._times = times or CardTimes()
        self._scale = scale
        self._shape = CacheShape(sequences * max_model_len // BLOCK_SIZE, BLOCK_SIZE)
        self._model = ModelInfo("paced", vocabulary, max_model_len, (), "paced", "none", "none")
        self._ahead: tuple[Begun, float] | None = None
        # When the device has done all it was given, and for how long it has worked.
        self._free = 0.0
        self._busy = 0.0

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def cache(self) -> CacheShape:
        return self._shape

    def device_busy_s(self) -> float | None:
        return self._busy

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return

    def close(self) -> None:
        return

    def step_seconds(self, sequences: int, tokens: int, prompt_tokens: int = 0) -> float:
        """What such a step takes here."""
        return self._scale * self._times.seconds(sequences, tokens, prompt_tokens)

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        rounds = [chunk for chunk in chunks if len(chunk.ids) == chunk.drafts + 1]
        prompts = sum(len(chunk.ids) for chunk in chunks) - sum(len(c.ids) for c in rounds)
        ahead, self._ahead = self._ahead, None
        ends = None if ahead is None else _end_of(ahead, chunks)
        if ends is not None:
            prompts = 0
        elif ahead is not None and rounds:
            ends = _end_of(ahead, rounds)
        if ends is None:
            tokens = sum(len(chunk.ids) for chunk in rounds)
            ends = self._begin(self.step_seconds(len(rounds), tokens, prompts))
        elif prompts:
            # Rounds that were begun are not computed again; prompts read all weights once more.
            ends = self._begin(self.step_seconds(0, 0, prompts))
        limit = self._model.max_model_len
        blindly = self._expect_blindly(chunks, joining) if sure else None
        following_ends = 0.0
        if blindly is not None:
            read = sum(len(one.chunk.ids) for one in blindly[len(chunks) :])
            following_ends = self._begin(self.step_seconds(len(chunks), len(chunks), read))
        if prompts and self._times.shapes.find(len(chunks), len(rounds) + prompts) is None:
            time.sleep(self._scale * self._times.uncaptured)
        meanwhile()
        time.sleep(max(ends - time.perf_counter(), 0.0))
        verdicts = [self._verdict(chunk) if chunk.samples else None for chunk in chunks]
        told = [verdict for verdict in verdicts if verdict is not None]
        if goes_on is None or len(told) < len(verdicts):
            return verdicts
        if blindly is not None:
            if goes_on(told):
                self._ahead = with_tokens(blindly, told), following_ends
            return verdicts
        following = expect(chunks, told, self._shape, limit)
        if following is not None and goes_on(told):
            new = joined(joining())
            if new is not None:
                read = sum(len(one.chunk.ids) for one in new)
                ends = self._begin(self.step_seconds(len(chunks), len(chunks), read))
                self._ahead = [*following, *new], ends
        return verdicts

    def _expect_blindly(self, chunks: list[Chunk], joining: Joining) -> Begun | None:
        following = expect_blindly(chunks, self._shape, self._model.max_model_len)
        if following is None:
            return None
        new = joined(joining())
        return None if new is None else [*following, *new]

    def _begin(self, seconds: float) -> float:
        now = time.perf_counter()
        # Work that is queued begins at once; else the host has to launch it.
        begins = max(now + self._scale * self._times.launch, self._free)
        self._free = begins + seconds
        self._busy += seconds
        return self._free

    def _verdict(self, chunk: Chunk) -> Verdict:
        text = self._text(chunk)
        at = chunk.start + len(chunk.ids) - chunk.drafts
        drafts = chunk.ids[len(chunk.ids) - chunk.drafts :]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == _token(text, at + accepted):
            accepted += 1
        return Verdict(accepted, [_token(text, at + index) for index in range(accepted + 1)])

    def _text(self, chunk: Chunk) -> list[int]:
        key = id(chunk.sequence_ids)
        known = self._known.get(key)
        if known is None or known[0] is not chunk.sequence_ids:
            prompt = tuple(chunk.sequence_ids[: chunk.prompt_length])
            if prompt not in self._texts:
                raise ValueError(f"a prompt of {len(prompt)} ids that has no recorded answer")
            known = self._known[key] = chunk.sequence_ids, self._texts[prompt]
        return known[1]


def _end_of(ahead: tuple[Begun, float], chunks: Sequence[Chunk]) -> float | None:
    """When the step that was begun ends, if it is what is asked for."""
    return ahead[1] if serving(ahead[0], chunks) is not None else None


def _token(text: Sequence[int], position: int) -> int:
    return text[position] if position < len(text) else _MADE_UP + position * _STRIDE % _IDS
