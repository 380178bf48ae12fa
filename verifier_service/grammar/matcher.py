"""One answer's way through a grammar: a `Constraint` over xgrammar's matcher.

Knows ids and bit masks; does not know requests, drafts' origin or the vocabulary's text. The
matcher stands behind the committed output; looking ahead is taken back before a method returns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from xgrammar import CompiledGrammar, GrammarMatcher


class GrammarConstraint:
    """See `messages.Constraint`. A grammar ends with a stop id, which is part of the output.

    `stop_ids` are the ids that may end this answer besides the vocabulary's own; none of them has
    text. Where there is no stop id at all the output is `complete` and nothing is allowed.
    """

    def __init__(self, grammar: CompiledGrammar, stop_ids: Collection[int] = ()) -> None:
        info = grammar.tokenizer_info
        size = info.vocab_size
        stops = {i for i in (*info.stop_token_ids, *stop_ids) if 0 <= i < size}
        # An empty list is refused: the vocabulary's own stop ids are meant, also where none.
        self._matcher = GrammarMatcher(grammar, override_stop_tokens=sorted(stops) or None)
        self._words = -(-size // 32)
        # The matcher refuses these too, but writes a line to stderr each time.
        self._textless = frozenset(info.special_token_ids) - stops
        self._vocab_size = size

    def admitted(self, draft_ids: Sequence[int]) -> int:
        count = 0
        for token_id in draft_ids:
            if not self._accept(token_id):
                break
            count += 1
        self._take_back(count)
        return count

    def masks(self, draft_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        rows = np.full((len(draft_ids) + 1, self._words), -1, dtype=np.int32)
        count = 0
        for row in range(len(rows)):
            if self.ended:
                break
            self._matcher.fill_next_token_bitmask(rows, row)
            if row == len(draft_ids) or not self._accept(draft_ids[row]):
                break
            count += 1
        self._take_back(count)
        return rows

    def advance(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not self._accept(token_id):
                raise ValueError(f"token {token_id} was refused by the grammar of the output")

    @property
    def ended(self) -> bool:
        return self._matcher.is_terminated()

    @property
    def complete(self) -> bool:
        return self.ended or self._matcher.is_completed()

    def _accept(self, token_id: int) -> bool:
        if self.ended or token_id in self._textless or not 0 <= token_id < self._vocab_size:
            return False
        return bool(self._matcher.accept_token(token_id))

    def _take_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
