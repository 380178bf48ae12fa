"""The plain step that is likely to follow, begun before the host has asked for it.

Knows chunks and what became of them; does not know the device. A plain step behind another step
needs nothing that the host has yet to find out: its ids are the tokens that were just chosen, by
rounds or at the ends of prompts. It is begun at once where every sequence has room, and its result
is used if the host then asks for that, or for some of its sequences. What it wrote to the cache for
others lies behind all that is valid, in blocks that were the sequence's own, and whatever is
launched later comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.records import record
from verifier_service.engines.base import CacheShape, Chunk, Verdict


@record(frozen=True, slots=True)
class Expected:
    """One sequence's next chunk, if all goes on as it is; `token` -1 while it is not known."""

    token: int
    start: int
    blocks: tuple[int, ...]
    chunk: Chunk

    def as_chunk(self) -> Chunk:
        """What the host would ask for."""
        before = self.chunk
        return Chunk(
            [self.token],
            self.start,
            before.blocks,
            0,
            True,
            before.sampling,
            sequence_ids=before.sequence_ids,
            prompt_length=before.prompt_length,
        )

    def is_met_by(self, chunk: Chunk) -> bool:
        """Whether the host asks for what was begun."""
        before = self.chunk
        return (
            chunk.start == self.start
            and chunk.ids == [self.token]
            and chunk.sampling is before.sampling
            and chunk.sequence_ids is before.sequence_ids
            and chunk.mask is None
            and tuple(chunk.blocks[: len(self.blocks)]) == self.blocks
        )


@dataclass(frozen=True, slots=True)
class Joined:
    """A prompt's chunk that was begun beside the others' next ones; `blocks` as they were."""

    chunk: Chunk
    blocks: tuple[int, ...]

    def as_chunk(self) -> Chunk:
        """What the host would ask for."""
        return self.chunk

    def is_met_by(self, chunk: Chunk) -> bool:
        """Whether the host asks for what was begun."""
        mine = self.chunk
        return (
            chunk.start == mine.start
            and chunk.sequence_ids is mine.sequence_ids
            and chunk.ids == mine.ids
            and chunk.samples == mine.samples
            and chunk.sampling is mine.sampling
            and chunk.mask is None
            and not chunk.prompt_logprobs
            and tuple(chunk.blocks[: len(self.blocks)]) == self.blocks
        )


# What a step that was begun is made of, in its order: those that go on, then those that joined.
Begun = Sequence[Expected | Joined]


@dataclass(frozen=True, slots=True)
class Served:
    """Which rows of a step that was begun are what the host asks for; None: all, in order."""

    rows: tuple[int, ...] | None = None


def serving(expected: Begun, chunks: Sequence[Chunk]) -> Served | None:
    """Whether the chunks are among what was begun, in its order: some sequences may have ended."""
    rows = []
    row = -1
    for chunk in chunks:
        row = next(
            (at for at in range(row + 1, len(expected)) if expected[at].is_met_by(chunk)), -1
        )
        if row < 0:
            return None
        rows.append(row)
    return Served(None if len(rows) == len(expected) else tuple(rows))


def with_tokens(expected: Begun, verdicts: Sequence[Verdict]) -> list[Expected | Joined]:
    """The same, once it is known what the step before has chosen, of which nobody has joined."""
    count = len(verdicts)
    going_on = [
        Expected(verdict.tokens[-1], one.start, one.blocks, one.chunk)
        for one, verdict in zip(expected[:count], verdicts, strict=True)
        if isinstance(one, Expected)
    ]
    return [*going_on, *expected[count:]]


def joined(chunks: Iterable[Chunk] | None) -> list[Joined] | None:
    """What they are where they join; None where one of them cannot: it needs more than others."""
    if chunks is None:
        return None
    found = []
    for chunk in chunks:
        if chunk.mask is not None or chunk.prompt_logprobs:
            return None
        found.append(Joined(chunk, tuple(chunk.blocks)))
    return found


def expect_blindly(
    chunks: Sequence[Chunk], cache: CacheShape, max_model_len: int
) -> list[Expected] | None:
    """The plain step behind a step without drafts whose verdicts are not known yet.

    None where a sequence has drafts, more of its prompt to read or no room, or all end. One that
    ends has a row that nobody asks for.
    """
    following = []
    ending = 0
    for chunk in chunks:
        start = chunk.start + len(chunk.ids)
        if chunk.mask is not None or chunk.drafts or not chunk.samples:
            return None
        if start >= _room(chunk, cache, max_model_len):
            return None
        ending += start + 1 - chunk.prompt_length >= chunk.sampling.max_tokens
        following.append(_expected(chunk, -1, start, cache))
    return following if ending < len(following) else None


def expect(
    chunks: Sequence[Chunk], verdicts: Sequence[Verdict], cache: CacheShape, max_model_len: int
) -> list[Expected] | None:
    """The plain step behind a step of these chunks; None where `starts_behind` has none."""
    starts = starts_behind(chunks, verdicts, cache, max_model_len)
    return None if starts is None else expected_at(starts, chunks, verdicts, cache)


def starts_behind(
    chunks: Sequence[Chunk], verdicts: Sequence[Verdict], cache: CacheShape, max_model_len: int
) -> list[int] | None:
    """Where each sequence goes on behind a step; None where one lacks room, or all end.

    A chunk may be the end of a prompt: its first token goes on as any other does. A sequence that
    ends has a row that nobody asks for.
    """
    starts = []
    ending = 0
    for chunk, verdict in zip(chunks, verdicts, strict=True):
        tokens = verdict.tokens
        if chunk.mask is not None or not tokens:
            return None
        start = chunk.start + len(chunk.ids) - chunk.drafts - 1 + len(tokens)
        if start >= _room(chunk, cache, max_model_len):
            return None
        sampling = chunk.sampling
        ending += (
            start + 1 - chunk.prompt_length >= sampling.max_tokens
            or tokens[-1] in sampling.stop_token_ids
            or (verdict.accepted > 0 and not sampling.stop_token_ids.isdisjoint(tokens))
        )
        starts.append(start)
    return starts if ending < len(starts) else None


def expected_at(
    starts: Sequence[int], chunks: Sequence[Chunk], verdicts: Sequence[Verdict], cache: CacheShape
) -> list[Expected]:
    """The plain step behind one of these chunks, that goes on from these `starts`."""
    return [
        _expected(chunk, verdict.tokens[-1], start, cache)
        for chunk, verdict, start in zip(chunks, verdicts, starts, strict=True)
    ]


def _room(chunk: Chunk, cache: CacheShape, max_model_len: int) -> int:
    return min(len(chunk.blocks) * cache.block_size, max_model_len - 1)


def _expected(chunk: Chunk, token: int, start: int, cache: CacheShape) -> Expected:
    return Expected(token, start, tuple(chunk.blocks[: start // cache.block_size + 1]), chunk)
