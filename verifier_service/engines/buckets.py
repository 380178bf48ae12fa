"""Which shapes of a step are captured once and replayed: by sequences and tokens.

Knows numbers only. A step of n sequences with m tokens runs in the smallest bucket that holds both;
what is left over is padding that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

# Tokens of a sequence that get a bucket of their own, as far as the longest draft allows.
_QUERIES = (1, 2, 3, 5, 9, 17, 33)
# A single token is a case of its own for compilers and kernels, and rounds differently: no bucket
# has fewer than two sequences.
_FEWEST = 2
# Tokens of a captured prefill. Fewer than the first cost the device what the first does, and many
# more take the device longer than it takes the host to launch their operators one by one.
_PROMPT_TOKENS = (
    *(64, 128, 192, 256, 384, 512, 640, 768, 896, 1024),
    *(1152, 1280, 1408, 1536, 1792, 2048),
)
# Attention looks at every sequence that a bucket has room for, so there are some for few.
_PROMPT_SEQUENCES = (8, 32, 128)
# The most rows of a captured prefill that choose a token.
_PROMPT_ROWS = 256


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A captured shape. `query` is the most tokens that one sequence may have in it.

    Where it is 1 every sequence, padding too, has exactly one token; where it is more, sequences
    have any number up to it and padding sequences have none. With `rows` no more than so many
    tokens have logits, and sequences at most `listed_drafts` drafts; without, all tokens have, and
    all but a sequence's first may be drafts.
    """

    sequences: int
    tokens: int
    query: int
    rows: int = 0
    listed_drafts: int = 0

    @property
    def most_drafts(self) -> int:
        """Drafts that one sequence may have."""
        return self.listed_drafts if self.rows else self.query - 1


class Shapes(Protocol):
    """Buckets, and which one a step runs in."""

    def __iter__(self) -> Iterator[Bucket]:
        """Largest first, so that the memory of one serves the next."""

    def __len__(self) -> int: ...

    def find(self, sequences: int, tokens: int, rows: int = 0) -> Bucket | None:
        """The smallest bucket for `sequences` that have `tokens` tokens together, if any.

        `rows` of the tokens need logits, where a bucket does not give them to all.
        """


class Buckets:
    """All buckets for at most `max_sequences` of at most `max_query` tokens each.

    None holds more than `max_tokens` tokens, but for those of one token a sequence.
    """

    def __init__(self, max_sequences: int, max_query: int, max_tokens: int) -> None:
        if max_sequences < 1 or max_query < 1:
            raise ValueError(
                f"buckets for {max_sequences} sequences of {max_query} tokens: both must be 1 or "
                "more"
            )
        queries = [query for query in _QUERIES if query < max_query] + [max_query]
        self._by_sequences: dict[int, list[Bucket]] = {}
        for sequences in _powers(max_sequences):
            self._by_sequences[sequences] = [
                Bucket(sequences, sequences * query, 1 if query == 1 else max_query)
                for query in queries
                if query == 1 or sequences * query <= max_tokens
            ]
        # By sequences of a step: its bucket of one token each, and those of more by their tokens.
        self._single: list[Bucket | None] = [None]
        self._several: list[tuple[list[int], list[Bucket]]] = [([], [])]
        for sequences in range(1, max(self._by_sequences) + 1):
            sizes = [size for size in self._by_sequences if size >= sequences]
            self._single.append(self._by_sequences[sizes[0]][0])
            several: list[Bucket] = []
            for bucket in chain.from_iterable(self._by_sequences[size] for size in sizes):
                most = several[-1].tokens if several else 0
                if bucket.query > 1 and bucket.tokens > most:
                    several.append(bucket)
            self._several.append(([bucket.tokens for bucket in several], several))

    def __iter__(self) -> Iterator[Bucket]:
        """See `Shapes`."""
        everything = [bucket for some in self._by_sequences.values() for bucket in some]
        return iter(sorted(everything, key=lambda bucket: -bucket.tokens))

    def __len__(self) -> int:
        return sum(map(len, self._by_sequences.values()))

    def find(self, sequences: int, tokens: int, rows: int = 0) -> Bucket | None:
        """The smallest bucket for `sequences` that have `tokens` tokens together.

        None where no bucket is large enough: such a step is not replayed.
        """
        if not 0 < sequences <= tokens:
            raise ValueError(f"a step of {sequences} sequences and {tokens} tokens")
        if sequences >= len(self._single):
            return None
        if tokens == sequences:
            return self._single[sequences]
        sizes, fitting = self._several[sequences]
        at = bisect_left(sizes, tokens)
        return fitting[at] if at < len(fitting) else None


class PromptBuckets:
    """Buckets of steps with prompts in them, and rounds of up to `max_drafts` drafts beside these.

    None holds more than `max_tokens` tokens; the prompt of one sequence may be all of them.
    """

    def __init__(self, max_sequences: int, max_drafts: int, max_tokens: int) -> None:
        most = max(min(max_sequences, _PROMPT_SEQUENCES[-1]), _FEWEST)
        tokens = [size for size in _PROMPT_TOKENS if size < max_tokens]
        if _FEWEST <= max_tokens <= _PROMPT_TOKENS[-1]:
            tokens.append(max_tokens)
        self._buckets = [
            Bucket(
                sequences,
                size,
                size,
                rows=min(size, sequences * (max_drafts + 1), _PROMPT_ROWS),
                listed_drafts=max_drafts,
            )
            for sequences in [few for few in _PROMPT_SEQUENCES if few < most] + [most]
            for size in tokens
            if size >= sequences
        ]

    def __iter__(self) -> Iterator[Bucket]:
        """See `Shapes`."""
        return iter(sorted(self._buckets, key=lambda bucket: -bucket.tokens))

    def __len__(self) -> int:
        return len(self._buckets)

    def find(self, sequences: int, tokens: int, rows: int = 0) -> Bucket | None:
        """See `Shapes.find`."""
        if not 0 < sequences <= tokens:
            raise ValueError(f"a step of {sequences} sequences and {tokens} tokens")
        for bucket in self._buckets:
            if sequences <= bucket.sequences and tokens <= bucket.tokens and rows <= bucket.rows:
                return bucket
        return None


def _powers(most: int) -> list[int]:
    sizes = [_FEWEST]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes
