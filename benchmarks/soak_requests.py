"""The requests of a soak: a seeded stream in which every request is known from its number alone.

Knows how kinds are mixed; soak_kinds.py has the kinds, soak_refusals.py the requests that must be
refused.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from benchmarks.soak_draw import Facts, Place, SoakRequest, begin
from benchmarks.soak_kinds import BY_NAME, KINDS
from benchmarks.soak_refusals import REFUSALS

# Share of the requests at each place.
_PLACES: tuple[tuple[Place, float], ...] = (
    (Place.COMPLETIONS, 0.38),
    (Place.CHAT, 0.32),
    (Place.GRPC_TEXT, 0.13),
    (Place.GRPC_CHAT, 0.09),
    (Place.TOKENIZE, 0.04),
    (Place.DETOKENIZE, 0.04),
)
REFUSED_SHARE = 0.08
CANCELLED_SHARE = 0.12
_LAST_CHUNK_OF_CANCEL = 12


class RequestFactory:
    """Requests 0, 1, 2, …; each depends on the seed and its number only.

    `missing` are (kind, place) pairs that the server was found not to offer: left out.
    """

    def __init__(
        self, seed: int, facts: Facts, missing: Collection[tuple[str, Place]] = ()
    ) -> None:
        self._seed = seed
        self._facts = facts
        self._missing = frozenset(missing)

    def request(self, number: int) -> SoakRequest:
        rng = random.Random(f"{self._seed}/{number}")
        if rng.random() < REFUSED_SHARE:
            return self._refused(rng, number)
        (place,) = rng.choices([p for p, _ in _PLACES], [share for _, share in _PLACES])
        draw = begin(rng, self._facts, place)
        for kind in KINDS:
            chosen = rng.random() < kind.weight
            if chosen and kind.fits(draw) and (kind.name, place) not in self._missing:
                kind.put_into(draw)
        cancel = None
        if place.generates and rng.random() < CANCELLED_SHARE:
            cancel = rng.randint(0, _LAST_CHUNK_OF_CANCEL)
        return SoakRequest(
            number, place, draw.body, tuple(draw.kinds), cancel, matches=draw.matches
        )

    def _refused(self, rng: random.Random, number: int) -> SoakRequest:
        bad = rng.choice(REFUSALS)
        place = rng.choice(sorted(bad.places, key=lambda place: place.value))
        draw = begin(rng, self._facts, place)
        bad.spoil(draw)
        name = f"refused: {bad.name}"
        return SoakRequest(number, place, draw.body, (name,), refused=bad.param_at(place))


def probe(kind_name: str, place: Place, facts: Facts) -> SoakRequest:
    """A request that asks for one kind (and what it needs) and nothing else."""
    draw = begin(random.Random(f"{kind_name}/{place.value}"), facts, place)
    kind = BY_NAME[kind_name]
    for needed in kind.needs:
        BY_NAME[needed].put_into(draw)
    kind.put_into(draw)
    return SoakRequest(-1, place, draw.body, tuple(draw.kinds), matches=draw.matches)
