"""When the device may stand still for drafts: for answers that nobody knows yet, or for the host.

Knows counts and seconds alone. A step with drafts is planned behind the step before it, while the
device has nothing to do; a plain one can be begun at once. So drafts that are known are worth a
pause only where what they gain, verifying paid for, is more than it costs all sequences.

What is not known can be waited for, or not: an answer that is not waited for arrives while the step
runs, and where its first draft comes true the rest of it can be verified in the next step. So a
wait gains one token for each sequence whose first draft is right. Proposers that do not look ahead
are not asked unless they are waited for: their answer is worth all that it saves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Pauses of about so many sequences before the first judgement; the shortest of them counts.
_TRIED = 3
_RATE = 0.1
# A pause so many times as long as usual is an interruption, no habit.
_INTERRUPTED = 4.0
# Before anything is known: the share of sequences waited for whose first draft is right, and the
# tokens that a block saves.
_PRIOR_RIGHT, _PRIOR_SAVED = 0.3, 1.0
# Weight of one sequence that was waited for, and of one block.
_RIGHT_RATE, _SAVED_RATE = 0.05, 0.02
# Of the time that passes, what may be spent on pauses that do not pay, to see whether they would.
_PROBE_SHARE = 0.002


@dataclass(slots=True)
class Pause:
    """What pauses of one kind take, at about one number of sequences."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        if self.count <= _TRIED:
            self.seconds = seconds if self.count == 1 else min(self.seconds, seconds)
        else:
            bounded = min(seconds, _INTERRUPTED * self.seconds)
            self.seconds += _RATE * (bounded - self.seconds)


@dataclass(slots=True)
class _Saved:
    """Tokens that an answer saves which is waited for; what was supposed is soon forgotten."""

    tokens: float = _PRIOR_SAVED
    count: int = 0

    def add(self, tokens: float, sequences: int) -> None:
        """Take in what the answers for so many sequences saved together."""
        self.count += 1
        rate = max(min(_RIGHT_RATE * sequences, 1.0), 1.0 / (self.count + 1))
        self.tokens += rate * (tokens / sequences - self.tokens)


@dataclass(slots=True)
class _Load:
    """What pauses took and brought at about one number of sequences."""

    wait: Pause = field(default_factory=Pause)
    right: float = _PRIOR_RIGHT
    waited: _Saved = field(default_factory=_Saved)
    hold: Pause = field(default_factory=Pause)
    # Tokens that a block saves which was held for, verified or not.
    saved: float = _PRIOR_SAVED


class Pauses:
    """Averages, for each power of two of sequences, of what pauses took and brought."""

    __slots__ = ("_credit", "_loads", "_now", "_pending", "_right", "_waited")

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._credit = 0.0
        # Tokens that were saved in this step.
        self._now = 0.0
        # The wait whose rounds are being told: its load, and for how many sequences.
        self._pending: tuple[_Load, int] | None = None
        self._right = 0
        # Tokens that answers saved in this step which were waited for.
        self._waited = 0.0

    def begin(self) -> None:
        """A step begins: what the last one brought has been told."""
        if self._pending is not None:
            load, unknown = self._pending
            share = min(self._right / unknown, 1.0)
            load.right += min(_RIGHT_RATE * unknown, 1.0) * (share - load.right)
            load.waited.add(self._waited, unknown)
        self._pending = None
        self._right = 0
        self._now = self._waited = 0.0

    def pays(
        self,
        unknown: int,
        sequences: int,
        plain_seconds: float,
        *,
        standing: bool = True,
        prepared: bool = True,
    ) -> bool:
        """Whether to wait for the answers of `unknown` of `sequences`.

        `plain_seconds` is what a step takes in which every sequence gains one token. Unless the
        device is `standing` still anyway, the step behind a wait has to be planned as well.
        `prepared`: proposers look ahead, and what is not waited for is of use as well.
        """
        load = self._load(sequences)
        tokens = load.right if prepared else max(load.right, load.waited.tokens)
        gained = unknown * tokens * plain_seconds / max(sequences, 1)
        return self._is_worth(load.wait, gained if standing else gained - load.hold.seconds)

    def holds(self, known: int, sequences: int, plain_seconds: float) -> bool:
        """Whether to plan the next step, as `known` of `sequences` have drafts, or to begin it."""
        load = self._load(sequences)
        gained = known * load.saved * plain_seconds / max(sequences, 1)
        return self._is_worth(load.hold, gained)

    def gained(self, known: int, sequences: int, plain_seconds: float, most: float) -> float:
        """Seconds that drafts of so many save beyond the pause that is held for them, if positive.

        Of each sequence no more than `most` tokens count.
        """
        load = self._load(sequences)
        tokens = known * min(max(load.saved, 0.0), most)
        return max(tokens * plain_seconds / max(sequences, 1) - load.hold.seconds, 0.0)

    def told(self, sequences: int) -> tuple[float, float]:
        """Seconds that are held at about this load, and tokens that a block saves; 0 and 0 while
        nothing is known."""
        load = self._load(sequences)
        return (load.hold.seconds, load.saved) if load.hold.count else (0.0, 0.0)

    def waited(self, unknown: int, sequences: int, seconds: float) -> None:
        """Take in a wait of this step, whose rounds `verified` tells."""
        load = self._load(sequences)
        load.wait.add(seconds)
        self._credit = 0.0
        self._pending = load, unknown

    def held(self, known: int, sequences: int, seconds: float) -> None:
        """Take in how long the device stood still before this step, which waited for nobody.

        `known` sequences had drafts; those that were verified have been told.
        """
        load = self._load(sequences)
        load.hold.add(seconds)
        self._credit = 0.0
        if known > 0:
            rate = min(_SAVED_RATE * known, 0.5)
            load.saved += rate * (self._now / known - load.saved)

    def verified(self, accepted: int, saved: float, *, waited: bool) -> None:
        """Take in a round of this step that had drafts; `waited` for, or known before.

        `saved`: the tokens accepted, less what verifying cost in tokens of a plain step.
        """
        self._right += waited and accepted > 0
        self._now += saved
        self._waited += saved if waited else 0.0

    def passed(self, seconds: float) -> None:
        """So much time went by."""
        self._credit += _PROBE_SHARE * seconds

    def _is_worth(self, pause: Pause, gained: float) -> bool:
        return pause.count < _TRIED or gained > pause.seconds or self._credit >= pause.seconds

    def _load(self, sequences: int) -> _Load:
        return self._loads.setdefault(sequences.bit_length(), _Load())
