"""Acceptance summed as it arrives, in memory: since the start, and by time.

Knows dimensions and bounds; does not know files or HTTP. The numbers since the start are exact for
ever; those by time are exact for as long as they are kept, and that time is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.evidence.answers import Answer, sorted_groups
from gateway.evidence.filters import AcceptanceQuery, Dimension, Selection
from gateway.evidence.labels import OTHER
from gateway.evidence.records import RequestRecord
from gateway.evidence.sums import Tally
from outrider.errors import InputError

_SECOND_NS: Final = 10**9
# Time's finest grain, and how many cells of all grains are kept.
GRAIN_NS: Final = 10 * _SECOND_NS
MAX_CELLS: Final = 20_000
# Combinations of labels since the start; what is beyond is summed under `other` everywhere.
MAX_KEYS: Final = 5_000

# What a cell is summed by; None where its level does not tell.
_Key = tuple[str, str, str, str, str | None, str | None]
_PLACES: Final = {
    "model": 0,
    "verifier": 1,
    "workload": 2,
    "temperature": 3,
    "method": 4,
    "proposer": 5,
}

# Where a level puts what would be one combination too many.
_OVERFLOW: Final[tuple[_Key, _Key, _Key]] = (
    (OTHER, OTHER, OTHER, OTHER, None, None),
    (OTHER, OTHER, OTHER, OTHER, OTHER, None),
    (OTHER, OTHER, OTHER, OTHER, OTHER, OTHER),
)


class _Cells:
    """Tallies at three levels, so that a request counts once at each: whole, method, proposer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.levels: tuple[dict[_Key, Tally], ...] = ({}, {}, {})

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def add(self, record: RequestRecord) -> None:
        base = (record.model, record.verifier, record.workload, record.temperature_bucket)
        tokens = record.completion_tokens
        self._at(0, (*base, None, None)).add(record.sums, 1, tokens)
        if not record.proposers:
            for level in (1, 2):
                self._at(level, (*base, None, None)).add(record.sums, 1, tokens)
            return
        methods: set[str] = set()
        for share in record.proposers:
            # A request with two proposers of a method is one request of that method.
            first = share.method not in methods
            methods.add(share.method)
            tally = self._at(1, (*base, share.method, None))
            tally.add(share.sums, int(first), tokens if first else 0)
            self._at(2, (*base, share.method, share.name)).add(share.sums, 1, tokens)

    def _at(self, level: int, key: _Key) -> Tally:
        cells = self.levels[level]
        if key not in cells and len(cells) >= self._limit:
            key = _OVERFLOW[level]
        return cells.setdefault(key, Tally())

    def select(self, level: int, selection: Selection) -> Iterator[tuple[_Key, Tally]]:
        wanted = [(_PLACES[name], value) for name, value in selection.equals.items()]
        for key, tally in self.levels[level].items():
            if all(key[place] == value for place, value in wanted):
                yield key, tally


class Aggregate:
    """Sums of all records given to `add`; to be used on one thread."""

    def __init__(self, *, max_keys: int = MAX_KEYS, max_cells: int = MAX_CELLS) -> None:
        self._max_keys = max_keys
        self._max_cells = max_cells
        self._whole = _Cells(max_keys)
        self._by_time: OrderedDict[int, _Cells] = OrderedDict()
        self._num_cells = 0
        # Before this moment records were summed whose time is not told any more.
        self._forgotten_ns = 0
        self._first_ns: int | None = None
        self.sampling_ratio = 1.0
        self.totals = Tally()

    def add(self, record: RequestRecord) -> None:
        """Count one request. Records may come in any order of time."""
        self.totals.add(record.sums, 1, record.completion_tokens)
        self._whole.add(record)
        self.sampling_ratio = min(self.sampling_ratio, record.sampling_ratio)
        self._first_ns = min(self._first_ns or record.ended_ns, record.ended_ns)
        if record.ended_ns < self._forgotten_ns:
            return
        grain = record.ended_ns // GRAIN_NS * GRAIN_NS
        cells = self._by_time.get(grain)
        if cells is None:
            cells = self._by_time[grain] = _Cells(self._max_keys)
        before = len(cells)
        cells.add(record)
        self._num_cells += len(cells) - before
        while self._num_cells > self._max_cells and len(self._by_time) > 1:
            oldest = min(self._by_time)
            self._num_cells -= len(self._by_time.pop(oldest))
            self._forgotten_ns = oldest + GRAIN_NS

    def query(self, query: AcceptanceQuery) -> Answer:
        """Sums by group. Bounds of time are widened to the grain of 10 s that holds them.

        Raises InputError for groups of time that are no multiple of it.
        """
        selection = query.selection
        timed = Dimension.TIME in query.group_by
        if timed and query.interval_ns % GRAIN_NS:
            raise InputError(
                f"interval: without a file, times are kept in grains of {GRAIN_NS // _SECOND_NS} "
                "s; write a multiple of it"
            )
        ranged = selection.since_ns is not None or selection.until_ns is not None
        level = _level(query)
        groups: dict[tuple[str | int | None, ...], Tally] = {}
        totals = Tally()
        since, until = selection.since_ns, selection.until_ns
        if not timed and not ranged:
            self._collect(self._whole, query, level, None, groups)
            self._sum(self._whole, selection, totals)
            return Answer(sorted_groups(groups), totals, self._first_ns, None, self.sampling_ratio)
        for grain, cells in self._by_time.items():
            if since is not None and grain + GRAIN_NS <= since:
                continue
            if until is not None and grain >= until:
                continue
            moment = grain // query.interval_ns * query.interval_ns
            self._collect(cells, query, level, moment, groups)
            self._sum(cells, selection, totals)
        start = since if since is not None else self._first_ns
        if self._forgotten_ns and (start is None or start < self._forgotten_ns):
            start = self._forgotten_ns
        return Answer(sorted_groups(groups), totals, start, until, self.sampling_ratio)

    def _collect(
        self,
        cells: _Cells,
        query: AcceptanceQuery,
        level: int,
        moment_ns: int | None,
        groups: dict[tuple[str | int | None, ...], Tally],
    ) -> None:
        for key, tally in cells.select(level, query.selection):
            group = tuple(
                (moment_ns or 0) // _SECOND_NS if d is Dimension.TIME else key[_PLACES[d.value]]
                for d in query.keys
            )
            groups.setdefault(group, Tally()).merge(tally)

    @staticmethod
    def _sum(cells: _Cells, selection: Selection, totals: Tally) -> None:
        """All that is selected, each request once."""
        for _, tally in cells.select(_selection_level(selection.equals), selection):
            totals.merge(tally)


def _selection_level(equals: Mapping[str, str]) -> int:
    return 2 if "proposer" in equals else 1 if "method" in equals else 0


def _level(query: AcceptanceQuery) -> int:
    by = {d.value for d in query.keys} | set(query.selection.equals)
    return 2 if "proposer" in by else 1 if "method" in by else 0
