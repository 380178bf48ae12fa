"""`num_speculative_tokens_per_batch_size`: how many drafts at most, by how many sequences run.

Knows the rules of the value, which are vLLM's; does not know who asks or what a draft costs.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import InputError

_SHAPE = "a list of [first, last, K], such as [[1, 4, 5], [5, 64, 2], [65, 256, 0]]"


@dataclass(frozen=True, slots=True)
class DraftSchedule:
    """The ceiling K by number of running sequences: `ranges` of (first, last, K), both inclusive.

    Kept in ascending order, whatever order they are given in. Counts in a gap and behind the last
    range have the K of the range before. Raises ValueError where a rule is broken: at least one
    range, 1 <= first <= last, K >= 0, no overlaps, and one range that starts at 1.
    """

    ranges: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.ranges:
            raise ValueError(f"no range is given; it must be {_SHAPE}")
        ordered = tuple(sorted(self.ranges))
        for first, last, drafts in ordered:
            if not 1 <= first <= last:
                raise ValueError(
                    f"range [{first}, {last}, {drafts}]: numbers of sequences must be at least 1, "
                    "the first no greater than the last"
                )
            if drafts < 0:
                raise ValueError(f"range [{first}, {last}, {drafts}]: K must be 0 or more")
        for before, after in itertools.pairwise(ordered):
            if after[0] <= before[1]:
                raise ValueError(
                    f"ranges {list(before)} and {list(after)} overlap; every number of sequences "
                    "may have one K only"
                )
        if ordered[0][0] != 1:
            raise ValueError(
                f"the first range is {list(ordered[0])}; one must start at 1, so that every number "
                "of sequences has its K"
            )
        object.__setattr__(self, "ranges", ordered)

    @classmethod
    def of(cls, value: object) -> DraftSchedule:
        """The schedule that a decoded JSON or YAML value means. Raises ValueError."""
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r} is not {_SHAPE}")
        return cls(tuple(_range(entry) for entry in value))

    def at(self, sequences: int) -> int:
        """The K for so many running sequences; that of 1 where none runs."""
        index = bisect_right(self.ranges, max(sequences, 1), key=_first) - 1
        return self.ranges[index][2]

    def to_json(self) -> str:
        """As the option takes it."""
        return json.dumps([list(entry) for entry in self.ranges])


def parse_draft_schedule(text: str, option: str) -> DraftSchedule:
    """An option's JSON. Raises InputError that names the option and what is allowed."""
    try:
        return DraftSchedule.of(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(f"{option}: {text!r} is no JSON ({error.msg}); write {_SHAPE}") from error
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error


def _range(entry: object) -> tuple[int, int, int]:
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 3:
        first, last, drafts = entry
        if _whole(first) and _whole(last) and _whole(drafts):
            return first, last, drafts
    raise ValueError(f"{entry!r} is not three whole numbers; it must be {_SHAPE}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first(entry: tuple[int, int, int]) -> int:
    return entry[0]
