"""A proposer that is wrong on purpose: what it drafts must never show in any output.

Knows nothing of the text's meaning. It always drafts as many tokens as it may, with the boldest
confidences, so that every step verifies, rejects and rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from proposer_service.proposers.base import Draft, Outcome, Proposer


class Adversary(Proposer):
    """Drafts ids of the text itself, ids of the whole vocabulary, and end-of-sequence ids.

    A pure function of (seed, text): a run can be repeated exactly.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._seed = seed
        self._texts: dict[int, list[int]] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        self._texts[sequence_id] = list(ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._texts[sequence_id].extend(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        text = self._texts[sequence_id]
        random = Random(f"{self._seed} {len(text)} {text[-8:]}")
        ids = tuple(self._guess(random, text) for _ in range(max_draft_tokens))
        return Draft(ids, match_length=len(text), confidences=(1.0,) * len(ids))

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        return ()

    def close(self, sequence_id: int, finished: bool) -> None:
        del self._texts[sequence_id]

    def _guess(self, random: Random, text: Sequence[int]) -> int:
        kind = random.random()
        if kind < 0.6:
            return random.choice(text)
        if kind < 0.95 or not self._eos:
            return random.randrange(self._vocab_size)
        return random.choice(self._eos)
