"""One sequence as the draft model sees it: the true text, and the model's own continuation of it.

Knows ids, how many of them the model has read, and in which blocks their keys lie; does not know
the model. What turns out to be true of the continuation stays read; what does not is cut off, and
its keys are written over. Nothing that is right is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from proposer_service.draft_model.drawing import ENTRIES, Drawing
from proposer_service.proposers.base import SparseQ
from proposer_service.proposers.batch import TargetSampling
from verifier_service.messages import Sampling
from verifier_service.sampling import is_greedy

# No draft ends by its own number of tokens.
_ENDLESS = 1 << 40
GREEDY = Sampling(temperature=0.0, max_tokens=_ENDLESS)
_TOLD = Sampling(temperature=0.0, max_tokens=_ENDLESS, logprobs=ENTRIES)


class DraftText:
    """`ids` are the true ones, then the chain: what the model says follows. `length` are true.

    The keys of the first `read` ids are in `blocks`; that of the last id never counts as read, so
    that reading it always tells what follows. `ids` and `sampling` stay the same objects, by which
    the engine knows a step that it has begun ahead. `used` is the last round that asked. Of a text
    that is not `is_readable` the model has no opinion. Where tokens are drawn (`drawing`) the chain
    has a `q` for each of them, and is drawn anew behind each commit.
    """

    __slots__ = (
        "blocks",
        "drawing",
        "ids",
        "is_readable",
        "length",
        "number",
        "q",
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
        self.drawing: Drawing | None = None
        self.q: list[SparseQ] = []
        self.vocabulary_size = 0
        self.used = used
        self.is_readable = True
        # The model's next id is none of the target's: there is no chain beyond.
        self.stuck = False

    def heed(self, target: TargetSampling, *, noisy: bool, drawn: bool = False) -> None:
        """Choose with the target's noise where `noisy`, draw where `drawn`, else the likeliest."""
        self.vocabulary_size = target.vocabulary_size
        own = Sampling(
            temperature=target.temperature,
            top_k=target.top_k,
            top_p=target.top_p,
            seed=target.seed,
            max_tokens=_ENDLESS,
        )
        if noisy:
            self.sampling = own
        elif drawn and not is_greedy(own):
            self.sampling = _TOLD
            self.drawing = Drawing(
                target.temperature,
                target.top_k,
                target.top_p,
                target.seed,
                target.vocabulary_size,
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
        self._keep_true(ids)
        if self.drawing is not None:
            # What was drawn for another block must not serve this one: its rejection told of it.
            del self.ids[self.length :]
            self.q.clear()
            self.read = min(self.read, self.length - 1)
            self.stuck = False

    def _keep_true(self, ids: Sequence[int]) -> None:
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

    def draw(self, top: Sequence[tuple[int, float]]) -> None:
        """All ids were read, and these are the likeliest to follow, with log-probabilities."""
        assert self.drawing is not None
        drawn = self.drawing.draw(top, self.length, len(self.ids) - self.length)
        if drawn is None:
            self.read = len(self.ids) - 1
            self.stuck = True
            return
        token, q = drawn
        self.q.append(q)
        self.grow(token)

    def forget_keys(self) -> None:
        """The blocks are gone; all is to be read again."""
        self.read = 0
