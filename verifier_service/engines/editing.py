"""From a step's chunks to the edits of its logits: the host's half of masks, bias and penalties.

Knows chunks, rows and token ids; does not know logits. Every row of a verification sees the drafts
before it as if they had been emitted. What a sequence's sampling needs is prepared once, when the
sequence is first seen, and let go of when a step comes without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.base import Chunk
from verifier_service.logit_edits import Allowed, Bias, LogitEdits, Masks, Penalties
from verifier_service.messages import Sampling
from verifier_service.penalties import TokenCounts, has_penalties
from verifier_service.transfers import to_device

Ids = npt.NDArray[np.int64]


def has_edits(chunk: Chunk) -> bool:
    """Whether a chunk's logits are edited before temperature and filters."""
    return chunk.mask is not None or edits_logits(chunk.sampling)


def edits_logits(sampling: Sampling) -> bool:
    """Whether a request asks for edits of its logits, whatever its output's structure."""
    return bool(
        sampling.logit_bias
        or sampling.bad_words
        or sampling.allowed_token_ids
        or sampling.min_tokens
        or has_penalties(sampling)
    )


class LogitEditor:
    """Plans the edits of one engine's steps. Not thread-safe."""

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._vocab = vocab_size
        self._device = torch.device(device)
        self._rules: dict[int, _Rules] = {}

    def plan(self, chunks: Sequence[Chunk]) -> LogitEdits | None:
        """Edits of the logits of chunks that all choose, in their order; None if there are none.

        Raises ValueError where a chunk's ids or mask do not fit its sequence: the scheduler's bug.
        """
        known, self._rules = self._rules, {}
        if not any(has_edits(chunk) for chunk in chunks):
            return None
        parts = _Parts(self._vocab)
        first = 0
        for chunk in chunks:
            if has_edits(chunk):
                self._add(parts, chunk, first, known)
            first += chunk.drafts + 1
        return parts.tensors(self._device)

    def _add(self, parts: _Parts, chunk: Chunk, first: int, known: dict[int, _Rules]) -> None:
        rows = np.arange(first, first + chunk.drafts + 1)
        if chunk.mask is not None:
            parts.add_mask(rows, chunk.mask)
        if len(chunk.sequence_ids) != chunk.start + len(chunk.ids) - chunk.drafts:
            raise ValueError(
                f"a chunk of {len(chunk.ids)} ids from {chunk.start} with {chunk.drafts} drafts "
                f"belongs to no sequence of {len(chunk.sequence_ids)} ids"
            )
        # The list itself is the sequence's identity, and held, so its id is not used again.
        key = id(chunk.sequence_ids)
        rules = known.get(key)
        if rules is None or rules.sampling is not chunk.sampling:
            rules = _Rules(chunk.sequence_ids, chunk.sampling)
        self._rules[key] = rules
        rules.add(parts, rows, chunk.ids[len(chunk.ids) - chunk.drafts :], chunk.prompt_length)


class _Rules:
    """One sequence's sampling, prepared."""

    def __init__(self, sequence_ids: Sequence[int], sampling: Sampling) -> None:
        self.sampling = sampling
        self._ids = sequence_ids
        self._allowed = np.array(sampling.allowed_token_ids, dtype=np.int64)
        self._stops = np.array(sorted(sampling.stop_token_ids), dtype=np.int64)
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.int64)
        self._bias = np.array([value for _, value in sampling.logit_bias], dtype=np.float32)
        self._counts = TokenCounts(sampling) if has_penalties(sampling) else None
        self._always = np.array(sorted({w[0] for w in sampling.bad_words if len(w) == 1}), np.int64)
        # Longer bad words by the id before their last.
        self._endings: dict[int, list[tuple[int, ...]]] = {}
        for word in sampling.bad_words:
            if len(word) > 1:
                self._endings.setdefault(word[-2], []).append(word)
        self._longest = max((len(word) for word in sampling.bad_words), default=1)

    def add(self, parts: _Parts, rows: Ids, drafts: list[int], prompt_length: int) -> None:
        """Add the edits of `rows`, the first of which stands behind the sequence's last id."""
        if len(self._allowed):
            parts.allow(rows, self._allowed)
        if len(self._always):
            parts.forbid(rows, self._always)
        if self._endings:
            for row, token in self._completions(drafts, prompt_length):
                parts.forbid(rows[row : row + 1], np.array([token]))
        early = self.sampling.min_tokens - (len(self._ids) - prompt_length)
        if early > 0 and len(self._stops):
            parts.forbid(rows[:early], self._stops)
        if len(self._bias):
            parts.add_bias(rows, self._bias_ids, self._bias)
        if self._counts is not None:
            self._counts.extend(self._ids, prompt_length)
            parts.add_penalties(rows, self._counts, drafts)

    def _completions(self, drafts: list[int], prompt_length: int) -> Iterator[tuple[int, int]]:
        """(row, id) pairs: the id would complete a bad word behind the row's output."""
        start = max(prompt_length, len(self._ids) - self._longest + 1)
        output = [*self._ids[start:], *drafts]
        for row in range(len(drafts) + 1):
            end = len(output) - len(drafts) + row
            for word in self._endings.get(output[end - 1], ()) if end else ():
                begin = end - len(word) + 1
                if begin >= 0 and tuple(output[begin:end]) == word[:-1]:
                    yield row, word[-1]


class _Parts:
    """Edits of a step while they are collected, as numpy arrays."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab = vocab_size
        self._mask_rows: list[Ids] = []
        self._masks: list[npt.NDArray[np.int32]] = []
        self._allowed_rows: list[Ids] = []
        self._allowed: list[Ids] = []
        self._forbidden: list[Ids] = []
        self._bias_at: list[Ids] = []
        self._bias: list[npt.NDArray[np.float32]] = []
        self._penalised: list[Ids] = []
        self._penalties: list[npt.NDArray[np.float32]] = []

    def add_mask(self, rows: Ids, mask: npt.NDArray[np.int32]) -> None:
        expected = (len(rows), -(-self._vocab // 32))
        if mask.shape != expected or mask.dtype != np.int32:
            raise ValueError(f"a mask of {mask.dtype} {mask.shape}: it must be int32 {expected}")
        self._mask_rows.append(rows)
        self._masks.append(mask)

    def allow(self, rows: Ids, token_ids: Ids) -> None:
        self._allowed_rows.append(rows)
        self._allowed.append(self._at(rows, token_ids))

    def forbid(self, rows: Ids, token_ids: Ids) -> None:
        self._forbidden.append(self._at(rows, token_ids))

    def add_bias(self, rows: Ids, token_ids: Ids, values: npt.NDArray[np.float32]) -> None:
        self._bias_at.append(self._at(rows, token_ids))
        self._bias.append(np.tile(values, len(rows)))

    def add_penalties(self, rows: Ids, counts: TokenCounts, drafts: list[int]) -> None:
        penalties = counts.rows(drafts)
        self._penalised.append(self._at(rows, penalties.token_ids))
        numbers = (penalties.factors, penalties.frequencies, penalties.presences)
        self._penalties.append(np.stack([part.ravel() for part in numbers]))

    def tensors(self, device: torch.device) -> LogitEdits:
        def moved(parts: list[npt.NDArray[np.generic]], axis: int = 0) -> Tensor:
            return to_device(torch.from_numpy(np.concatenate(parts, axis=axis)), device)

        penalties = None
        if self._penalised:
            numbers = moved([*self._penalties], axis=1)
            penalties = Penalties(moved([*self._penalised]), *numbers.unbind(0))
        return LogitEdits(
            masks=Masks(moved([*self._mask_rows]), moved([*self._masks])) if self._masks else None,
            allowed=Allowed(moved([*self._allowed_rows]), moved([*self._allowed]))
            if self._allowed
            else None,
            forbidden=moved([*self._forbidden]) if self._forbidden else None,
            bias=Bias(moved([*self._bias_at]), moved([*self._bias])) if self._bias else None,
            penalties=penalties,
        )

    def _at(self, rows: Ids, token_ids: Ids) -> Ids:
        at: Ids = (rows[:, None] * self._vocab + token_ids).ravel()
        return at
