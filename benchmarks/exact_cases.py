"""What the exactness check runs: prompts with fixed seeds, and the matrix of cases.

Knows no model and no way to generate.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.prompts import RawPrompt, Tokenizer, code_edits, encode

PROMPTS = Path(__file__).parent / "data" / "exactness_prompts.jsonl"

# What a case asks -> the proposers that answer. `none` is plain decoding.
PROPOSER_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": (),
        "ngram": ("ngram",),
        "suffix": ("suffix",),
        "both": ("ngram", "suffix"),
        "adversary": ("adversary",),
    }
)


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and the seed that it is always sampled with."""

    name: str
    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the matrix; `proposers` is a key of PROPOSER_SETS, K is 0 for `none`."""

    proposers: str
    k: int
    temperature: float
    clients: int

    def __str__(self) -> str:
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{self.proposers} K={self.k} T={self.temperature:g} {clients}"


@dataclass(frozen=True, slots=True)
class Generated:
    """One output and what was drafted for it."""

    ids: tuple[int, ...]
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


def matrix(
    proposers: Sequence[str],
    ks: Sequence[int],
    temperatures: Sequence[float],
    clients: Sequence[int],
) -> list[Case]:
    """Every combination; with several clients plain decoding too, to tell batching's share."""
    cases: list[Case] = []
    for count, temperature in itertools.product(clients, temperatures):
        if count > 1:
            cases.append(Case("none", 0, temperature, count))
        cases += [Case(name, k, temperature, count) for name, k in itertools.product(proposers, ks)]
    return cases


def jobs(tokenizer: Tokenizer, limit: int) -> list[Job]:
    """The first `limit` prompts; every second one is a code edit while these last.

    Raises ValueError where there are fewer.
    """
    raws = list(_alternating(list(_own_prompts()), list(code_edits())))
    if limit > len(raws):
        raise ValueError(f"{limit} prompts were asked for; there are {len(raws)}")
    return [
        Job(raw.name, tuple(encode(raw, tokenizer)), _seed(index))
        for index, raw in enumerate(raws[:limit])
    ]


def _seed(index: int) -> int:
    """Fixed seeds all over the signed 64-bit range, small ones among them."""
    return index if index % 4 == 0 else (index * 0x9E3779B97F4A7C15) % 2**64 - 2**63


def _alternating(one: Sequence[RawPrompt], other: Sequence[RawPrompt]) -> Iterator[RawPrompt]:
    for pair in itertools.zip_longest(one, other):
        yield from (raw for raw in pair if raw is not None)


def _own_prompts() -> Iterator[RawPrompt]:
    with PROMPTS.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield RawPrompt(row["id"], row["text"], row["chat"])
