"""How often a sequence has said each token: what repetition, frequency and presence penalties read.

Knows ids and numbers on the host; does not know logits. Counts grow with what is committed, so a
round costs what the sequence has of *distinct* tokens, not its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verifier_service.messages import Sampling

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_FIRST_SIZE = 64


@dataclass(frozen=True, slots=True)
class RowPenalties:
    """What a few rows' penalties do to the `n` tokens that they touch.

    `token_ids` [n], distinct; `factors`, `frequencies`, `presences` [rows, n]: a positive logit is
    divided by its factor, another multiplied; then the other two are taken off.
    """

    token_ids: Ids
    factors: Floats
    frequencies: Floats
    presences: Floats


def has_penalties(sampling: Sampling) -> bool:
    """Whether a request has any penalty that does something."""
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )


class TokenCounts:
    """Distinct tokens of one sequence and their counts in its output.

    Prompt tokens are only kept for a repetition penalty: the others do not look at the prompt.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._repetition = sampling.repetition_penalty != 1.0
        self._counted = 0
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._counts = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._prompted = np.zeros(_FIRST_SIZE, dtype=np.bool_)

    def extend(self, sequence_ids: Sequence[int], prompt_length: int) -> None:
        """Count the ids that were committed since the last call."""
        if self._counted == 0 and self._repetition:
            for token in dict.fromkeys(sequence_ids[:prompt_length]):
                # The slot first: taking one may replace the arrays by longer ones.
                slot = self._slot(token)
                self._prompted[slot] = True
        for token in sequence_ids[max(self._counted, prompt_length) :]:
            slot = self._slot(token)
            self._counts[slot] += 1
        self._counted = len(sequence_ids)

    def rows(self, drafts: Sequence[int]) -> RowPenalties:
        """Penalties of len(drafts) + 1 rows: row j stands behind j drafts."""
        known = len(self._slots)
        fresh: dict[int, int] = {}
        columns = []
        for token in drafts:
            column = self._slots.get(token)
            columns.append(
                fresh.setdefault(token, known + len(fresh)) if column is None else column
            )
        token_ids = np.concatenate((self._ids[:known], np.array(list(fresh), dtype=np.int64)))
        counts = np.zeros((len(drafts) + 1, len(token_ids)), dtype=np.float32)
        counts[:, :known] = self._counts[:known]
        for row, column in enumerate(columns, start=1):
            counts[row:, column] += 1.0
        said = counts > 0.0
        seen = said.copy()
        seen[:, :known] |= self._prompted[:known]
        sampling, one = self._sampling, np.float32(1.0)
        return RowPenalties(
            token_ids,
            np.where(seen, np.float32(sampling.repetition_penalty), one),
            counts * np.float32(sampling.frequency_penalty),
            said * np.float32(sampling.presence_penalty),
        )

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._prompted = np.concatenate((self._prompted, np.zeros_like(self._prompted)))
        self._ids[slot] = token
        return slot
