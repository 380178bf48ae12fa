"""One sequence as the draft model sees it: the true text, and the model's own continuation of it.

Knows ids, how many of them the model has read, and in which blocks their keys lie; does not know
the model. What turns out to be true of the continuation stays read; what does not is cut off, and
its keys are written over. Nothing that is right is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from proposer_service.proposers.batch import TargetSampling
from verifier_service.messages import Sampling

# No draft ends by its own number of tokens.
_ENDLESS = 1 << 40
GREEDY = Sampling(temperature=0.0, max_tokens=_ENDLESS)


class DraftText:
    """`ids` are the true ones, then the chain: what the model says follows. `length` are true.

    The keys of the first `read` ids are in `blocks`; that of the last id never counts as read, so
    that reading it always tells what follows. `ids` and `sampling` stay the same objects, by which
    the engine knows a step that it has begun ahead. `used` is the last round that asked. Of a text
    that is not `is_readable` the model has no opinion.
    """

    __slots__ = (
        "blocks",
        "ids",
        "is_readable",
        "length",
        "number",
        "read",
        "sampling",
        "stuck",
        "used",
        "vocabulary_size",
    )

    def __init__(self, number: int, ids: Sequence[int], used: int) -> None:
        self.number = number
        self.ids = list(ids)
        self.length = len(ids)
        self.read = 0
        self.blocks: list[int] = []
        self.sampling = GREEDY
        self.vocabulary_size = 0
        self.used = used
        self.is_readable = True
        # The model's next id is none of the target's: there is no chain beyond.
        self.stuck = False

    def heed(self, target: TargetSampling, *, noisy: bool) -> None:
        """Choose as the target does where `noisy`, else the likeliest id."""
        self.vocabulary_size = target.vocabulary_size
        if noisy:
            self.sampling = Sampling(
                temperature=target.temperature,
                top_k=target.top_k,
                top_p=target.top_p,
                seed=target.seed,
                max_tokens=_ENDLESS,
            )

    @property
    def unread(self) -> int:
        """Ids that must be read to know the next one; at least 1."""
        return len(self.ids) - self.read

    @property
    def chain(self) -> list[int]:
        """What the model says follows the true text, as far as it was asked."""
        return self.ids[self.length :]

    def commit(self, ids: Sequence[int]) -> None:
        """Make `ids` true behind the true text."""
        place = self.length
        self.length += len(ids)
        for token in ids:
            if place == len(self.ids) or self.ids[place] != token:
                break
            place += 1
        else:
            return
        del self.ids[place:]
        self.ids.extend(ids[len(ids) - (self.length - place) :])
        self.read = min(self.read, place)
        self.stuck = False

    def grow(self, token: int) -> None:
        """All ids were read, and `token` is what follows them."""
        if self.vocabulary_size and token >= self.vocabulary_size:
            self.read = len(self.ids) - 1
            self.stuck = True
            return
        self.read = len(self.ids)
        self.ids.append(token)

    def forget_keys(self) -> None:
        """The blocks are gone; all is to be read again."""
        self.read = 0
