"""What a method must be able to do that drafts for all sequences of a step at once: a model.

Knows token ids and how the target samples; protocol, epochs and faults are the server's business,
as for every method. Work comes in pieces, each about one forward, between which the server looks
after its streams: several streams' pieces may alternate, one piece never waits for another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from proposer_service.proposers.base import Ahead, Draft, Outcome, Proposer


class TargetSampling(NamedTuple):
    """How the target chooses a sequence's tokens, as far as a draft can follow it.

    `coupled` tells that it adds the shared noise of `seed` (signed, 64 bits) and absolute position
    (outrider/coupling.py); else a draft can only guess. `temperature` 0 is greedy, `top_k` 0 and
    `top_p` 1 are no limits. `vocabulary_size` is the number of the target's ids, 0 if not known.
    Only where it `takes_q` may a draft be drawn: without its q that would change what is said.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    coupled: bool = False
    takes_q: bool = False
    vocabulary_size: int = 0


class Wanted(NamedTuple):
    """At most `max_draft_tokens` (>= 1) ids behind a sequence's text."""

    sequence_id: int
    max_draft_tokens: int


class Drafted(NamedTuple):
    """What `propose_many` gave for a sequence in the round in flight, or an empty draft."""

    sequence_id: int
    draft: Draft
    max_draft_tokens: int


class BatchProposer(Proposer):
    """A drafting method whose work is shared by sequences; not thread-safe.

    `device_uuid` is the card it works on, empty where that is none.
    """

    device_uuid: str = ""

    @abstractmethod
    def heed(self, sequence_id: int, target: TargetSampling) -> None:
        """Told of an open text, right after `open`."""

    @abstractmethod
    def propose_many(self, wanted: Sequence[Wanted]) -> Generator[None, None, list[Draft]]:
        """Drafts for distinct open sequences, in their order; yields between pieces of work."""

    @abstractmethod
    def prepare(self, drafted: Sequence[Drafted]) -> Iterator[list[tuple[int, Outcome]]]:
        """Likely ends of the round in flight, by sequence id: what each piece of work brought.

        As `lookahead`: it changes nothing, need not be iterated to its end, and never is after a
        change.
        """

    @abstractmethod
    def catch_up(self) -> Iterator[None]:
        """Pieces of work that no answer waited for, such as a long prompt; may be left anywhere."""

    def refusal(self, *, coupled: bool, takes_q: bool) -> str:
        """Why a verifier cannot be served; empty where it can.

        `coupled` is its rule, `takes_q` whether it takes drafts with a q of their own.
        """
        return ""

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        """See `Proposer.propose`."""
        pieces = self.propose_many([Wanted(sequence_id, max_draft_tokens)])
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                (draft,) = done.value
                return Draft(*draft)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterable[Ahead]:
        """Nothing: `prepare` does it for all sequences."""
        return ()
