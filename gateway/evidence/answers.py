"""What a question about acceptance is answered with, wherever the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.evidence.filters import AcceptanceQuery, Dimension
from gateway.evidence.sums import Tally

# A value for each dimension but the position; seconds since 1970 for time.
GroupKey = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Sums of one group; `key` holds a value for each dimension but the position."""

    key: GroupKey
    tally: Tally


@dataclass(frozen=True, slots=True)
class Answer:
    """Groups in the order of their keys, all of them together, and from when on they are whole.

    `since_ns` and `until_ns` are None where nothing bounds them. `sampling_ratio` is the lowest
    among the requests: below 1 the sums are of so large a share.
    """

    groups: tuple[Group, ...]
    totals: Tally
    since_ns: int | None = None
    until_ns: int | None = None
    sampling_ratio: float = 1.0


def sorted_groups(groups: Mapping[GroupKey, Tally]) -> tuple[Group, ...]:
    """In the order of their keys; what has no proposer comes last."""

    def order(key: GroupKey) -> tuple[tuple[int, int, str], ...]:
        return tuple(
            (0, value, "") if isinstance(value, int) else (value is None, 0, value or "")
            for value in key
        )

    return tuple(Group(key, groups[key]) for key in sorted(groups, key=order))


def answer_json(query: AcceptanceQuery, answer: Answer, now_s: float) -> dict[str, object]:
    """The body of `GET /v1/acceptance`, without what was dropped."""
    data: list[dict[str, object]] = []
    for group in answer.groups:
        named = {d.value: value for d, value in zip(query.keys, group.key, strict=True)}
        if not query.by_position:
            data.append({"group": named, **group.tally.to_json()})
            continue
        for position in range(group.tally.num_positions):
            # In the order that was asked for.
            place = {**named, Dimension.POSITION.value: position}
            data.append(
                {
                    "group": {d.value: place[d.value] for d in query.group_by},
                    **group.tally.at_position(position).to_json(),
                }
            )
    return {
        "object": "acceptance",
        "since": None if answer.since_ns is None else answer.since_ns / 1e9,
        "until": now_s if answer.until_ns is None else answer.until_ns / 1e9,
        "group_by": [dimension.value for dimension in query.group_by],
        "data": data,
        "totals": answer.totals.to_json(),
        "sampling_ratio": answer.sampling_ratio,
    }
