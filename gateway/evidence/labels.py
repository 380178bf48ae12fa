"""Keeps the number of different labels small, whatever clients send.

Knows names and limits; does not know what is counted by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.evidence.records import ProposerShare, RequestRecord
from gateway.evidence.sums import Tally

OTHER: Final = "other"
MAX_LABELS: Final = 100


class LabelLimits:
    """The first `limit` different values of each label keep their names; the rest are `other`.

    `replaced` counts records whose label was replaced. Bounded by `limit` names of each label.
    """

    def __init__(self, limit: int = MAX_LABELS) -> None:
        self._limit = limit
        self._known: dict[str, set[str]] = {}
        self.replaced = 0

    def limited(self, record: RequestRecord) -> RequestRecord:
        """The same record, with names that are known or could still be learnt."""
        model = self._name("model", record.model)
        verifier = self._name("verifier", record.verifier)
        workload = self._name("workload", record.workload)
        shares = self._shares(record.proposers)
        if (model, verifier, workload) == (record.model, record.verifier, record.workload) and (
            shares is record.proposers
        ):
            return record
        self.replaced += 1
        return replace(record, model=model, verifier=verifier, workload=workload, proposers=shares)

    def _shares(self, shares: tuple[ProposerShare, ...]) -> tuple[ProposerShare, ...]:
        named = [
            (self._name("proposer", share.name), self._name("method", share.method), share)
            for share in shares
        ]
        if all((name, method) == (share.name, share.method) for name, method, share in named):
            return shares
        # A request has one share under each name: what becomes `other` is added up.
        tallies: dict[tuple[str, str], Tally] = {}
        hits: dict[tuple[str, str], int] = {}
        for name, method, share in named:
            key = name, OTHER if name == OTHER else method
            tallies.setdefault(key, Tally()).add(share.sums, 0, 0)
            hits[key] = hits.get(key, 0) + share.lookahead_hits
        return tuple(
            ProposerShare(name, method, tally.frozen(), hits[name, method])
            for (name, method), tally in tallies.items()
        )

    def _name(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known or value == "":
            return value
        if len(known) >= self._limit:
            return OTHER
        known.add(value)
        return value
