"""What every drafting method must be able to do: guess the next tokens of many growing texts.

Knows token ids only. Protocol, epochs and faults are the server's business (sequences.py): a
method is only ever told what is consistent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

# Outcomes of one round, for one sequence, that look-ahead prepares at most, and that it may name.
MAX_OUTCOMES = 64
MAX_NAMED = 512


class SparseQ(NamedTuple):
    """The distribution that one draft token was drawn from: masses sum to 2^32 exactly."""

    token_ids: tuple[int, ...]
    masses: tuple[int, ...]


class Draft(NamedTuple):
    """A chain of draft tokens; empty where the method has no guess.

    `match_length` is how many of the text's last tokens the guess rests on, 0 where that has no
    meaning. `confidences` is empty or holds, for each draft token, the method's estimate that the
    whole chain up to it survives verification (so it never rises along the chain). `q` is empty for
    a draft that is a function of the text, else it holds each draft token's own.
    """

    ids: tuple[int, ...]
    match_length: int = 0
    confidences: tuple[float, ...] = ()
    q: tuple[SparseQ, ...] = ()


class Outcome(NamedTuple):
    """A way the round in flight may end, and the draft for the text as it is then.

    `ids` are the tokens that would be committed: the accepted drafts, then the target's own token.
    """

    ids: tuple[int, ...]
    draft: Draft


class Complete(NamedTuple):
    """Names the ends of a round: behind no other one is there a draft that is worth waiting for.

    Each of `ends` is how many ids of the draft are committed, and the token behind them. A later
    one of the same round takes the place of the first.
    """

    ends: Sequence[tuple[int, int]] = ()


class Pause(Enum):
    """What follows is unlikely: all other sequences' likely outcomes come first."""

    UNLIKELY = auto()


Ahead = Outcome | Complete | Pause

NO_DRAFT = Draft(())


class Proposer(ABC):
    """A drafting method and the texts it follows; not thread-safe.

    Must be a function of what it was told: no clock, no randomness that is not seeded.
    """

    @abstractmethod
    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        """Start following a text whose first ids are `ids` (at least one).

        `prompt_length` of the text's ids are its prompt; `ids` may end before or after it. Texts
        of different `salt` must never shape each other's drafts. `sequence_id` is not open.
        """

    @abstractmethod
    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        """Append ids to an open text."""

    @abstractmethod
    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        """Guess at most `max_draft_tokens` (>= 1) ids that follow the text; changes nothing."""

    @abstractmethod
    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterable[Ahead]:
        """At most MAX_OUTCOMES distinct ends of the round in flight, likeliest first.

        `draft` is what `propose` just gave for this text, or empty; the round verifies the whole
        of it, its beginning or nothing. A first item `Complete` names all ends that are worth a
        wait, those included that are not prepared (at most MAX_NAMED); another one may follow where
        more time brought more. Changes nothing; it may not be iterated to its end, and never after
        a change.
        """

    @abstractmethod
    def close(self, sequence_id: int, finished: bool) -> None:
        """Stop following a text. Only where it is `finished` may its ids shape later drafts."""

    def settle(self) -> None:
        """Called after each answer is sent: the place for work that no draft of it needed."""
        return
